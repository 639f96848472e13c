"""Plans made in processes with limits."""

from __future__ import annotations

import asyncio
import base64
import os
import sys

import pytest

from flowsched import errors
from flowsched.control.planning import plans
from flowsched.control.planning.planner import PlanJob
from flowsched.control.planning.plans import Planning

from .test_hostile import packed

TASK = "task t { command {} output { Int n = 1 } }"
HELLO = f"version 1.0\nworkflow hello {{ call t }}\n{TASK}"


async def test_a_plan_comes_out_of_its_process() -> None:
    """With imports from a zip file."""
    imports = base64.b64encode(packed({"t.wdl": b"version 1.0\n" + TASK.encode()})).decode()
    job = PlanJob(source='version 1.0\nimport "t.wdl" as t\nworkflow w { call t.t }', imports=imports)
    assert [node.path for node in (await Planning().plan(job)).nodes] == ["w.t"]


async def test_errors_come_out_as_they_went_in() -> None:
    """Faults with their places; limits as limits."""
    with pytest.raises(errors.InvalidDocument) as caught:
        await Planning().plan(PlanJob(source="version 1.0\nworkflow w { call nobody }"))
    assert [fault.path for fault in caught.value.faults] == ["main.wdl:2:14"]
    with pytest.raises(errors.TooLarge, match="one WDL source"):
        await Planning().plan(PlanJob(source="x" * (2 << 20)))
    with pytest.raises(errors.InvalidRequest, match="no zip file"):
        await Planning().plan(PlanJob(source=HELLO, imports="bm90IGEgemlw"))


async def test_an_expression_that_never_ends_is_ended() -> None:
    """A regular expression that backtracks for years: the process is killed, and nothing is left of it."""
    body = f'version 1.0\nworkflow w {{ String s = sub("{"a" * 60}!", "(a|aa)+$", "") if (s == "") {{ call t }} }}\n{TASK}'
    with pytest.raises(errors.TooLarge, match="longer than"):
        await Planning(patience_s=4).plan(PlanJob(source=body))
    assert [node.path for node in (await Planning().plan(PlanJob(source=HELLO))).nodes] == ["hello.t"]


async def test_a_text_that_doubles_forty_times_ends_at_the_limit_of_memory() -> None:
    """In its own process: this one goes on."""
    doubled = "\n".join(f"String s{n} = s{n - 1} + s{n - 1}" for n in range(1, 41))
    body = f'version 1.0\nworkflow w {{ String s0 = "0123456789" {doubled} if (s40 == "") {{ call t }} }}\n{TASK}'
    with pytest.raises(errors.TooLarge, match="memory"):
        await Planning().plan(PlanJob(source=body))


async def test_so_many_plans_at_a_time_and_no_more() -> None:
    """Others wait; too many are asked to come again."""
    limited = Planning(at_once=1, waiting=1)
    tries = [asyncio.create_task(limited.plan(PlanJob(source=HELLO))) for _ in range(3)]
    done = await asyncio.gather(*tries, return_exceptions=True)
    assert [type(each).__name__ for each in done] == ["Plan", "Plan", "Unavailable"]


async def test_the_process_sees_no_secret_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the token nor the database's password are in its environment."""
    monkeypatch.setenv("FLOWSCHED_TOKEN", "s3cret")
    seen: dict[str, str] = {}
    start = asyncio.create_subprocess_exec

    async def watched(*args: str, **settings: object) -> asyncio.subprocess.Process:
        seen.update(settings["env"])  # type: ignore[call-overload]
        return await start(*args, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(plans.asyncio, "create_subprocess_exec", watched)
    await Planning().plan(PlanJob(source=HELLO))
    assert "PATH" in seen
    assert "FLOWSCHED_TOKEN" not in seen


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
async def test_a_plan_that_nobody_waits_for_any_more_is_ended() -> None:
    """Its process goes with whoever asked."""
    body = f'version 1.0\nworkflow w {{ String s = sub("{"a" * 60}!", "(a|aa)+$", "") if (s == "") {{ call t }} }}\n{TASK}'
    before = children()
    asked = asyncio.create_task(Planning().plan(PlanJob(source=body)))
    while not children() - before:
        await asyncio.sleep(0.01)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    assert children() - before == set()


def children() -> set[str]:
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return set(file.read().split())
