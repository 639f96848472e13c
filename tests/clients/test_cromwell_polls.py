"""A client as unforgiving as Cromwell, against a service that is killed again and again."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.cromwell import Backend, CallFailed, Scatter
from tests.clients.live import LiveService, live
from tests.crash.harness import Nursery
from tests.soak import worlds

CALLS, KILLS = worlds(few=60, many=200), worlds(few=5, many=10)
WORKFLOW = "7f0d7c16-d434-4dd7-a7ba-c7e897701c9a"


#: In its first lives the service dies when a create is durable and not answered: the client sends it again.
UNANSWERED = ("submit.after=kill@5", "submit.after=kill@12", "submit.after=kill@20", "submit.after=kill@9")


async def killed(service: LiveService, times: int, done: list[object], of: int) -> int:
    """Let the service die, at first by itself, then whenever some more calls have ended, and start it again.

    Returns:
        How often a create was durable and not answered.
    """
    unanswered = 0
    for number in range(1, times + 1):
        if number <= len(UNANSWERED) and await service.died(60.0):
            unanswered += 1
        else:
            patience = time.monotonic() + 30.0
            while len(done) < of * number // (times + 2) and time.monotonic() < patience:
                await asyncio.sleep(0.02)
            await service.kill()
        armed = number < len(UNANSWERED)
        service.start(UNANSWERED[number] if armed else "")
        await service.ready(may_die=armed)
    return unanswered


@pytest.mark.soak
@pytest.mark.slow
async def test_no_call_is_lost_and_none_runs_twice_while_the_service_dies(
    tmp_path: Path, nursery: Nursery, database: str | None, tell: Callable[[str], None]
) -> None:
    """The calls of a wide scatter, kill -9 again and again: every rc is there when COMPLETE is told, every command ran once."""
    scatter, witness = Scatter(tmp_path / "cromwell", WORKFLOW, "Wide.shard"), tmp_path / "witness"
    polled = tmp_path / "polled"
    done: list[object] = []
    begun = time.monotonic()
    async with (
        live(tmp_path, nursery, database=database, failpoints=UNANSWERED[0]) as service,
        Backend(f"{service.url}/ga4gh/tes/v1/tasks") as backend,
    ):

        async def call(shard: int) -> tuple[str, int] | CallFailed:
            square = f"echo {shard} squared is $(({shard} * {shard})) > result.txt"
            last = f"for _ in $(seq 600); do [ -e {polled} ] && break; sleep 0.1; done"
            wait = last if shard == CALLS - 1 else "sleep 0.2"
            command = f"echo {shard} >> {witness}; {wait}; {square}; echo done"
            body = scatter.write(shard, command)
            try:
                return await backend.run(body, scatter.folder(shard))
            except CallFailed as failed:
                return failed
            finally:
                done.append(shard)

        async def tell_of_minimal() -> None:
            while not backend.counts.requests["minimal"]:
                await asyncio.sleep(0.1)
            polled.touch()

        telling = asyncio.create_task(tell_of_minimal())
        killing = asyncio.create_task(killed(service, KILLS, done, CALLS))
        ended = await asyncio.gather(*(call(shard) for shard in range(CALLS)))
        unanswered = await killing
        telling.cancel()
        listed = await tasks_of(service)
    failed = [str(each) for each in ended if isinstance(each, CallFailed)]
    assert unanswered >= 2, "hardly any create was cut off before its answer"
    assert not failed, (len(failed), failed[:3], service.tail())
    assert Counter(each[1] for each in ended if not isinstance(each, CallFailed)) == {0: CALLS}
    assert sorted(map(int, witness.read_text().split())) == list(range(CALLS))
    assert len(listed) == CALLS
    assert set(listed.values()) == {"COMPLETE"}
    for shard in (0, 13, CALLS - 1):
        assert (scatter.folder(shard) / "result.txt").read_text() == f"{shard} squared is {shard * shard}\n"
        assert (scatter.folder(shard) / "stdout").read_text().count("done\n") >= 1
    counts = backend.counts
    assert counts.refused == 0, "the port was closed while the service was dead"
    assert counts.requests["minimal"] > 0, "the start and the price were never told: every poll was FULL"
    tell(
        f"a client as Cromwell, {'SQLite' if database is None else 'PostgreSQL'}: {CALLS} calls, {KILLS} kill -9 ({unanswered} "
        "between a create and its answer), "
        f"{counts.requests.total()} requests ({counts.requests['full']} FULL, {counts.requests['minimal']} MINIMAL), "
        f"{counts.broken} broken connections, 0 failed, 0 doubled, {time.monotonic() - begun:.0f} s"
    )


async def tasks_of(service: LiveService) -> dict[str, str]:
    """Every task the service knows, with its state; one page after the other."""
    found: dict[str, str] = {}
    token = ""
    while True:
        page = await service.get(f"/ga4gh/tes/v1/tasks?page_size=37{token}")
        for task in page["tasks"]:
            assert task["id"] not in found, "a page shows a task of the page before"
            found[task["id"]] = task["state"]
        if not page.get("next_page_token"):
            return found
        token = f"&page_token={page['next_page_token']}"
