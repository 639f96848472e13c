"""Calls of Cromwell's config backend, from its templates to the file `rc`, on a real service with real processes."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowsched.cluster.local.runner.namespace import refusal
from tests.cromwell.draft2 import Maybe
from tests.cromwell.sfs import ABORTS, Call, Cromwell, Service, SubmitFailed, judged
from tests.programs import free_ports

CONF = Path(__file__).parents[2] / "deploy" / "cromwell" / "flowsched.conf"
HELD = "for i in $(seq 600); do [ -e go ] && exit 0; sleep 0.1; done; exit 9"


@pytest.fixture(scope="module", autouse=True)
def _mounts(tmp_path_factory: pytest.TempPathFactory) -> None:
    why = refusal(str(tmp_path_factory.mktemp("mounts")))
    if why:
        pytest.skip(f"no private mounts here: {why}")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One for all tests: those that kill it start it again."""
    root = tmp_path_factory.mktemp("service") / "root"
    running = Service(root, free_ports(1)[0], "--cpu", "4", "--memory", "4Gi")
    running.start()
    yield running
    running.kill()


@pytest.fixture
def cromwell(service: Service, tmp_path: Path) -> Cromwell:
    """Its root has a name that nobody should give to a folder."""
    return Cromwell(CONF, tmp_path / "it's $(touch pwned): a root", service.url)


def started(call: Call) -> None:
    """Wait until the call's command runs."""
    for _ in range(2400):
        if (call.execution / "started").exists():
            return
        time.sleep(0.05)
    raise AssertionError("the command did not start")


def over(service: Service, job: str) -> str:
    """Wait until a job has ended for the service, too."""
    for _ in range(2400):
        state = service.state(job)
        if state in ("SUCCEEDED", "FAILED", "CANCELLED"):
            return state
        time.sleep(0.05)
    raise AssertionError(f"{job} has not ended")


def test_a_call_in_a_container(cromwell: Cromwell, service: Service) -> None:
    """It runs at the container's paths; its outputs, its glob and its return code are in Cromwell's folder; then it is dead."""
    call = Call(
        cromwell,
        "echo hello; echo warning >&2; pwd > where; touch a.txt b.txt",
        path="call-scatter/shard-2/sub/11111111-2222-3333-4444-555555555555/call-hello/attempt-2",
        glob="*.txt",
        memory_mb=300,
    )
    job = call.submit()
    assert call.wait() == 0
    assert (call.file("stdout"), call.file("stderr")) == ("hello\n", "warning\n")
    assert call.file("stderr.background") == "warning\n"
    assert call.file("where").startswith("/cromwell-executions/hello/")
    assert call.file("glob-0.list") == "a.txt\nb.txt\n"
    assert over(service, job) == "SUCCEEDED"
    assert not call.alive()
    said = service.get(f"/api/v1/workflows/{job}/document")["call"]
    assert said == {
        "run": call.run,
        "run_name": "hello",
        "source": "cromwell",
        "node": "hello.scatter.hello",
        "task": "call-scatter/shard-2/sub/11111111-2222-3333-4444-555555555555/call-hello",
        "shard": 2,
        "attempt": 2,
    }


def test_a_call_without_a_container(service: Service, tmp_path: Path) -> None:
    """It runs at the paths of the machine."""
    call = Call(Cromwell(CONF, tmp_path / "plain", service.url), "pwd > where", docker=None)
    call.submit()
    assert call.wait() == 0
    assert call.file("where") == f"{call.execution}\n"


def test_the_commands_own_return_code_is_cromwells(cromwell: Cromwell, service: Service) -> None:
    """3 is 3: the script ends well after having written it, so that the job has succeeded; Cromwell judges."""
    call = Call(cromwell, "exit 3")
    job = call.submit()
    assert call.wait() == 3
    assert over(service, job) == "SUCCEEDED"
    assert service.get(f"/api/v1/workflows/{job}")["returned"] == {"3": 1}
    newest = service.get("/api/v1/workflows")["workflows"][0]  # the run of which the job is the only call
    assert newest["returned"] == {"3": 1}


def test_a_job_out_of_memory_can_be_tried_again(cromwell: Cromwell, service: Service) -> None:
    """Its return code is 79, whatever killed it: 137 would be read as an abort."""
    call = Call(
        cromwell,
        f"{shutil.which('python3')} -c 'x = b\"a\" * (900 << 20); input()' < /dev/zero",
        memory_mb=200,
    )
    job = call.submit()
    code = call.wait()
    assert code == 79
    assert code not in ABORTS
    assert over(service, job) == "FAILED"
    assert not call.alive()


def test_a_job_that_takes_too_long_can_be_tried_again(cromwell: Cromwell, service: Service) -> None:
    """Three seconds are over: 79."""
    call = Call(cromwell, HELD, timeout_minutes=Maybe("0.05"))
    job = call.submit()
    assert call.wait() == 79
    assert over(service, job) == "FAILED"
    assert judged(call.execution, done=True, factor=2.0) == "failed"


def test_a_command_that_was_killed_alone_can_be_tried_again(cromwell: Cromwell) -> None:
    """A kernel may kill one process for want of memory, and leave the script: what it writes is 79, not 137."""
    call = Call(cromwell, "sh -c 'kill -9 $$'")
    call.submit()
    assert call.wait() == 79
    assert judged(call.execution, done=True) == "failed"
    assert judged(call.execution, done=True, factor=2.0) == "more memory"


