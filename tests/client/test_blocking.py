"""The client without an event loop, against the real API on a real socket."""

from __future__ import annotations

import asyncio
import inspect
import os
import re
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from far_server import Far

import flowsched
from flowsched import client, errors
from flowsched.errors import NotFound, RunFailed
from flowsched.workflow.views import OutputView, TaskView, WaitingView


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
        with pytest.raises(NotFound) as missing:
            client.get("germline")
        assert missing.value.__notes__ == ["calls take ids: client.find(NAME) gives the newest run of a name"]
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
        with pytest.raises(RunFailed) as failed:
            run.wait(60, check=True)
        assert (failed.value.run, failed.value.state) == (run.id, "FAILED")


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


def _public(kind: type) -> dict[str, set[str]]:
    """The public methods and properties of a class, with the names of their parameters."""
    found = {}
    for name, value in vars(kind).items():
        if not name.startswith("_") and (callable(value) or isinstance(value, property)):
            parameters = inspect.signature(value).parameters if callable(value) else {}
            found[name] = set(parameters) - {"page"}  # how many a request brings is no matter of the caller
    return found


@pytest.mark.parametrize(
    ("waiting", "plain"), [(flowsched.Client, flowsched.SyncClient), (client.Run, client.SyncRun)]
)
def test_both_clients_can_do_the_same(waiting: type, plain: type) -> None:
    """Each method of the one is a method of the other, with the same parameters."""
    assert _public(plain) == _public(waiting)
    assert len(_public(plain)) >= 6


@pytest.mark.parametrize(
    ("whole", "one"), [(flowsched.Client, client.Run), (flowsched.SyncClient, client.SyncRun)]
)
def test_a_run_can_do_what_the_client_can_do_with_one(whole: type, one: type) -> None:
    """Each method that takes the id of a workflow first, without that; `get` is `view`."""
    of_one = {"get": "view"}
    wanted = {
        of_one.get(name, name): parameters - {"workflow", "offset"}
        for name, parameters in _public(whole).items()
        if "workflow" in parameters and name != "submit"
    }
    assert _public(one) == wanted
    assert len(wanted) == 21


def test_outputs_of_all_shards_are_saved_with_one_call(far: Far, tmp_path: Path) -> None:
    """Each in a folder of its own, as `flowsched get` does; files of one name keep apart; a wrong stage is said."""
    far.service.add()
    both = [OutputView(name=name, uri="flowsched:x", size_bytes=5) for name in ("vcf", "copy")]
    far.service.task_views = [
        TaskView(stage="call", index=index, shard=index, role="", state="SUCCEEDED", attempt=0, outputs=both)
        for index in range(2)
    ]
    far.service.write("vcf", "calls.vcf", b"calls")
    far.service.write("copy", "calls.vcf", b"again")
    far.service.documents["wf1"] = (
        b'{"stages": [{"name": "call", "outputs": [{"name": "vcf"}, {"name": "copy"}]}]}'
    )
    with flowsched.SyncClient(far.url) as connected:
        run = connected.find("wf1")
        files = run.download_all("call", tmp_path)
        assert [str(path.relative_to(tmp_path)) for path in files] == [
            "0/calls.vcf", "0/copy/calls.vcf", "1/calls.vcf", "1/copy/calls.vcf",
        ]  # fmt: skip
        assert files[3].read_bytes() == b"again"
        assert run.download_all("call", str(tmp_path / "one"), name="vcf") == [
            tmp_path / "one" / "0" / "calls.vcf", tmp_path / "one" / "1" / "calls.vcf",
        ]  # fmt: skip
        with pytest.raises(NotFound, match="there is no stage 'cal'; did you mean 'call'"):
            run.download_all("cal", tmp_path)
        with pytest.raises(NotFound, match="there is no output of call 'vfc'; did you mean 'vcf'"):
            run.download_all("call", tmp_path, name="vfc")


