"""A step that takes long takes place in a thread; meanwhile requests are answered, and only the step reads or changes memory."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from flowsched.app import Settings, running
from flowsched.cluster.local.settings import LocalSettings
from flowsched.control.leading import dispatch
from flowsched.control.leading.leader import TermSettings
from flowsched.control.leading.recover import Leftovers, Reconciler
from flowsched.engine.recovery import make_run
from flowsched.engine.state import EngineState
from flowsched.engine.step import Step, step
from flowsched.scheduling.state.data import Catalogue
from tests.cluster.fake import FakeProcesses
from tests.service.processes import Process, process

#: What the event loop may read while a step is under way. None of it goes through what changes: a key is there or not.
HARMLESS = {
    ("Dispatcher._is_quiet", "assumed"),
    ("Dispatcher._is_quiet", "pods"),
    ("Leader.queue_changed.<locals>.<lambda>", "snapshot"),
}
STAGES = json.dumps(
    {
        "name": "chain",
        "stages": [
            {
                "name": f"s{n}",
                "command": ["true"],
                "resources": {"cpu": 900},
                "needs": [f"s{n - 1}"] if n else [],
            }
            for n in range(500)
        ],
    }
).encode()
WORK = json.dumps(
    {
        "name": "work",
        "stages": [
            {"name": "a", "scatter": {"count": 20}, "command": ["sh", "-c", "sleep 0.1; echo x > o"],
             "outputs": [{"name": "o", "path": "o"}]},
            {"name": "b", "command": ["true"], "needs": ["a"], "resources": {"cpu": 900}},
        ],
    }
).encode()  # fmt: skip
POD = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": [{"name": "c"}]}}
READS = (
    "api/v1/workflows", "api/v1/workflows/{0}", "api/v1/workflows/{0}/stages", "api/v1/workflows/{0}/tasks",
    "api/v1/workflows/{0}/tasks/a/0", "api/v1/workflows/{0}/tasks/a/0/outputs/o", "api/v1/workflows/{0}/explain",
    "api/v1/queues", "api/v1/nodes", "api/v1/idle", "api/v1/explain/cluster", "api/v1/snapshot",
    "ga4gh/tes/v1/tasks?view=FULL", "ga4gh/tes/v1/tasks/{1}?view=FULL", "readyz", "livez",
)  # fmt: skip


class Watch:
    """Sees what the event loop reads of the engine's memory while a thread changes it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: set[tuple[str, str]] = set()
        self.steps = 0
        self._within = False
        monkeypatch.setattr(dispatch, "LONG_S", -1.0)  # all of them
        monkeypatch.setattr(dispatch, "step", self._slow(step))
        monkeypatch.setattr(Step, "keep", self._slow(Step.keep))

        def seen(part: object, name: str) -> Any:
            if self._within and threading.current_thread() is threading.main_thread():
                self.seen.add((sys._getframe(1).f_code.co_qualname, name))
            return object.__getattribute__(part, name)

        for part in msgspec.structs.fields(EngineState):
            monkeypatch.setattr(part.default_factory, "__getattribute__", seen)

    def _slow(self, work: Any) -> Any:
        def slow(*arguments: Any, **named: Any) -> Any:
            assert threading.current_thread() is not threading.main_thread()
            self._within = True
            self.steps += 1
            try:
                time.sleep(0.02)
                return work(*arguments, **named)
            finally:
                self._within = False

        return slow


async def ask(http: aiohttp.ClientSession, paths: Sequence[str], ids: Sequence[str]) -> None:
    """All of them again and again, until it is broken off."""
    while True:
        for path in paths:
            async with http.get("/" + path.format(*ids)) as answer:
                await answer.read()
                assert answer.status in (200, 404, 409), (path, await answer.text())
            await asyncio.sleep(0.001)


