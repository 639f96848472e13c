"""Ranks, stages and files of a plan."""

from __future__ import annotations

import pytest

from flowsched.workflow.plan import (
    Amount,
    EdgePlan,
    NodePlan,
    Plan,
    PlannedFile,
    RankPlan,
    Until,
    as_json,
    from_json,
    prefetch,
    rank_of,
    ranks,
    stages,
)


def node(path: str, level: int, tasks: int | None = 1, **more: object) -> NodePlan:
    call = path.rpartition(".")[2]
    amounts = {"cpu": Amount(2000), "memory": Amount(1 << 30), "disk": Amount(0), "gpu": Amount(0)}
    workflow = "sub" if path.count(".") == 2 else "w"
    return NodePlan(path, call, workflow, call, tasks=tasks, level=level, **(amounts | more))  # type: ignore[arg-type]


DIAMOND = Plan(
    "w",
    "WDL 1.0",
    (
        node("w.a", 0, files=(PlannedFile("f", "s3://b/f"),)),
        node("w.b", 1, tasks=10),
        node("w.left.c", 1, tasks=None, until=(Until("node", "w.a"),)),
        node("w.right.c", 1, runs="no"),
        node("w.d", 2, files=(PlannedFile("x", "s3://b/f"), PlannedFile("y", "s3://b/g")), gpu=Amount(1)),
    ),
    (
        EdgePlan("w.a", "w.b", "data"),
        EdgePlan("w.a", "w.left.c", "order"),
        EdgePlan("w.a", "w.right.c", "data"),
        EdgePlan("w.b", "w.d", "data"),
        EdgePlan("w.left.c", "w.d", "data"),
        EdgePlan("w.right.c", "w.d", "data"),
    ),
)

RUNTIMES = {"w.a": 1_000, "w.b": 5_000, "w.d": 100}


def test_a_rank_is_the_longest_way_to_the_end() -> None:
    """Learned runtimes, for other calls the middle one of them; what does not run costs nothing."""
    assert ranks(DIAMOND, RUNTIMES) == {
        "w.a": RankPlan(6_100, 1_000, True),
        "w.b": RankPlan(5_100, 5_000, True),
        "w.left.c": RankPlan(1_100, 1_000, False),
        "w.right.c": RankPlan(0, 0, False),
        "w.d": RankPlan(100, 100, True),
    }


@pytest.mark.parametrize("known_ms", [0, 1, 300, 60_000, 7_200_000])
@pytest.mark.parametrize("known", ["w.a", "w.b", "w.left.c", "w.d"])
def test_one_known_call_leaves_the_order_of_the_hops(known: str, known_ms: int) -> None:
    """Its time is that of all others too: whether it is far above or below a minute decides no order."""
    hops = ranks(DIAMOND, {})
    assert {path: rank.rank_ms for path, rank in hops.items()} == {
        "w.a": 180_000, "w.b": 120_000, "w.left.c": 120_000, "w.right.c": 0, "w.d": 60_000,
    }  # fmt: skip
    found = ranks(DIAMOND, {known: known_ms})
    assert {path: rank.rank_ms for path, rank in found.items()} == {
        path: rank.rank_ms // 60_000 * max(1, known_ms) for path, rank in hops.items()
    }
    assert [path for path, rank in found.items() if rank.learned] == [known]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("w.b", 5_100),
        ("b", 5_100),
        ("w.b[7]", 5_100),
        ("w/left/c", 1_100),
        ("left.c", 1_100),
        ("sub.c", 1_100),  # two are called so: the longer way
        ("c", 1_100),
        ("w.unknown", None),
        ("", None),
    ],
)
def test_a_node_is_found_by_the_names_that_engines_give_it(name: str, rank: int | None) -> None:
    """By its path, by workflow and call, or by its call alone."""
    assert rank_of(DIAMOND, ranks(DIAMOND, RUNTIMES), name) == rank


def test_stages_add_up_what_is_known_and_say_that_there_is_more() -> None:
    """Ten tasks of two cores; beside them a number of tasks that nobody knows yet."""
    found = stages(DIAMOND)
    assert [
        (s.level, s.tasks, s.cpu_millicores, s.memory_bytes, s.gpus, s.partial, s.unknown_widths)
        for s in found
    ] == [
        (0, 1, 2000, 1 << 30, 0, False, ()),
        (1, 10, 20_000, 10 << 30, 0, True, ("w.left.c",)),
        (2, 1, 2000, 1 << 30, 1, False, ()),
    ]


def test_files_are_told_with_their_readers_in_order() -> None:
    """What can be fetched ahead, and for whom."""
    assert prefetch(DIAMOND) == {"s3://b/f": ("w.a", "w.d"), "s3://b/g": ("w.d",)}


def test_a_plan_comes_back_as_it_was_kept() -> None:
    """Every field of it."""
    assert from_json(as_json(DIAMOND)) == DIAMOND