def test_a_wait_warns_of_what_cannot_start_and_says_why_it_ended(far: Far) -> None:
    """Nodes may come, so it goes on; a filter makes it an error. The error of a wait that is over has the reason, too."""
    reason = WaitingView(
        stage="train",
        tasks=6,
        state="QUEUED",
        code="LargerThanCluster",
        message="it is too wide",
        permanent=True,
    )
    far.service.add("wide", state="QUEUED", waiting=reason)
    with flowsched.SyncClient(far.url) as connected:
        with (
            pytest.warns(
                errors.CannotStart, match=r"wide \(wf1\) cannot start .* train waits: it is too wide"
            ),
            pytest.raises(TimeoutError, match=r"QUEUED, train waits: it is too wide \(LargerThanCluster\)"),
        ):
            connected.wait("wf1", 4)
        with warnings.catch_warnings():
            warnings.simplefilter("error", errors.CannotStart)
            with pytest.raises(errors.CannotStart, match="cancel it, or add nodes"):
                connected.wait("wf1", 60)
            capped = msgspec.structs.replace(reason, code="LargerThanQueue")
            far.service.workflows["wf1"] = msgspec.structs.replace(
                far.service.workflows["wf1"], waiting=capped
            )
            with pytest.raises(
                errors.CannotStart,
                match=r"start under the cap of its queue: .* or raise the cap of its queue$",
            ):
                connected.wait("wf1", 60)


def test_ctrl_c_ends_a_wait_and_says_that_the_run_goes_on(far: Far) -> None:
    """The traceback has the program's line and the client's calls, and nothing of its thread."""
    far.service.add()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a run in the background ignores it
    with flowsched.SyncClient(far.url) as connected:
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt) as ended:
            connected.find("wf1").wait(60)
    signal.signal(signal.SIGINT, before)
    assert ended.value.__notes__ == ["wf1 goes on: wait again, or cancel it"]
    frames = [Path(frame.filename).name for frame in traceback.extract_tb(ended.value.__traceback__)]
    assert frames == ["test_blocking.py", "blocking.py", "blocking.py", "loop_thread.py"]


def test_a_run_is_found_by_its_name(far: Far) -> None:
    """The newest of that name; and what other methods say of a name leads there."""
    with flowsched.SyncClient(far.url) as connected:
        connected.submit({"name": "mine", "stages": []})
        newest = connected.submit({"name": "mine", "stages": []})
        assert connected.find("mine").id in ("wf1", newest.id)
        assert connected.find(newest.id).view().name == "mine"
        with pytest.raises(NotFound, match="did you mean 'mine'"):
            connected.find("mime")


def test_a_closed_client_says_so(far: Far) -> None:
    """It makes no new connection, which nothing would close."""
    with flowsched.SyncClient(far.url) as connected:
        run = connected.submit({"name": "mine", "stages": []})
    for call in (run.view, lambda: next(connected.list()), connected.queues):
        with pytest.raises(RuntimeError, match="this client is closed"):
            call()


async def test_a_closed_async_client_says_so(far: Far) -> None:
    """As the other one."""
    async with flowsched.Client(far.url) as connected:
        assert await connected.queues() is not None
    with pytest.raises(RuntimeError, match="this client is closed"):
        await connected.queues()


