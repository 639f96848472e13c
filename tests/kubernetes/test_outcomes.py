"""What statuses of our own pods mean: as kubelets write them, and as nobody should."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.pods.status import Outcome, Waiting, is_complete, outcome
from flowsched.cluster.kubernetes.step_messages import shortened
from flowsched.executor.protocol import PodEnded, PodGone, PodStarted, Published, Usage
from tests.soak import worlds

NOW = 2_000_000_000_000
STARTED, FINISHED = "2026-11-21T12:00:00Z", "2026-11-21T12:00:09Z"
STARTED_MS, FINISHED_MS = 1_795_262_400_000, 1_795_262_409_000
PUBLISHED = {"outputs": [{"name": "bam", "uri": "flowsched:x/bam", "size_bytes": 12, "value": None}]}


def ended(name: str, code: int, reason: str = "", message: Any = "", **times: str) -> dict[str, Any]:
    text = message if isinstance(message, str) else json.dumps(message)
    state = {"exitCode": code, "reason": reason or ("Error" if code else "Completed"), "message": text}
    return {
        "name": name,
        "state": {"terminated": {**state, "startedAt": STARTED, "finishedAt": FINISHED, **times}},
    }


def runs(name: str) -> dict[str, Any]:
    return {"name": name, "state": {"running": {"startedAt": STARTED}}}


def waits(name: str, reason: str = "PodInitializing", message: str = "") -> dict[str, Any]:
    return {"name": name, "state": {"waiting": {"reason": reason, "message": message}}}


def pod(
    phase: str,
    *statuses: dict[str, Any],
    steps: tuple[str, ...] = ("stage-in", "stage-out"),
    reason: str = "",
    message: str = "",
    node: str = "n1",
    condition: dict[str, str] | None = None,
    **metadata: Any,
) -> Pod:
    """A pod in a phase. Statuses of steps and of the task find their places by name."""
    raw = {
        "metadata": {"name": "a", "namespace": "lab", "uid": "u", **metadata},
        "spec": {
            "nodeName": node,
            "initContainers": [{"name": name} for name in steps],
            "containers": [{"name": "task"}],
        },
        "status": {
            "phase": phase,
            "reason": reason,
            "message": message,
            "conditions": [condition] if condition else [],
            "initContainerStatuses": [each for each in statuses if each["name"] != "task"],
            "containerStatuses": [each for each in statuses if each["name"] == "task"],
        },
    }
    return msgspec.convert(raw, Pod)


def told(seen: Pod, **known: bool) -> tuple[Outcome, ...]:
    return outcome(seen, "fs-a", NOW, **known)


def final(seen: Pod, **known: bool) -> PodEnded | PodGone:
    last = told(seen, **known)[-1]
    assert isinstance(last, PodEnded | PodGone), last
    return last


STAGED = ended("stage-in", 0, message={"bytes_local": 3, "bytes_moved": 4})
WELL = (STAGED, ended("stage-out", 0, message=PUBLISHED), ended("task", 0))
#: The deletion was asked for in the second in which the task ended, and one second later.
DELETED_AT_END = {"deletionTimestamp": "2026-11-21T12:00:39Z", "deletionGracePeriodSeconds": 30}
DELETED_LATER = {"deletionTimestamp": "2026-11-21T13:00:10Z", "deletionGracePeriodSeconds": 3600}


# --- the task's own ends -------------------------------------------------------------------------------------


def test_success() -> None:
    """Started and ended when the task was; outputs as stage-out published them, bytes as stage-in counted them."""
    assert told(pod("Succeeded", *WELL)) == (
        PodStarted("fs-a", STARTED_MS),
        PodEnded(
            "fs-a",
            FINISHED_MS,
            0,
            outputs=(Published("bam", "flowsched:x/bam", 12, None),),
            usage=Usage(bytes_local=3, bytes_moved=4),
            ran_ms=9_000,
        ),
    )


@pytest.mark.parametrize(
    ("times", "ran_ms"),
    [
        ({"startedAt": "2026-11-21T12:59:00Z", "finishedAt": "2026-11-21T13:00:00Z"}, 60_000),
        ({"startedAt": "2026-11-21T12:00:00Z", "finishedAt": "2026-11-21T11:00:00Z"}, None),
        ({"startedAt": "1970-01-01T00:00:00Z"}, None),
    ],
)
def test_how_long_it_ran_by_its_kubelets_clock(times: dict[str, str], ran_ms: int | None) -> None:
    """A clock that was set back meanwhile, or a moment that is missing, says nothing."""
    end = final(pod("Failed", STAGED, ended("task", 1, **times)))
    assert end.ran_ms == ran_ms


def test_a_task_without_outputs() -> None:
    """Nobody is asked for any."""
    end = final(pod("Succeeded", STAGED, ended("task", 0), steps=("stage-in",)))
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason, end.outputs) == (0, "", ())


@pytest.mark.parametrize("reason", ["OutputMissing", "OutputRefused", "OutputFailed"])
def test_outputs_that_cannot_be_published(reason: str) -> None:
    """Exit code 0 is no success then; stage-out says why."""
    result = {"outputs": [], "reason": reason, "message": "looked for a.bam"}
    end = final(pod("Succeeded", STAGED, ended("stage-out", 0, message=result), ended("task", 0)))
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason, end.message, end.outputs) == (0, reason, "looked for a.bam", ())


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (ended("stage-out", 137, "OOMKilled"), "stage-out: OOMKilled (137): "),
        (
            ended("stage-out", 1, message="Traceback (most recent call last)"),
            "stage-out: Error (1): Traceback",
        ),
        (ended("stage-out", 0, message='{"outputs": [{"name": 7}]}'), "stage-out: Completed (0): "),
        (
            ended("stage-out", 64, message={"reason": "OrderRefused", "message": "bad signature"}),
            "bad signature",
        ),
        (runs("stage-out"), "it left no result"),
    ],
)
def test_a_stage_out_without_a_result(step: dict[str, Any], words: str) -> None:
    """Nobody knows what was published: that is no success."""
    end = final(pod("Succeeded", STAGED, step, ended("task", 0)))
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason, end.outputs) == (0, "OutputFailed", ())
    assert words in end.message


def test_an_agent_that_cannot_be_reached_is_not_the_tasks_fault() -> None:
    """The task ran, its outputs are lost, and no attempt is charged."""
    result = {"outputs": [], "reason": "AgentUnreachable", "message": "no answer"}
    seen = pod("Succeeded", STAGED, ended("stage-out", 75, message=result), ended("task", 0))
    assert final(seen) == PodGone("fs-a", NOW, "AgentUnreachable", started=True, ran_ms=9_000)


@pytest.mark.parametrize(
    ("task", "code", "reason", "message"),
    [
        (ended("task", 3, message="the last line"), 3, "", "the last line"),
        (ended("task", 139), 139, "", "killed by signal 11"),
        (ended("task", 128), 128, "", ""),
        (ended("task", 137, "OOMKilled"), 137, "OOMKilled", "it used more memory than it may"),
        (ended("task", 1, "OOMKilled", "Killed"), 137, "OOMKilled", "Killed"),
        (ended("task", 137), 137, "", "killed by signal 9"),
    ],
)
def test_a_task_that_fails(task: dict[str, Any], code: int, reason: str, message: str) -> None:
    """Its exit code and what it said last; nothing that stage-out found is published."""
    seen = pod("Failed", STAGED, ended("stage-out", 0, message=PUBLISHED), task)
    usage = Usage(bytes_local=3, bytes_moved=4)
    assert told(seen) == (
        PodStarted("fs-a", STARTED_MS),
        PodEnded("fs-a", FINISHED_MS, code, reason, message, (), usage, ran_ms=9_000),
    )


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ('exec: "align": executable file not found in $PATH', 127),
        ("exec /x: no such file or directory", 127),
        ("exec: permission denied", 126),
    ],
)
def test_a_program_that_cannot_be_started(message: str, code: int) -> None:
    """As in a shell; it has not started, whatever moment the runtime writes down."""
    task = ended("task", 128, "StartError", message, startedAt="1970-01-01T00:00:00Z")
    events = told(pod("Failed", STAGED, task))
    assert len(events) == 1
    assert isinstance(events[0], PodEnded)
    assert (events[0].exit_code, events[0].reason, events[0].message) == (code, "StartFailed", message)


def test_a_timeout() -> None:
    """The pod's deadline is the task's timeout."""
    seen = pod("Failed", STAGED, ended("task", 137), reason="DeadlineExceeded", message="longer than 90 s")
    end = final(seen)
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason, end.message) == (143, "Timeout", "longer than 90 s")
    early = final(pod("Failed", STAGED, waits("task"), reason="DeadlineExceeded", message="longer than 90 s"))
    assert isinstance(early, PodEnded)
    assert (early.exit_code, early.reason) == (143, "Timeout")
    assert "had not started" in early.message


def test_what_the_node_measured() -> None:
    """If it says so at all, and says it well."""
    usage = {"task": {"cpu_ms": 1500, "max_rss_bytes": 7}, "stage-in": {"cpu_ms": 1, "max_rss_bytes": 1}}
    end = final(pod("Succeeded", *WELL, annotations={"flowsched.io/usage": json.dumps(usage)}))
    assert isinstance(end, PodEnded)
    assert end.usage == Usage(cpu_ms=1500, max_rss_bytes=7, bytes_local=3, bytes_moved=4)


def test_what_the_nodes_agent_measured() -> None:
    """It told the last step, which told it on; CPU time only where the node itself does not say it."""
    told = {"outputs": [], "disk_bytes": 12_000_000, "cpu_ms": 1_250, "max_rss_bytes": 77}
    out = ended("stage-out", 0, message=told)
    end = final(pod("Succeeded", STAGED, out, ended("task", 0)))
    assert isinstance(end, PodEnded)
    assert end.usage == Usage(1_250, 77, bytes_local=3, bytes_moved=4, disk_bytes=12_000_000)
    usage = {"task": {"cpu_ms": 1500, "max_rss_bytes": 7}}
    said = {"annotations": {"flowsched.io/usage": json.dumps(usage)}}
    end = final(pod("Succeeded", STAGED, out, ended("task", 0), **said))
    assert isinstance(end, PodEnded)
    assert (end.usage.cpu_ms, end.usage.disk_bytes) == (1_500, 12_000_000)


# --- before the task -----------------------------------------------------------------------------------------


def test_inputs_that_are_not_there() -> None:
    """The task never ran; which datasets are missing is told."""
    lost = ended("stage-in", 66, message={"reason": "InputLost", "lost": ["s3://a", "s3://b"]})
    assert told(pod("Failed", lost, waits("task"))) == (
        PodGone("fs-a", NOW, "InputLost", started=False, lost_inputs=("s3://a", "s3://b")),
    )


def test_an_agent_that_is_not_there() -> None:
    """No attempt is charged."""
    away = ended("stage-in", 75, message={"reason": "AgentUnreachable", "message": "no answer"})
    assert final(pod("Failed", away, waits("task"))) == PodGone("fs-a", NOW, "AgentUnreachable")


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (
            ended("stage-in", 64, message={"reason": "OrderRefused", "message": "a/../b"}),
            "Error (64): a/../b",
        ),
        (ended("stage-in", 137, "OOMKilled"), "stage-in: OOMKilled (137): "),
        (ended("stage-in", 128, "StartError", "no flowsched"), "StartError (128): no flowsched"),
        (ended("injected", 1, message="a mesh's init container"), "injected: Error (1): a mesh's"),
    ],
)
def test_a_step_that_fails(step: dict[str, Any], words: str) -> None:
    """The task cannot be started, and says so."""
    events = told(pod("Failed", step, waits("task")))
    assert len(events) == 1
    assert isinstance(events[0], PodEnded)
    assert (events[0].exit_code, events[0].reason) == (126, "StartFailed")
    assert words in events[0].message


# --- what the cluster did ------------------------------------------------------------------------------------

REFUSALS = [
    "OutOfcpu", "OutOfmemory", "OutOfpods", "OutOfephemeral-storage", "OutOfnvidia.com/gpu", "NodeAffinity", "NodePorts",
    "UnexpectedAdmissionError", "TopologyAffinityError", "SMTAlignmentError", "VolumeAttachmentLimitExceeded", "AppArmor",
]  # fmt: skip


@pytest.mark.parametrize("reason", REFUSALS)
def test_fault_36_a_kubelets_refusal_charges_nobody(reason: str) -> None:
    """It is not admitted: it never ran, and is placed anew."""
    assert told(pod("Failed", reason=reason, message="Pod was rejected")) == (PodGone("fs-a", NOW, reason),)


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("Evicted", "Evicted"),
        ("Preempting", "Preempting"),
        ("Terminated", "NodeShutdown"),
        ("Shutdown", "NodeShutdown"),
        ("NodeLost", "NodeLost"),
    ],
)
def test_interruptions_charge_nobody(reason: str, word: str) -> None:
    """Whether the task had started is what its container says; where nobody says it, it may have."""
    gone = PodGone("fs-a", NOW, word, True, ran_ms=9_000)
    assert final(pod("Failed", STAGED, ended("task", 137), reason=reason)) == gone
    assert final(pod("Failed", STAGED, waits("task"), reason=reason)) == PodGone("fs-a", NOW, word, False)
    assert final(pod("Failed", reason=reason)) == PodGone("fs-a", NOW, word, True)


def test_a_drained_node() -> None:
    """A task that ends in the grace of an eviction was evicted; one that is done by then is done."""
    evicted = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    seen = pod("Failed", STAGED, ended("task", 143), condition=evicted, **DELETED_AT_END)
    assert final(seen) == PodGone("fs-a", NOW, "EvictionByEvictionAPI", True, ran_ms=9_000)
    done = final(pod("Succeeded", *WELL, condition=evicted, **DELETED_AT_END))
    assert isinstance(done, PodEnded)
    assert (done.exit_code, done.reason) == (0, "")
    unsaid = {**evicted, "reason": ""}
    assert final(pod("Failed", STAGED, ended("task", 143), condition=unsaid)) == PodGone(
        "fs-a", NOW, "Evicted", True, ran_ms=9_000
    )
    not_any_more = {**evicted, "status": "False"}
    assert isinstance(final(pod("Failed", STAGED, ended("task", 1), condition=not_any_more)), PodEnded)


@pytest.mark.parametrize(
    ("seen", "started"),
    [
        (pod("Failed", STAGED, ended("task", 143), **DELETED_AT_END), True),
        (pod("Failed", STAGED, ended("task", 137), **DELETED_AT_END), True),
        (pod("Failed", STAGED, ended("task", 1), **DELETED_AT_END), True),
        (pod("Failed", STAGED, ended("task", 137), **DELETED_LATER), True),
        (pod("Failed", STAGED, ended("task", 137, "ContainerStatusUnknown"), **DELETED_AT_END), True),
        (pod("Failed", STAGED, ended("task", 128, "StartError", "cancelled"), **DELETED_AT_END), False),
        (pod("Failed", STAGED, waits("task"), **DELETED_AT_END), False),
        (pod("Failed", ended("stage-in", 143), waits("task"), **DELETED_AT_END), False),
        (pod("Failed", ended("stage-in", 255, "Unknown"), waits("task"), **DELETED_AT_END), False),
        (pod("Failed", ended("injected", 1), waits("task"), **DELETED_AT_END), False),
        (pod("Failed", STAGED, ended("task", 0), **DELETED_AT_END), True),
        (pod("Succeeded", STAGED, runs("stage-out"), ended("task", 0), **DELETED_AT_END), True),
        (pod("Succeeded", STAGED, ended("stage-out", 137), ended("task", 0), **DELETED_LATER), True),
    ],
)
def test_what_a_deletion_ends_charges_nobody(seen: Pod, started: bool) -> None:
    """`kubectl delete pod` with its grace: the pod is there for as long as the task takes to end, and then it has failed."""
    for gone in (final(seen), final(seen, deleted=True)):
        assert isinstance(gone, PodGone)
        assert (gone.at_ms, gone.reason, gone.started) == (NOW, "PodDeleted", started)
        assert gone.ran_ms in ((9_000, None) if started else (None,))


def test_a_task_that_is_told_to_end_and_leaves_without_its_outputs() -> None:
    """It returns 0 for SIGTERM. What it would have written yet is missing: that is no success and no failure of its own."""
    missing = {"outputs": [], "reason": "OutputMissing", "message": "looked for a.bam"}
    out = ended("stage-out", 0, message=missing)
    seen = pod("Succeeded", STAGED, out, ended("task", 0), **DELETED_AT_END)
    assert final(seen) == PodGone("fs-a", NOW, "PodDeleted", True, ran_ms=9_000)
    assert final(seen, released=True) == PodGone("fs-a", NOW, "Released", True, ran_ms=9_000)
    own = final(pod("Succeeded", STAGED, out, ended("task", 0), **DELETED_LATER))
    assert isinstance(own, PodEnded)
    assert own.reason == "OutputMissing"


def test_a_deletion_leaves_what_had_ended_before() -> None:
    """A task that is done is done, and one that failed by itself has failed: so has one whose inputs are lost."""
    well = final(pod("Succeeded", *WELL, **DELETED_AT_END))
    assert isinstance(well, PodEnded)
    assert (well.exit_code, well.reason, len(well.outputs)) == (0, "", 1)
    for failed, code, reason in (
        (ended("task", 4), 4, ""),
        (ended("task", 137, "OOMKilled"), 137, "OOMKilled"),
    ):
        own = final(pod("Failed", STAGED, failed, **DELETED_LATER))
        assert isinstance(own, PodEnded)
        assert (own.exit_code, own.reason) == (code, reason)
    lost = ended("stage-in", 66, message={"reason": "InputLost", "lost": ["s3://a"]})
    seen = pod("Failed", lost, waits("task"), **DELETED_AT_END)
    assert final(seen) == PodGone("fs-a", NOW, "InputLost", lost_inputs=("s3://a",))
    late = pod("Failed", STAGED, ended("task", 137), reason="DeadlineExceeded", **DELETED_AT_END)
    timeout = final(late)
    assert isinstance(timeout, PodEnded)
    assert timeout.reason == "Timeout"


def test_a_container_that_the_kubelet_has_lost() -> None:
    """The node was restarted under it."""
    lost = ended(
        "task", 137, "ContainerStatusUnknown", "The container could not be located", startedAt=FINISHED
    )
    assert final(pod("Failed", STAGED, lost)) == PodGone("fs-a", NOW, "ContainerStatusUnknown", True)


def test_a_container_that_ran_when_its_node_lost_power() -> None:
    """The runtime, containerd 2.4, says so after the restart, of the task, of a step before it, and of stage-in. A program that
    ends with 255 is another matter, and no signal has killed it.
    """
    cut = ended("task", 255, "Unknown")
    assert final(pod("Failed", STAGED, cut)) == PodGone("fs-a", NOW, "ContainerStatusUnknown", True)
    staging = ended("stage-in", 255, "Unknown")
    assert final(pod("Failed", staging)) == PodGone("fs-a", NOW, "ContainerStatusUnknown", False)
    own = final(pod("Failed", STAGED, ended("task", 255, "Error")))
    assert isinstance(own, PodEnded)
    assert (own.exit_code, own.message) == (255, "")


@pytest.mark.parametrize(
    ("seen", "started"),
    [
        (pod("Pending", node=""), False),
        (pod("Pending"), False),
        (pod("Running", STAGED, waits("task")), False),
        (pod("Running", STAGED, runs("task")), True),
        (pod("Running"), True),
        (pod("Unknown"), True),
        (pod(""), True),
        (pod("", node=""), False),
    ],
)
def test_a_pod_deleted_behind_our_back(seen: Pod, started: bool) -> None:
    """It is gone, as far as it had got."""
    assert final(seen, deleted=True) == PodGone("fs-a", NOW, "PodDeleted", started)
    assert not any(isinstance(event, PodEnded | PodGone) for event in told(seen))


def test_why_a_pod_was_deleted() -> None:
    """By the garbage collector of a dead node's pods, say."""
    collected = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}
    seen = pod("Running", STAGED, runs("task"), condition=collected)
    assert final(seen, deleted=True) == PodGone("fs-a", NOW, "DeletionByPodGC", True)


