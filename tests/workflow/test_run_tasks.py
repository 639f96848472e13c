"""What identifies a task of a run: Cromwell's folders, shards as one number, and the numbers that users name tasks by."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowsched.workflow.run_tasks import cromwell_place, item_of, numbered, shard_number

WF = "3f2b8a0e-6d0c-4a6f-9f43-0c1d2e3f4a5b"
SUB = "11111111-2222-3333-4444-555555555555"
SUBSUB = "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"


@pytest.mark.parametrize(
    ("below", "node", "shards", "attempt", "task"),
    [
        ("call-a", "w.a", (), 1, "call-a"),
        ("call-a/", "w.a", (), 1, "call-a"),
        ("call-a/execution/script", "w.a", (), 1, "call-a"),
        ("call-a/cacheCopy/execution/x", "w.a", (), 1, "call-a"),
        ("call-a/shard-12", "w.a", (12,), 1, "call-a/shard-12"),
        ("call-a/attempt-3", "w.a", (), 3, "call-a"),
        ("call-a/shard-3/attempt-2/x", "w.a", (3,), 2, "call-a/shard-3"),
        ("call-call-a", "w.call-a", (), 1, "call-call-a"),
        ("call-a/shard-x/attempt-", "w.a", (), 1, "call-a"),
        (f"call-s/shard-0/sub/{SUB}/call-d/shard-7/attempt-2", "w.s.d", (0, 7), 2, f"call-s/shard-0/sub/{SUB}/call-d/shard-7"),
        (f"call-s/shard-4/sub/{SUB}/call-d", "w.s.d", (4,), 1, f"call-s/shard-4/sub/{SUB}/call-d"),
        (f"call-s/attempt-2/sub/{SUB}/call-d", "w.s.d", (), 1, f"call-s/attempt-2/sub/{SUB}/call-d"),
        (
            f"call-s/shard-1/t/{SUB}/call-u/shard-2/v/{SUBSUB}/call-x/shard-3/execution/rc",
            "w.s.u.x", (1, 2, 3), 1, f"call-s/shard-1/t/{SUB}/call-u/shard-2/v/{SUBSUB}/call-x/shard-3",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("root", ["/root", "s3://bucket/root", f"/root/{SUB}"])
def test_a_folder_of_cromwell_says_run_node_shards_attempt_and_task(
    root: str, below: str, node: str, shards: tuple[int, ...], attempt: int, task: str
) -> None:
    """Over TES the run's id is known, by the config backend it is the first UUID: the same task both ways."""
    path = f"{root}/w/{WF}/{below}"
    for run in ("", WF):
        place = cromwell_place(path, run)
        assert place is not None
        found = (place.run, place.run_name, place.node, place.shards, place.attempt, place.task)
        assert found == (WF, "w", node, shards, attempt, task)


@pytest.mark.parametrize("path", [f"/root/w/{WF}", f"{WF}/call-a", "/root/w/no-id/call-a", "/", ""])
def test_a_path_that_is_no_call_says_nothing(path: str) -> None:
    """Neither a run's own folder nor one without an id."""
    assert cromwell_place(path) is None
    assert cromwell_place(path, SUB) is None


@given(
    st.integers(1, 5).flatmap(lambda n: st.lists(st.lists(st.integers(0, 1 << 20), min_size=n, max_size=n)))
)
def test_different_shards_at_one_depth_have_different_numbers(paths: list[list[int]]) -> None:
    """Or none: five levels, and shards from 100,000 below another, do not fit."""
    numbers = {tuple(path): shard_number(path) for path in paths}
    some = [number for number in numbers.values() if number is not None]
    assert len(set(some)) == len(some)


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ((), None), ((7,), 7), ((2, 7), 200007), ((1, 2, 3), 10000200003), ((1, 100000), None),
        ((1, 2, 3, 4), 1000020000300004), ((9, 0, 0, 0), 9000000000000000), ((10, 0, 0, 0), None),
    ],
)  # fmt: skip
def test_shards_inside_each_other_are_100_000_apart(path: tuple[int, ...], number: int | None) -> None:
    """Shard 7 of shard 2 is 200007."""
    assert shard_number(path) == number


calls = st.tuples(st.sampled_from("ab"), st.sampled_from("stuvw"), st.none() | st.integers(0, 3))


@given(st.lists(calls), st.lists(calls))
def test_each_task_has_a_number_of_its_own_that_stays(
    before: list[tuple[str, str, int | None]], later: list[tuple[str, str, int | None]]
) -> None:
    """Within its node, and whatever comes later."""
    now = numbered(before + later)
    assert len({(node, number) for (node, _), number in now.items()}) == len(now)
    assert numbered(before).items() <= now.items()


def test_a_task_has_its_shard_s_number_and_else_the_next() -> None:
    """Without shards tasks are counted from 0; a shard that is taken gives the number after the last."""
    assert numbered([("n", "s3", 3), ("n", "s1", 1), ("n", "again", 1), ("n", "s1", 1), ("m", "x", None), ("m", "y", None)]) == {
        ("n", "s3"): 3, ("n", "s1"): 1, ("n", "again"): 4, ("m", "x"): 0, ("m", "y"): 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("task", "shard", "number", "item"),
    [
        (f"call-s/shard-5/s/{SUB}/call-t/shard-11", 500_011, 500_011, "5.11"),
        (f"call-s/shard-0/s/{SUB}/call-t/shard-100000", None, 3, "0.100000"),
        (f"call-s/shard-1/s/{SUB}/call-b/b/{SUB}/call-c/shard-2/c/{SUB}/call-t/shard-3", 10_000_200_003, 10_000_200_003, "1.2.3"),
        (f"call-s/shard-5/s/{SUB}/call-t", 5, 5, None),
        (f"call-s/s/{SUB}/call-t/shard-11", 11, 11, None),
        ("call-t", None, 0, None),
        ("call-t", None, 1, "call-t"),
        (f"call-s/shard-5/s/{SUB}/call-t/shard-11", 500_011, 500_012, f"call-s/shard-5/s/{SUB}/call-t/shard-11"),
        ("shard-1/shard-2", 4, 4, None),
        ("call-b/call-inner/shard-0/call-/call-make/shard-2", 2, 2, "0.2"),
        ("call-nap/shard-3/shard-4", 300_004, 300_004, "3.4"),
    ],
)  # fmt: skip
def test_a_task_in_scatters_inside_each_other_has_its_shards_as_its_item(
    task: str, shard: int | None, number: int, item: str | None
) -> None:
    """As Cromwell's folders have them, and the names of Sprocket; a task whose number another one took first has its own folder."""
    assert item_of(task, shard, number) == item
