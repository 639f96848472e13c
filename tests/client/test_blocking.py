"""The client without an event loop, against the real API on a real socket."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from far_server import Far

import flowsched
from flowsched import errors
from flowsched.errors import NotFound, RunFailed


@pytest.fixture
def far() -> Iterator[Far]:
    with Far() as running:
        yield running


def test_a_program_without_a_loop_submits_waits_and_reads(far: Far) -> None:
    """And no thread is left behind."""
    before = set(threading.enumerate())
    with flowsched.SyncClient(far.url) as client:
        run = client.submit({"name": "germline", "stages": []})
        far.soon(0.1, far.service.finish, run.id, "SUCCEEDED")
        assert run.wait(60, check=True).state == "SUCCEEDED"
        assert [view.name for view in client.list()] == ["germline"]
        assert [event.kind for event in client.events(run.id)][-1] == "workflow.succeeded"
        with pytest.raises(NotFound):
            client.get("nothing")
    client.close()
    assert set(threading.enumerate()) == before


def test_what_did_not_succeed_is_an_error_where_that_is_asked_for(far: Far) -> None:
    """With the name, the state and the reason, in one line."""
    with flowsched.SyncClient(far.url) as client:
        run = client.submit({"name": "germline", "stages": []})
        far.soon(0, far.service.finish, run.id, "FAILED")
        assert run.wait(60).state == "FAILED"
        with pytest.raises(RunFailed, match=r"germline \(wf1\) ended as FAILED"):
            run.wait(60, check=True)


async def test_it_works_where_a_loop_runs_already() -> None:
    """As in a notebook: the call blocks, its own loop goes on in its thread."""
    with Far() as far, flowsched.SyncClient(far.url) as client:
        assert list(client.list()) == []
    assert asyncio.get_running_loop().is_running()


def test_the_environment_names_the_server(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOWSCHED_SERVER, as for the command line."""
    monkeypatch.setenv("FLOWSCHED_SERVER", far.url)
    with flowsched.SyncClient() as client:
        assert client.submit({"name": "a", "stages": []}).id == "wf1"


def test_a_command_is_a_list() -> None:
    """A text would be taken for its letters: it is refused, with both ways to say it."""
    workflow = flowsched.Workflow("w")
    with pytest.raises(errors.InvalidRequest, match="expected a list") as refused:
        workflow.stage("a", command="echo hi")
    assert "['echo', 'hi']; or ['bash', '-c', 'echo hi']" in str(refused.value)
    with pytest.raises(errors.InvalidRequest, match="role 'ps'"):
        workflow.gang("g", roles={"ps": {"replicas": 1, "command": "serve"}})