def test_a_failed_pod_that_says_nothing() -> None:
    """What cannot be known counts as started, since it may have run."""
    assert final(pod("Failed")) == PodGone("fs-a", NOW, "PodFailed", True)
    assert final(pod("Failed", node="")) == PodGone("fs-a", NOW, "PodFailed", False)
    end = final(pod("Failed", ended("task", 0)))
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason) == (0, "PodFailed")


# --- what we did ---------------------------------------------------------------------------------------------


def test_a_released_pod() -> None:
    """Its end is told with the exit code it had. One that ended well within its grace has done its work, if it is published."""
    seen = pod("Failed", STAGED, ended("task", 143), **DELETED_AT_END)
    end = final(seen, released=True)
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason) == (143, "Released")
    well = final(pod("Succeeded", *WELL, **DELETED_AT_END), released=True)
    assert isinstance(well, PodEnded)
    assert (well.exit_code, well.reason, len(well.outputs)) == (0, "", 1)
    cut_off = final(
        pod("Succeeded", STAGED, runs("stage-out"), ended("task", 0), **DELETED_AT_END), released=True
    )
    assert isinstance(cut_off, PodEnded)
    assert (cut_off.exit_code, cut_off.reason, cut_off.outputs) == (0, "Released", ())


def test_a_release_that_came_too_late() -> None:
    """A task that had ended before it was asked to has its own end."""
    failed = final(pod("Failed", STAGED, ended("task", 4), **DELETED_LATER), released=True)
    assert isinstance(failed, PodEnded)
    assert (failed.exit_code, failed.reason) == (4, "")
    done = final(pod("Succeeded", *WELL), released=True)
    assert isinstance(done, PodEnded)
    assert (done.reason, len(done.outputs)) == ("", 1)