def test_an_abort(cromwell: Cromwell, service: Service) -> None:
    """The job is cancelled, 143 stays, nothing of it runs on, and a second kill is as good as the first."""
    call = Call(cromwell, "touch started; " + HELD)
    job = call.submit()
    started(call)
    assert call.alive()
    call.abort()
    assert over(service, job) == "CANCELLED"
    assert call.return_code() == 143
    assert not call.alive()
    call.abort()
    assert (call.execution / "stderr.kill").read_text() == ""
    assert call.return_code() == 143


def test_an_operator_cancels_a_job(cromwell: Cromwell, service: Service) -> None:
    """143 is there when the cancel has been answered: Cromwell takes it for an abort, as the CANCELED of a TES task."""
    call = Call(cromwell, "touch started; " + HELD)
    job = call.submit()
    started(call)
    service.get(f"/api/v1/workflows/{job}/cancel", "POST")
    assert call.return_code() == 143
    assert over(service, job) == "CANCELLED"
    assert call.return_code() == 143
    assert judged(call.execution, done=True) == "aborted"
    assert not (call.execution / "memory_retry_rc").exists()


def test_an_operator_cancels_a_run(cromwell: Cromwell, service: Service) -> None:
    """By Cromwell's id of it. The call that has not begun has its return code as well, and the one that had ended keeps its own."""
    ended = Call(cromwell, "exit 4", path="call-a")
    ended.submit()
    assert ended.wait() == 4
    running = Call(cromwell, "touch started; " + HELD, path="call-b", run=ended.run)
    waiting = Call(cromwell, "true", path="call-c", run=ended.run, cpu=400)
    running.submit()
    waiting.submit()
    started(running)
    service.get(f"/api/v1/workflows/{ended.run}/cancel", "POST")
    assert [call.return_code() for call in (ended, running, waiting)] == [4, 143, 143]


def test_a_return_code_that_nobody_could_write(cromwell: Cromwell, service: Service) -> None:
    """check-alive writes it as soon as it knows that the job is over, so that Cromwell need not wait for it as long again."""
    cancelled = Call(cromwell, "touch started; " + HELD)
    job = cancelled.submit()
    started(cancelled)
    service.get(f"/api/v1/workflows/{job}/cancel", "POST")
    assert over(service, job) == "CANCELLED"
    (cancelled.execution / "rc").unlink()  # as where the service does not see the folder
    unknown = Call(cromwell, "true")
    unknown.job = "nosuchjob"
    assert (cancelled.alive(), unknown.alive()) == (False, False)
    assert (cancelled.return_code(), unknown.return_code()) == (143, 79)
    assert not list(cromwell.root.rglob("rc.alive"))
    (unknown.execution / "rc").write_text("0\n")
    assert not unknown.alive()
    assert unknown.return_code() == 0


GREEDY = f"{shutil.which('python3')} -c 'x = b\"a\" * (300 << 20); import time; time.sleep(2)'"


def test_a_job_gets_more_memory_until_it_has_enough(cromwell: Cromwell, service: Service) -> None:
    """`memory_retry_multiplier: 2.0`: 100, 200 and 400 MB, since flowsched says what ended the first two."""
    seen, memory = [], 100
    while (verdict := run_with(cromwell, memory)) == "more memory":
        seen.append(memory)
        memory *= 2
    assert (verdict, seen, memory) == ("done", [100, 200], 400)


def run_with(cromwell: Cromwell, memory_mb: int) -> str:
    """One attempt of a call that needs 300 MB."""
    call = Call(cromwell, GREEDY, memory_mb=memory_mb)
    call.submit()
    call.wait()
    return judged(call.execution, done=True, factor=2.0)


def test_the_service_dies_and_comes_back(cromwell: Cromwell, service: Service) -> None:
    """Meanwhile the job lives, for all Cromwell hears; and it ends as if nothing had been."""
    call = Call(cromwell, "touch started; " + HELD)
    job = call.submit()
    started(call)
    service.kill()
    assert call.alive()
    service.start()
    assert call.alive()
    (call.execution / "go").touch()
    assert call.wait() == 0
    assert over(service, job) == "SUCCEEDED"
    assert not call.alive()


def test_a_submission_while_the_service_is_away(cromwell: Cromwell, service: Service) -> None:
    """It waits, and makes one job."""
    before = len(service.get("/api/v1/workflows?limit=100")["workflows"])
    service.kill()
    call = Call(cromwell, "echo hello")
    submitting = threading.Thread(target=call.submit)
    submitting.start()
    said = call.execution / "stderr.submit"
    for _ in range(200):
        if said.exists() and "will try again" in said.read_text():
            break
        time.sleep(0.05)
    service.start()
    submitting.join(200)
    assert call.job
    assert call.wait() == 0
    assert len(service.get("/api/v1/workflows?limit=100")["workflows"]) == before + 1


def test_a_repeated_submission_is_the_same_job(cromwell: Cromwell, service: Service) -> None:
    """Cromwell died before it kept the id, and submits the same attempt once more: one job, one run."""
    call = Call(cromwell, "echo once >> ../count; touch started; " + HELD)
    first = call.submit()
    started(call)
    assert call.submit() == first
    (call.execution / "go").touch()
    assert call.wait() == 0
    assert (call.cwd / "count").read_text() == "once\n"


def test_what_the_service_refuses_fails_the_call(cromwell: Cromwell) -> None:
    """A queue that cannot be: the reason is in Cromwell's stderr.submit, and nothing was run."""
    call = Call(cromwell, "true", queue=Maybe("no'such $(touch pwned) queue"))
    with pytest.raises(SubmitFailed, match=r"\$\.queue: found \"no'such \$\(touch pwned\) queue\""):
        call.submit()
    assert not list(call.cwd.rglob("pwned"))