async def test_the_loop_does_not_read_memory_that_a_thread_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every read there is over HTTP, commands, and the loops beside, while every step is slow and in a thread."""
    settings = Settings(port=0, root=tmp_path, log_level="error", local=LocalSettings(cpu="4"))
    async with running(settings) as up, aiohttp.ClientSession(up.url) as http:
        watch = Watch(monkeypatch)
        ident = (await up.service.submit(WORK)).id
        task = {"executors": [{"image": "x", "command": ["true"]}], "resources": {"cpu_cores": 900}}
        async with http.post("/ga4gh/tes/v1/tasks", json=task) as answer:
            ids = ident, (await answer.json())["id"]
        leader, dispatcher = up.service._leader, up.service._leader.dispatcher
        beside = (
            leader._expiry(dispatcher).once,
            Leftovers(dispatcher, up.service._documents).once,
            Reconciler(dispatcher, up.executor, clock=leader._clock).compare,
        )
        asking = [asyncio.create_task(ask(http, READS[n::4], ids)) for n in range(4)]
        for _ in range(12):
            other = (await up.service.submit(STAGES)).id
            for work in beside:
                await work()
            await up.service.refused_nodes(json.dumps(POD).encode())
            await up.service.node_scores(json.dumps(POD).encode(), ["node-0"])
            await up.service.put_queue("q", {"weight": 2})
            await up.service.command(other, "cancel")
        for each in asking:
            assert not each.done() or each.result()
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert leader.failures == 0
        assert watch.steps > 50
        assert watch.seen - HARMLESS == set()


async def chain(one: Process, stages: int) -> str:
    """A chain of so many stages of one task each, accepted."""
    many = [
        {"name": f"s{n}", "command": ["x"], "resources": {"cpu": 900}, "needs": [f"s{n - 1}"] if n else []}
        for n in range(stages)
    ]
    return (await one.service.submit(json.dumps({"name": "w", "stages": many}).encode())).id


async def test_a_stage_counts_for_many_tasks_when_it_is_asked_whether_a_step_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten thousand stages of one task held the loop for seconds: the step, its end and the making of the run are in threads."""
    threads = set[tuple[str, bool]]()

    def noted(name: str, work: Any) -> Any:
        def note(*arguments: Any, **named: Any) -> Any:
            threads.add((name, threading.current_thread() is threading.main_thread()))
            return work(*arguments, **named)

        return note

    monkeypatch.setattr(dispatch, "LONG_S", float("inf"))
    async with process(str(tmp_path / "db"), tmp_path, FakeProcesses()) as one:
        one.lead()
        await one.ready()
        monkeypatch.setattr(dispatch, "step", noted("step", step))
        monkeypatch.setattr(Step, "keep", noted("keep", Step.keep))
        monkeypatch.setattr("flowsched.control.intake.make_run", noted("run", make_run))
        assert (await one.service.command(await chain(one, 80), "cancel")).state == "CANCELLED"
        assert threads == {("run", True), ("step", True), ("keep", True)}
        threads.clear()
        assert (await one.service.command(await chain(one, 500), "cancel")).state == "CANCELLED"
        async with asyncio.timeout(30):  # the answer may come before the step's end is kept
            while not {("run", False), ("step", False), ("keep", False)} <= threads:
                await asyncio.sleep(0.01)


async def test_the_catalogue_is_swept_in_a_thread_after_short_steps_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand datasets that earlier runs have left: the end of a small one sweeps them."""
    on_the_loop: list[bool] = []

    def noted(catalogue: Catalogue, needed: Set[int]) -> None:
        on_the_loop.append(threading.current_thread() is threading.main_thread())
        sweep(catalogue, needed)

    sweep = Catalogue.sweep
    monkeypatch.setattr(Catalogue, "sweep", noted)
    monkeypatch.setattr(dispatch, "LONG_S", float("inf"))
    async with process(str(tmp_path / "db"), tmp_path, FakeProcesses()) as one:
        one.lead()
        await one.ready()
        for number in range(20_000):
            one.leader.dispatcher.state.cluster.catalogue.intern(f"s3://b/{number}")
        assert (await one.service.command(await chain(one, 2), "cancel")).state == "CANCELLED"
        async with asyncio.timeout(30):  # the answer may come before
            while not on_the_loop:
                await asyncio.sleep(0.01)
        assert on_the_loop == [False]


async def test_what_a_large_workflow_left_in_the_heap_is_given_back_once_it_has_ended(tmp_path: Path) -> None:
    """And not after each small one: a trim walks the whole heap."""
    shrunk: list[str] = []
    async with process(str(tmp_path / "db"), tmp_path, FakeProcesses()) as one:
        one.leader.settings = TermSettings(shrink=lambda: shrunk.append("once"))
        one.lead()
        await one.ready()
        await one.service.command(await chain(one, 10), "cancel")
        assert shrunk == []
        await one.service.command(await chain(one, 500), "cancel")
        async with asyncio.timeout(30):  # the answer may come before the end of the dispatcher's round
            while not shrunk:
                await asyncio.sleep(0.01)
        assert shrunk == ["once"]


async def test_counts_of_stages_are_added_by_the_database(tmp_path: Path) -> None:
    """As they are in memory, with what has ended and what never began."""
    async with process(str(tmp_path / "db"), tmp_path, FakeProcesses()) as one:
        ident = await chain(one, 3)
        assert (await one.service.workflow(ident)).counts == {"PENDING": 3}
        one.lead()
        await one.ready()
        async with asyncio.timeout(30):
            while (await one.service.workflow(ident)).counts != {"QUEUED": 1, "PENDING": 2}:
                await asyncio.sleep(0.01)
        view = await one.service.command(ident, "cancel")
        assert (view.state, view.counts) == ("CANCELLED", {"CANCELLED": 3})