@pytest.mark.parametrize(
    ("seen", "started"),
    [
        (pod("Pending", node=""), False),
        (pod("Pending", STAGED, waits("task")), False),
        (pod("Failed", ended("stage-in", 143), waits("task"), **DELETED_AT_END), False),
        (pod("Running", STAGED, runs("task")), True),
    ],
)
def test_a_pod_released_before_its_end_is_known(seen: Pod, started: bool) -> None:
    """There is none, and never will be."""
    assert final(seen, released=True, deleted=True) == PodGone("fs-a", NOW, "Released", started)


# --- on the way ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "seen",
    [
        pod("Pending", node=""),
        pod("Pending"),
        pod("Pending", waits("stage-in", "ContainerCreating"), waits("task")),
        pod("Pending", runs("stage-in"), waits("task")),
        pod("Running", STAGED, runs("stage-out"), waits("task")),
        pod(""),
        pod("Dreaming"),
    ],
)
def test_a_pod_on_its_way(seen: Pod) -> None:
    """Nothing is wrong."""
    assert told(seen) == (Waiting(),)


def test_a_running_pod_has_started() -> None:
    """Also while stage-out publishes what it left: the end comes with the pod's."""
    started = (PodStarted("fs-a", STARTED_MS),)
    assert told(pod("Running", STAGED, runs("stage-out"), runs("task"))) == started
    assert told(pod("Running", STAGED, runs("stage-out"), ended("task", 0))) == started


