"""The plan that calls teach: edges between kinds, in the form of any plan."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flowsched.workflow.learned_plan import LearnedPlan
from flowsched.workflow.plan import ranks


def edges(learned: LearnedPlan, kind: str) -> list[tuple[str, str]]:
    """The edges from a kind on."""
    plan = learned.plan(kind)
    return [] if plan is None else [(each.parent, each.child) for each in plan.edges]


def test_a_kind_follows_the_kind_that_wrote_its_inputs() -> None:
    """Nodes belong to runs, kinds to all: a later run with other nodes finds the same edges, and adds its own."""
    learned = LearnedPlan()
    assert not learned.note("night-1", "call-align", "align", ())
    assert learned.note("night-1", "call-sort", "sort", ["call-align"])
    assert not learned.note("night-2", "a", "align", ())
    assert not learned.note("night-2", "s", "sort", ["a"])
    assert learned.note("night-2", "m", "merge", ["s", "a"])
    plan = learned.plan("align")
    assert plan is not None
    assert (plan.name, plan.language, [node.path for node in plan.nodes]) == (
        "align",
        "learned",
        ["align", "sort", "merge"],
    )
    assert edges(learned, "align") == [("align", "sort"), ("align", "merge"), ("sort", "merge")]
    assert learned.plan("merge") is None
    found = ranks(plan, {"align": 1_000, "sort": 20_000, "merge": 300_000})
    assert found["align"].rank_ms == 321_000


def test_nodes_of_another_run_are_no_parents() -> None:
    """The same word in two runs."""
    learned = LearnedPlan()
    learned.note("one", "prepare", "align", ())
    assert not learned.note("two", "call", "sort", ["prepare"])
    assert learned.plan("align") is None


@given(st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 9), max_size=3)), max_size=40))
def test_a_plan_has_no_cycle_whatever_arrives(arrivals: list[tuple[int, list[int]]]) -> None:
    """Each kind stands after all kinds that it follows, so ranks are defined."""
    learned = LearnedPlan()
    for number, after in arrivals:
        learned.note("r", f"n{number}", f"k{number}", [f"n{each}" for each in after])
    for number in range(10):
        plan = learned.plan(f"k{number}")
        if plan is not None:
            order = {node.path: at for at, node in enumerate(plan.nodes)}
            assert order[f"k{number}"] == 0
            assert all(order[edge.parent] < order[edge.child] for edge in plan.edges)