def test_what_failed_says_what_it_wrote(far: Far) -> None:
    """The last lines of its stderr, and the call that gives all of them."""
    with flowsched.SyncClient(far.url) as connected:
        run = connected.submit({"name": "germline", "stages": []})
        far.service.task_views = [
            TaskView(stage="train", index=2, shard=2, role="", state="FAILED", attempt=0, reason="Failed")
        ]
        far.service.log = {"stderr": b"".join(b"line %d\n" % number for number in range(30))}
        far.soon(0, far.service.finish, run.id, "FAILED")
        with pytest.raises(RunFailed) as failed:
            run.wait(60, check=True)
    assert 'logs("train", 2, stream="stderr")' in str(failed.value)
    assert str(failed.value).endswith("| line 28\n  | line 29")
    assert "line 19" not in str(failed.value)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda w, s: w.stage("b", command="echo hi"), "the command of stage 'b' is 'echo hi', expected a list"),
        (lambda w, s: w.gang("g", roles={"ps": {"command": "serve"}}), "the command of role 'ps' is 'serve'"),
        (lambda w, s: w.stage("b", command=["b"], scatter={"lr": [1, 2]}), "scatter of stage 'b' is {'lr'"),
        (lambda w, s: w.stage("b", command=["b"], scatter="abc"), "scatter of stage 'b' is 'abc', expected a list"),
        (lambda w, s: w.stage("b", command=["b"], scatter={"S1", "S2"}), "expected a list"),
        (lambda w, s: w.stage("b", command=["b"], scatter=2.5), "scatter of stage 'b' is 2.5"),
        (lambda w, s: w.stage("b", command=["b"], inputs={"x": s}), "expected a URI, a Path, an output of a stage"),
        (lambda w, s: w.stage("b", command=["b"], inputs=["x"]), "inputs of stage 'b': found ['x'], expected a mapping"),
        (lambda w, s: w.stage("b", command=["b"], outputs={"o": 1}), "output 'o' of stage 'b' is 1"),
        (lambda w, s: w.stage("b", command=["b"], env=["A"]), "env of stage 'b': found ['A']"),
        (lambda w, s: w.stage("b", command=["b"], needs="a"), "needs of stage 'b' is 'a', expected a list"),
        (lambda w, s: w.gang("b", roles=["w"]), "roles of gang 'b': found ['w']"),
        (lambda w, s: w.stage("a", command=["b"]), "the workflow has a stage 'a' already"),
        (lambda w, s: s["bam"], "stage 'a' has no output 'bam'; it declares o"),
        (lambda w, s: flowsched.Workflow("y").stage("b", command=["b"], inputs={"o": s["o"]}), "of another workflow"),
    ],
)  # fmt: skip
def test_a_wrong_argument_says_what_to_write(build: Any, words: str) -> None:
    """No error of Python's own, and no text taken for its letters."""
    workflow = flowsched.Workflow("w")
    stage = workflow.stage("a", command=["a"], outputs={"o": "o"})
    with pytest.raises(errors.InvalidRequest) as refused:
        build(workflow, stage)
    assert words in str(refused.value)


def test_what_cannot_be_submitted_says_what_can(far: Far) -> None:
    """The name of a file as a text, and values that JSON cannot hold, with their place."""
    workflow = flowsched.Workflow("w")
    workflow.stage("a", command=["a"], timeout=Path("x"))
    with flowsched.SyncClient(far.url) as connected:
        with pytest.raises(errors.InvalidRequest, match=r"a file is Path\('hello.json'\)"):
            connected.submit("hello.json")
        with pytest.raises(errors.InvalidRequest, match=r"\$\.stages\[0\]\.timeout: found PosixPath\('x'\)"):
            connected.submit(workflow)


def test_every_view_can_be_imported_and_completed() -> None:
    """In a process of its own: `flowsched.client` needs no import of its own there."""
    program = (
        "import flowsched; from flowsched.client import EventView, WorkflowView; assert 'Client' in dir(flowsched);"
        "assert {'Client', 'EventView'} <= set(dir(flowsched.client)); assert flowsched.errors.NotFound"
    )
    subprocess.run([sys.executable, "-c", "import flowsched; flowsched.client.Client"], check=True)
    subprocess.run([sys.executable, "-c", program], check=True)
    for name in client.__all__:
        assert getattr(client, name).__name__ == name
    results = {
        word
        for kind in (flowsched.Client, client.Run)
        for value in vars(kind).values()
        if callable(value)
        for word in re.findall(r"\w+View\b", str(inspect.signature(value).return_annotation))
    }
    assert results <= set(client.__all__)