@pytest.mark.parametrize(
    ("reason", "message", "permanent"),
    [
        ("InvalidImageName", 'couldn\'t parse image name "a b"', True),
        ("ErrImageNeverPull", "", True),
        ("ErrImagePull", "rpc error: code = NotFound desc = failed to pull and unpack image", True),
        ("ErrImagePull", "pull access denied, repository does not exist or may require authorization", True),
        ("ImagePullBackOff", 'Back-off pulling image "x": ErrImagePull: manifest unknown', True),
        ("ImagePullBackOff", 'Back-off pulling image "x"', False),
        ("ErrImagePull", "dial tcp: lookup registry.test: no such host", False),
        ("ErrImagePull", "toomanyrequests: You have reached your pull rate limit", False),
        ("CreateContainerConfigError", 'secret "aws" not found', True),
        ("ErrImagePull", "unexpected status from HEAD request: 401 Unauthorized", True),
        ("ErrImagePull", "no match for platform in manifest", True),
        ("ErrImagePull", "dial tcp 10.0.0.1:443: connection refused: no such thing", False),
        ("ErrImagePull", "the repository does not exist", True),
        ("ImageInspectError", "", True),
        ("ErrImageNeedsCommand", "", True),
        ("CreateContainerError", "context deadline exceeded", False),
        ("RunContainerError", "exec format error", True),
        ("SomethingNew", "not found", False),
    ],
)
def test_fault_37_a_pod_that_cannot_start(reason: str, message: str, permanent: bool) -> None:
    """It says why, and whether anybody else has to do something about it."""
    seen = pod("Pending", STAGED, waits("task", reason, message))
    assert told(seen) == (Waiting(reason, message, permanent),)


