"""A number of tasks that a plan names is the true one: random nests of scatters and ifs, gone through shard by shard in Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.soak import worlds

from .wdl_cases import nodes, plan_of


@dataclass(frozen=True)
class Section:
    """One section: its WDL, what it is in Python (the elements it goes over, or [None] and []), and what it holds."""

    wdl: str
    variable: str | None
    kind: str | None  #: of the variable: "int" or "list"
    over: Any  #: environment -> elements
    inside: Section | None


def nests(names: dict[str, str], depth: int) -> st.SearchStrategy[Section | None]:
    """Sections inside each other that use the variables of those around them."""
    if depth == 0:
        return st.none()
    fresh = f"v{depth}"
    choices: list[st.SearchStrategy[tuple[str, str | None, str | None, Any]]] = [
        st.integers(1, 4).map(lambda n: (f"range({n})", fresh, "int", lambda _: list(range(n)))),
        st.just(("lists", fresh, "list", lambda env: env["lists"])),
    ]
    for name, kind in names.items():
        if kind == "int":
            choices += [
                st.just((f"range({name})", fresh, "int", lambda env, name=name: list(range(env[name])))),
                st.integers(-1, 1).map(
                    lambda n, name=name: (
                        f"{name} > {n}",
                        None,
                        None,
                        lambda env: [None] if env[name] > n else [],
                    )
                ),
            ]
        else:
            choices += [
                st.just((name, fresh, "int", lambda env, name=name: env[name])),
                st.integers(1, 3).map(
                    lambda n, name=name: (
                        f"length({name}) == {n}", None, None, lambda env: [None] if len(env[name]) == n else [],
                    )
                ),
            ]  # fmt: skip

    def with_inside(chosen: tuple[str, str | None, str | None, Any]) -> st.SearchStrategy[Section | None]:
        wdl, variable, kind, over = chosen
        known = names | ({variable: kind} if variable and kind else {})
        return nests(known, depth - 1).map(lambda inside: Section(wdl, variable, kind, over, inside))

    return st.one_of(choices).flatmap(with_inside)


def written(section: Section | None) -> str:
    if section is None:
        return "call One { input: f = f }"
    head = f"scatter ({section.variable} in {section.wdl})" if section.variable else f"if ({section.wdl})"
    return f"{head} {{ {written(section.inside)} }}"


def counted(section: Section | None, env: dict[str, Any]) -> int:
    """Shard by shard."""
    if section is None:
        return 1
    found = section.over(env)
    return sum(
        counted(section.inside, env | ({section.variable: each} if section.variable else {}))
        for each in found
    )


LISTS = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=4)


@pytest.mark.soak
@settings(max_examples=worlds(80, 1250), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(nests({"n": "int"}, 4), LISTS, st.integers(1, 3))
def test_what_is_counted_is_the_number_that_runs(section: Section, lists: list[list[int]], n: int) -> None:
    """It may not be known, and then says so; but where there is a number, as many tasks run."""
    body = f"input {{ File f  Array[Array[Int]] lists  Int n }} {written(section)}"
    node = nodes(plan_of(body, {"w.f": "/f", "w.lists": lists, "w.n": n}))["One"]
    true = counted(section, {"lists": lists, "n": n})
    if node.runs == "no":
        assert true == 0
    elif node.runs == "yes" and node.tasks is not None:
        assert node.tasks == true
        assert node.gang_width == true
    else:
        assert node.until
        assert node.gang_width is None


def test_most_nests_of_known_lists_are_counted() -> None:
    """Three lists, their elements, a condition on each: nothing here needs to be unknown."""
    body = """input { File f  Array[Array[Int]] lists }
      scatter (list in lists) { scatter (n in list) { call One { input: f = f } if (n > 1) { call One as Some { input: f = f } } } }
      scatter (list in lists) { if (length(list) == 2) { call One as Pairs { input: f = f } } }"""
    found = nodes(plan_of(body, {"w.f": "/f", "w.lists": [[1], [2, 3], [3, 1, 2]]}))
    assert {name: node.tasks for name, node in found.items()} == {"One": 6, "Some": 4, "Pairs": 1}
