"""Plans in SQL, on both databases."""

from __future__ import annotations

import pytest

from flowsched.errors import InvalidRequest, NotFound
from flowsched.store.database import Database
from flowsched.store.plans import Plans


async def test_plans_come_back_as_they_were_put(database: Database) -> None:
    """Whole, by id and by run; newest first, page by page."""
    plans = Plans(database)
    for number in range(3):
        await plans.put(f"p{number}", "germline", f"run-{number}", 7, b"body %d" % number, 1000 + number)
    row, body = await plans.get("p1")
    assert (row.name, row.run, row.nodes, row.created_ms, body) == ("germline", "run-1", 7, 1001, b"body 1")
    found = await plans.of_run("nothing", "run-2")
    assert found is not None
    assert (found[0].id, found[1]) == ("p2", b"body 2")
    assert await plans.of_run("nothing") is None
    page = await plans.list(2)
    assert [row.id for row in page.items] == ["p2", "p1"]
    rest = await plans.list(2, page.next_token)
    assert ([row.id for row in rest.items], rest.next_token) == (["p0"], None)
    assert [row.id for row in (await plans.list(2, run="run-0")).items] == ["p0"]


async def test_a_run_has_one_plan_and_plans_without_a_run_are_many(database: Database) -> None:
    """The later takes the place of the earlier."""
    plans = Plans(database)
    for ident, run in (("a", "r"), ("b", ""), ("c", ""), ("d", "r")):
        await plans.put(ident, "w", run, 1, b"{}", 1)
    assert [row.id for row in (await plans.list(10)).items] == ["d", "c", "b"]


async def test_what_is_not_there_is_told(database: Database) -> None:
    """Neither shown nor removed; a token of others is none."""
    plans = Plans(database)
    with pytest.raises(NotFound, match="p9"):
        await plans.get("p9")
    with pytest.raises(NotFound, match="p9"):
        await plans.delete("p9")
    with pytest.raises(InvalidRequest, match="page token"):
        await plans.list(1, "x; DROP TABLE plans")