def test_what_is_kept_of_a_message() -> None:
    """Its beginning, in characters that any database takes."""
    assert shortened("a\0b\ud800c") == "a\ufffdb?c"
    assert shortened("x" * 5000) == "x" * 4096


@pytest.mark.parametrize(
    "message", ['{"bytes_local": -1}', '{"bytes_moved": 4611686018427387904}', "[]", "7", ""]
)
def test_counts_that_are_none(message: str) -> None:
    """Nothing was counted then."""
    end = final(
        pod("Succeeded", ended("stage-in", 0, message=message), ended("task", 0), steps=("stage-in",))
    )
    assert isinstance(end, PodEnded)
    assert end.usage == Usage()


def test_a_sidecar_that_fails_again_and_again() -> None:
    """What it said the last time is worth more than that it waits."""
    step = waits("stage-out", "CrashLoopBackOff", "back-off 10s restarting")
    step["lastState"] = ended("stage-out", 1, message="no module named flowsched")["state"]
    message = "stage-out: Error (1): no module named flowsched"
    assert told(pod("Pending", STAGED, step, waits("task"))) == (Waiting("CrashLoopBackOff", message, True),)


def test_what_another_scheduler_says() -> None:
    """Where gangs are handed over; once a node is chosen it does not matter."""
    unschedulable = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/3 nodes",
    }
    assert told(pod("Pending", node="", condition=unschedulable)) == (Waiting("Unschedulable", "0/3 nodes"),)
    assert told(pod("Pending", condition=unschedulable)) == (Waiting(),)


