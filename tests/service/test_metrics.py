"""`/metrics`, read by Prometheus' own parser."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from flowsched.control.metrics import Distribution, Metrics, Standing
from flowsched.engine.delta import AttemptEnd, Delta
from flowsched.engine.state import EngineState
from flowsched.engine.step import Step
from flowsched.statement import Statement
from flowsched.store.database import url_for
from flowsched.workflow.memory import Fitted
from tests.cluster.fake import FakeProcesses, Outcome, Pod
from tests.service.processes import process


def _said(text: bytes) -> dict[tuple[str, tuple[str, ...]], float]:
    """(name, values of its labels) -> value."""
    return {
        (sample.name, tuple(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


async def test_what_runs_what_waits_and_what_ended_is_counted(tmp_path: Path) -> None:
    """Two nodes of 4 cores: one task runs, one asks for more than a node has, three ended, one of them badly."""

    def outcome(pod: Pod) -> Outcome:
        if "long" in pod.name:
            return Outcome(runtime_ms=60_000)
        return Outcome(runtime_ms=1, exit_code=3 if "bad" in pod.name else 0)

    def stage(name: str, cpu: int = 1, **more: object) -> dict[str, object]:
        return {"name": name, "command": ["x"], "resources": {"cpu": cpu}, **more}

    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(outcome)) as one:
        standing_by = _said(await one.service.metrics())
        assert standing_by["flowsched_leader", ()] == 0
        assert ("flowsched_nodes", ("ready",)) not in standing_by
        one.lead()
        await one.ready()
        for document in (
            {"name": "w", "stages": [stage("good", scatter={"count": 2})]},
            {"name": "v", "stages": [stage("bad")]},
            {"name": "u", "queue": "night", "stages": [stage("long"), stage("huge", 64)]},
        ):
            await one.service.submit(json.dumps(document).encode())
        async with asyncio.timeout(60):
            while True:
                found = _said(await one.service.metrics())
                ended = found.get(("flowsched_pods_ended_total", ("succeeded",)), 0)
                failed = found.get(("flowsched_pods_ended_total", ("failed",)), 0)
                running = found.get(("flowsched_tasks", ("night", "running")), 0)
                if (ended, failed, running) == (2, 1, 1):
                    break
                await asyncio.sleep(0.02)
    assert found["flowsched_leader", ()] == 1
    assert found["flowsched_tasks", ("night", "queued")] == 1
    assert found["flowsched_waiting_pod_groups", ("LargerThanNode",)] == 1
    assert found["flowsched_nodes", ("ready",)] == 2
    assert found["flowsched_resources", ("allocatable", "cores")] == 8
    assert found["flowsched_resources", ("used", "cores")] == 1
    assert found["flowsched_pods_launched_total", ()] == 4
    assert found["flowsched_queue_wait_seconds_count", ()] == 3
    assert found["flowsched_step_seconds_bucket", ("+Inf",)] == found["flowsched_step_seconds_count", ()] > 0
    assert standing_by["flowsched_lease_epoch", ()] == 0
    assert ("flowsched_lease_remaining_seconds", ()) not in standing_by
    assert (found["flowsched_lease_epoch", ()], found["flowsched_failed_terms", ()]) == (1, 0)
    assert 0 < found["flowsched_lease_remaining_seconds", ()] <= 15
    assert found["flowsched_start_wait_seconds_count", ()] == 3
    assert found["flowsched_longest_wait_seconds", ("LargerThanNode",)] > 0
    assert found["flowsched_ledger_drift_nodes", ()] == 0
    assert found["flowsched_unknown_pods", ()] == 0


async def test_a_process_whose_lease_ran_out_does_not_lead(tmp_path: Path) -> None:
    """Its clock moves past the lease: flowsched_leader is 0 and its gauges are gone, until the lease is renewed."""
    moved = [0.0]

    def monotonic() -> float:
        return time.monotonic() + moved[0]

    world = FakeProcesses(lambda pod: Outcome(runtime_ms=1, exit_code=0))
    async with process(url_for(tmp_path / "db"), tmp_path, world, monotonic=monotonic) as one:
        one.lead()
        await one.ready()
        leading = _said(await one.service.metrics())
        moved[0] = 20.0
        away = _said(await one.service.metrics())
        async with asyncio.timeout(60):
            back = away
            while back["flowsched_leader", ()] == 0:
                await asyncio.sleep(0.05)
                back = _said(await one.service.metrics())
    gauge = ("flowsched_nodes", ("ready",))
    assert [each["flowsched_leader", ()] for each in (leading, away)] == [1, 0]
    assert [gauge in each for each in (leading, away, back)] == [True, False, True]
    assert ("flowsched_lease_remaining_seconds", ()) not in away
    assert away["flowsched_lease_epoch", ()] == 1


async def test_a_gang_is_counted_when_its_last_member_runs(tmp_path: Path) -> None:
    """A gang of three has one wait, from ready until all of it runs. Each member took 30 ms where a second was expected."""

    def outcome(pod: Pod) -> Outcome:
        return Outcome(runtime_ms=30, exit_code=0)

    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(outcome)) as one:
        one.lead()
        await one.ready()
        role = {"replicas": 3, "command": ["x"], "resources": {"cpu": 1}}
        stage = {"name": "ring", "gang": True, "roles": {"worker": role}, "estimate": {"runtime": "1s"}}
        document = {"name": "w", "stages": [stage]}
        await one.service.submit(json.dumps(document).encode())
        async with asyncio.timeout(60):
            found = {}
            while found.get(("flowsched_pods_ended_total", ("succeeded",))) != 3:
                found = _said(await one.service.metrics())
                await asyncio.sleep(0.02)
    assert found["flowsched_gang_wait_seconds_count", ()] == 1
    assert found["flowsched_runtime_prediction_ratio_count", ()] == 3
    assert found["flowsched_runtime_prediction_ratio_bucket", ("0.1",)] == 3  # 30 ms of 1 s


async def test_memory_that_fits_is_counted_as_asked_and_as_given() -> None:
    """4 GiB are asked for and 1 GiB is given, for 2 s; then 1 GiB is held in vain for 1 s."""
    metrics = Metrics()
    for fitted in (Fitted(4 << 30, 1 << 30, 2_000, False), Fitted(4 << 30, 1 << 30, 1_000, True), None):
        end = AttemptEnd("fs-w-a-0-0", 1, None, 0, "", "", {}, fitted=fitted)
        metrics.stepped(Step(EngineState(), Statement(), Delta(ends=[end])), 0.0)
    found = _said(await metrics.text(None, Standing(), 0))
    name = "flowsched_fitted_memory_byte_seconds_total"
    assert (found[name, ("asked",)], found[name, ("given",)]) == (8 << 30, 3 << 30)


def test_a_value_on_a_bound_is_below_it() -> None:
    """As Prometheus has it: le means less or equal."""
    spread = Distribution((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        spread.add(value)
    assert spread.buckets() == [("1.0", 2), ("2.0", 3), ("+Inf", 4)]
    assert spread.total == 12.0