def test_a_node_that_is_not_heard_of() -> None:
    """The pod may still run there."""
    assert told(pod("Unknown")) == (Waiting("NodeUnreachable", "its node has not been heard of"),)


# --- whatever they write -------------------------------------------------------------------------------------


def test_a_message_that_found_no_room() -> None:
    """Then the agent has to be asked for the rest."""
    cut = {**PUBLISHED, "more": True}
    assert not is_complete(pod("Succeeded", STAGED, ended("stage-out", 0, message=cut), ended("task", 0)))
    assert is_complete(pod("Succeeded", *WELL))
    assert is_complete(pod("Succeeded", STAGED, ended("stage-out", 0, message="{"), ended("task", 0)))
    assert is_complete(pod("Pending"))


#: Things that stand where JSON should: of the right kind, nearly so, and not at all.
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)
results = st.fixed_dictionaries(
    {},
    optional={
        "outputs": st.lists(
            st.fixed_dictionaries(
                {},
                optional={
                    "name": st.text() | json_values,
                    "uri": st.text() | json_values,
                    "size_bytes": st.integers() | json_values,
                    "value": st.text() | json_values,
                },
            )
        )
        | json_values,
        "reason": st.sampled_from(["", "OutputMissing", "AgentUnreachable", "Released"]) | json_values,
        "message": st.text() | json_values,
        "lost": st.lists(st.text()) | json_values,
        "bytes_local": st.integers() | json_values,
        "more": st.booleans() | json_values,
    },
)
messages = st.text() | st.one_of(results, json_values).map(json.dumps) | st.just("[" * 100_000)
moments = (
    st.none() | st.sampled_from([STARTED, FINISHED, "1970-01-01T00:00:00Z", "yesterday", ""]) | st.text()
)
reasons = (
    st.sampled_from(["", "Error", "OOMKilled", "StartError", "Evicted", "DeadlineExceeded", "OutOfcpu"])
    | st.text()
)
terminated = st.fixed_dictionaries(
    {"exitCode": st.integers(-(1 << 31), 1 << 31)},
    optional={"reason": reasons, "message": messages, "startedAt": moments, "finishedAt": moments},
)
states = st.one_of(
    st.just({}),
    st.builds(lambda at: {"running": {"startedAt": at}}, moments),
    st.builds(lambda why, what: {"waiting": {"reason": why, "message": what}}, reasons, messages),
    st.builds(lambda end: {"terminated": end}, terminated),
)
statuses = st.fixed_dictionaries(
    {"name": st.sampled_from(["stage-in", "stage-out", "task", "other"]), "state": states},
    optional={"lastState": states},
)
pods = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {},
            optional={
                "annotations": st.dictionaries(st.just("flowsched.io/usage"), messages),
                "deletionTimestamp": moments,
                "deletionGracePeriodSeconds": st.integers(0, 1 << 40),
            },
        ),
        "spec": st.fixed_dictionaries(
            {"initContainers": st.lists(st.sampled_from([{"name": "stage-in"}, {"name": "stage-out"}]))},
            optional={"nodeName": st.text()},
        ),
        "status": st.fixed_dictionaries(
            {},
            optional={
                "phase": st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown", "", "Odd"]),
                "reason": reasons,
                "message": messages,
                "initContainerStatuses": st.lists(statuses, max_size=3),
                "containerStatuses": st.lists(statuses, max_size=2),
                "conditions": st.lists(
                    st.fixed_dictionaries(
                        {"type": st.sampled_from(["DisruptionTarget", "PodScheduled"])},
                        optional={"status": st.sampled_from(["True", "False"]), "reason": reasons},
                    ),
                    max_size=2,
                ),
            },
        ),
    }
)


@pytest.mark.soak
@settings(max_examples=worlds(100, 5000), deadline=None)
@given(pods, st.booleans(), st.booleans())
def test_fault_28_no_status_breaks_us(raw: dict[str, Any], released: bool, deleted: bool) -> None:
    """Any status gives at most one start, then one end or one thing that is waited for; all of it can be stored."""
    events = told(msgspec.convert(raw, Pod), released=released, deleted=deleted)
    kinds = [type(event) for event in events]
    assert kinds[:-1] in ([], [PodStarted])
    assert (kinds[-1] in (PodEnded, PodGone)) >= (
        raw["status"].get("phase") in ("Succeeded", "Failed") or deleted
    )
    assert all(event.name == "fs-a" for event in events if not isinstance(event, Waiting))
    msgspec.json.encode(events)
    for event in events:
        if not isinstance(event, PodStarted):
            assert "\0" not in event.reason
        if isinstance(event, PodEnded):
            assert len(event.message) <= 4096
            assert event.at_ms > 0
            assert not event.outputs or (event.exit_code, event.reason) == (0, "")
