"""The status of our own pods: it waits, it started, it ended, it is gone, and what its containers report of it. Pure.

The cause decides. An end that the task caused (PodEnded) uses up an attempt. An end that the cluster caused, a refusal by the
kubelet, an eviction, a lost node, missing inputs, uses up none (PodGone). A container's message is data: whatever it is, it
becomes a text, never an error of ours.

    phase Succeeded                the task's exit code is 0, and stage-out's result decides the rest
    phase Failed, with a reason    DeadlineExceeded is the task's timeout; every other reason is the cluster's
    phase Failed, without          an init container or the task itself failed
    DELETED                        as far as it had got

A container that ends badly after its pod's deletion was asked for has been ended by the deletion, whatever its exit code is.

A container task runs in several containers, its steps. It starts with the first of them; the one that failed is what failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from flowsched.cluster.kubernetes.exit_codes import INPUT_LOST, NOT_LAID, UNREACHABLE
from flowsched.cluster.kubernetes.objects.labels import STEPS, USAGE
from flowsched.cluster.kubernetes.objects.metadata import condition_of, moment_ms
from flowsched.cluster.kubernetes.objects.pod import ContainerStatus, Pod, Terminated
from flowsched.cluster.kubernetes.pods.container_task import IGNORED, STEP
from flowsched.cluster.kubernetes.pods.manifest import STAGE_IN, STAGE_OUT, TASK
from flowsched.cluster.kubernetes.step_messages import (
    Result,
    Staged,
    read_result,
    read_staged,
    read_usage,
    shortened,
)
from flowsched.cluster.node.image_pulls import is_hopeless
from flowsched.executor.protocol import (
    ContainerReport,
    PodEnded,
    PodGone,
    PodStarted,
    Published,
    StepEnd,
    Usage,
)

# ---- why a pod has not started ----
#
# The kubelet's reasons for its containers, and whether waiting helps.


#: Every pod says these on its way.
_ORDINARY: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
#: Only the pod's author or an administrator can remove these causes: an invalid image name, an image that was never brought
#: to the node, a Secret or ConfigMap that is missing, a step that fails again and again.
_PERMANENT: Final = frozenset(
    {
        "InvalidImageName",
        "ErrImageNeverPull",
        "ImageInspectError",
        "CreateContainerConfigError",
        "CrashLoopBackOff",
        "ErrImageNeedsCommand",
    }
)
#: The kubelet could not pull an image, and will try again.
PULLS: Final = frozenset({"ErrImagePull", "ImagePullBackOff"})
#: These depend on what the registry or the runtime says.
_ASK_THE_MESSAGE: Final = PULLS | {"RunContainerError", "CreateContainerError"}


@dataclass(frozen=True, slots=True)
class Waiting:
    """The pod has not started.

    Args:
        reason: One word; "" = nothing is wrong, it is on its way.
        message: In the words of Kubernetes.
        permanent: Waiting will not change it, unless a user or an administrator acts.
    """

    reason: str = ""
    message: str = ""
    permanent: bool = False


def waiting_for(pod: Pod) -> Waiting:
    """The reason why a pod has not started: of its first container with an unusual one, else its scheduler's."""
    status = pod.status
    for container in (*status.init_container_statuses, *status.container_statuses):
        waiting = container.state.waiting
        if waiting is not None and waiting.reason not in _ORDINARY:
            message = _last_words(container) or waiting.message
            asked = waiting.reason in _ASK_THE_MESSAGE and is_hopeless(waiting.message)
            permanent = waiting.reason in _PERMANENT or asked
            return Waiting(shortened(waiting.reason), shortened(message), permanent)
    if status.phase == "Unknown":
        return Waiting("NodeUnreachable", shortened(status.message or "its node has not been heard of"))
    scheduled = condition_of(status.conditions, "PodScheduled")
    if scheduled is not None and scheduled.status == "False" and not pod.spec.node_name:
        return Waiting(shortened(scheduled.reason) or "Unschedulable", shortened(scheduled.message))
    return Waiting()


def _last_words(container: ContainerStatus) -> str:
    """How a container that is to be started again ended the last time."""
    ended = container.last_state.terminated
    if ended is None:
        return ""
    return f"{container.name}: {ended.reason} ({ended.exit_code}): {ended.message}"


# ---- from a status to an event ----


Final_ = PodEnded | PodGone
Outcome = PodStarted | PodEnded | PodGone | Waiting

TIMEOUT_CODE: Final = 143  #: 128 + SIGTERM, as on a local cluster
OOM_CODE: Final = 137
#: Exit codes of a program that cannot be run, as a shell has them.
_NOT_FOUND: Final = 127
_NOT_RUNNABLE: Final = 126
#: Words of a kubelet for a container that could not be started at all.
_START_REASONS: Final = frozenset({"StartError", "ContainerCannotRun"})
#: The kubelet's reason when it has lost track of a container: the node was restarted, say.
_LOST_TRACK: Final = "ContainerStatusUnknown"
#: Reason and exit code that containerd gives to a container that ran when the node went down.
_CUT_OFF: Final = ("Unknown", 255)
#: Exit codes from 128 to here name the signal that killed a program: Linux has 64 signals.
_LAST_SIGNAL_CODE: Final = 128 + 64
#: Exit codes of what SIGTERM and SIGKILL have ended.
_SIGNALLED: Final = frozenset({TIMEOUT_CODE, OOM_CODE})
#: Reasons of failed pods that may have run even where no container's status says so.
_INTERRUPTED: Final = frozenset({"Evicted", "Preempting", "NodeShutdown", "NodeLost", "PodDeleted"})
#: A word of the kubelet's that says too little.
_RENAMED: Final = {"Terminated": "NodeShutdown", "Shutdown": "NodeShutdown"}


@dataclass(frozen=True, slots=True)
class _ObservedPod:
    """One of our pods, and the other facts that are known of it."""

    pod: Pod
    name: str
    now_ms: int
    released: bool
    deleted: bool

    def container(self, name: str) -> ContainerStatus | None:
        """The status of one of its containers, of whatever kind."""
        status = self.pod.status
        everyone = (*status.init_container_statuses, *status.container_statuses)
        return next((each for each in everyone if each.name == name), None)

    def terminated(self, name: str) -> Terminated | None:
        """How a container ended; the last time, if it is to be started again."""
        status = self.container(name)
        return None if status is None else status.state.terminated or status.last_state.terminated

    @property
    def steps(self) -> tuple[str, ...]:
        """The containers of the task, in the order in which they run: one, but for container tasks of several steps."""
        return step_names(self.pod)

    @property
    def last(self) -> Terminated | None:
        """How the task ended: its own container, or the step before it that failed."""
        for name in self.steps[:-1]:
            ended = self.terminated(name)
            if ended is not None and (ended.exit_code != 0 or ended.reason == "OOMKilled"):
                return ended
        return self.terminated(TASK)

    @property
    def started_ms(self) -> int | None:
        """When the task's first process started; None = it did not, as far as one can see."""
        first = self.steps[0]
        status = self.container(first)
        if status is None:
            return None
        ended = self.terminated(first)
        if ended is not None:
            if ended.reason in _START_REASONS:
                return None
            return _moment(ended.started_at) or _moment(ended.finished_at) or self.now_ms
        running = status.state.running
        return None if running is None else _moment(running.started_at) or self.now_ms

    @property
    def ran_ms(self) -> int | None:
        """How long the task ran, by its kubelet's clock; None = the kubelet does not tell, or had lost track of it."""
        first, last = self.terminated(self.steps[0]), self.last
        if first is None or last is None or _is_lost(last):
            return None
        began, ended = _moment(first.started_at), _moment(last.finished_at)
        return None if began is None or ended is None or ended < began else ended - began

    def gone(self, reason: str, started: bool | None = None, lost: tuple[str, ...] = ()) -> PodGone:
        """An end that is not the task's doing."""
        if started is None:
            started = self.started_ms is not None
        ran_ms = self.ran_ms if started else None
        return PodGone(self.name, self.now_ms, shortened(reason), started, lost, ran_ms)

    def ended(
        self, code: int, reason: str = "", message: str = "", outputs: tuple[Published, ...] = ()
    ) -> PodEnded:
        """An end of the task's own."""
        task = self.last
        unmeasured = self.started_ms is not None and self.ran_ms is None
        at_ms = (_moment(task.finished_at) if task and not unmeasured else None) or self.now_ms
        result = _result_of(self.pod)
        if code and result is not None and not result.reason:  # a warning of stage-out beside the failure
            message = "; ".join(filter(None, (message, result.message)))
        why, words = shortened(reason), shortened(message)
        report = self._report()
        return PodEnded(
            self.name, at_ms, code, why, words, outputs, self._usage(), report, ran_ms=self.ran_ms
        )

    def _report(self) -> ContainerReport | None:
        """The report of a container task; None for any other task."""
        if STEPS not in self.pod.metadata.annotations:
            return None
        out = self.terminated(STAGE_OUT)
        result = read_result(out.message) if out else None
        steps = []
        for number, name in enumerate(self.steps):
            ended = self.terminated(name)
            if ended is None or ended.reason in _START_REASONS or _is_lost(ended):
                break
            ends = result.stdio[number] if result is not None and number < len(result.stdio) else ("", "")
            moments = (_moment(ended.started_at) or self.now_ms, _moment(ended.finished_at) or self.now_ms)
            steps.append(StepEnd(_real_code(ended), *moments, shortened(ends[0]), shortened(ends[1])))
        if result is None:
            return ContainerReport(tuple(steps))
        return ContainerReport(tuple(steps), result.files, result.returned)

    def _usage(self) -> Usage:
        staged, out = self._staged(), self.terminated(STAGE_OUT)
        result = read_result(out.message) if out else None
        annotation = self.pod.metadata.annotations.get(USAGE, "")
        used = [read_usage(annotation, name) for name in self.steps]
        return Usage(
            cpu_ms=sum(each.cpu_ms for each in used) or (result.cpu_ms if result else 0),
            max_rss_bytes=max(each.max_rss_bytes for each in used) or (result.max_rss_bytes if result else 0),
            bytes_local=staged.bytes_local,
            bytes_moved=staged.bytes_moved,
            disk_bytes=result.disk_bytes if result and result.disk_bytes is not None else -1,
        )

    def _staged(self) -> Staged:
        step = self.terminated(STAGE_IN)
        return read_staged(step.message if step else "")


def outcome(
    pod: Pod, name: str, now_ms: int, *, released: bool = False, deleted: bool = False
) -> tuple[Outcome, ...]:
    """Read the events of an attempt from its pod's status.

    Args:
        pod: One of ours, as it was last seen.
        name: The engine's name of it.
        now_ms: When it was seen: ends that the cluster does not date have this moment.
        released: Whether we have asked for its end.
        deleted: Whether the object is no more.

    Returns:
        In this order: PodStarted if its task has ever run; then its end if it has one (nothing follows an end), else what it
        waits for (`Waiting` with "" if it goes on well) while its task has not started; for good, if a later step of it cannot.
    """
    observed = _ObservedPod(pod, name, now_ms, released, deleted)
    started_ms = observed.started_ms
    found: tuple[Outcome, ...] = () if started_ms is None else (PodStarted(name, started_ms),)
    final = _final(observed)
    if final is not None:
        return (*found, final)
    if found and len(observed.steps) == 1:
        return found
    waiting = waiting_for(pod)
    return (*found, waiting) if waiting.permanent or not found else found


def step_names(pod: Pod) -> tuple[str, ...]:
    """The containers of a pod's task, in the order in which they run: one, but for container tasks of several steps."""
    inits = (each.name for each in pod.spec.init_containers)
    return (*(name for name in inits if name.startswith(STEP)), TASK)


def is_complete(pod: Pod) -> bool:
    """Whether stage-out's message holds all that it published; else the node's agent knows the rest (and only that)."""
    result = _result_of(pod)
    return result is None or not result.more


def undelivered(pod: Pod) -> int:
    """How many of the files that a container task has delivered its message had no room for."""
    result = _result_of(pod)
    return 0 if result is None else result.undelivered


def _result_of(pod: Pod) -> Result | None:
    status = next((each for each in pod.status.init_container_statuses if each.name == STAGE_OUT), None)
    ended = None if status is None else status.state.terminated or status.last_state.terminated
    return None if ended is None else read_result(ended.message)


def _final(observed: _ObservedPod) -> Final_ | None:
    """The pod's end, if it has come."""
    match observed.pod.status.phase:
        case "Succeeded":
            return _succeeded(observed)
        case "Failed":
            return _failed(observed)
    if not observed.deleted:
        return None
    started = _may_have_run(observed)
    return observed.gone(_taken(observed, None) or "PodDeleted", started)


def _succeeded(observed: _ObservedPod) -> Final_:
    """The task succeeded; its end depends on its outputs."""
    for name in observed.steps:
        ended = observed.terminated(name)
        if ended is not None and _real_code(ended) and (taken := _taken(observed, ended)):
            return observed.gone(taken)  # its own failures are to be ignored, and this is none
    if not any(each.name == STAGE_OUT for each in observed.pod.spec.init_containers):
        return observed.ended(0)
    step = observed.terminated(STAGE_OUT)
    result = read_result(step.message) if step else None
    if result is None and _was_released(observed):
        return observed.ended(0, "Released")  # its grace was over before its outputs were published
    # It was told to end before it had written all of them, or its grace was over before they were published.
    taken = _taken(observed, step if result is None else observed.last)
    if taken and (result is None or result.reason):
        return observed.gone(taken, started=True)
    if result is None:
        why = f"{step.reason} ({step.exit_code}): {step.message}" if step else "it left no result"
        return observed.ended(0, "OutputFailed", f"stage-out: {why}")
    match result.reason:
        case "":
            return observed.ended(0, outputs=result.published)
        case "AgentUnreachable":
            return observed.gone(result.reason, started=True)
        case "OrderRefused":
            return observed.ended(0, "OutputFailed", result.message)
    return observed.ended(0, result.reason, result.message)


def _failed(observed: _ObservedPod) -> Final_:
    status = observed.pod.status
    reason = _RENAMED.get(status.reason, status.reason)
    task = observed.last
    if reason == "DeadlineExceeded":
        early = "" if task else "; its task had not started: pulling images and laying out inputs count"
        return observed.ended(TIMEOUT_CODE, "Timeout", status.message + early)
    if reason:
        return observed.gone(reason, _may_have_run(observed) if reason in _INTERRUPTED else None)
    if task is None or _is_lost(task):
        return _never_ended(observed, task)
    if _was_released(observed):
        return observed.ended(task.exit_code, "Released")
    taken = _taken(observed, task)
    return observed.gone(taken) if taken else _task_failed(observed, task)


def _never_ended(observed: _ObservedPod, task: Terminated | None) -> Final_:
    """The pod has failed, and its task has no end of its own."""
    if observed.released:
        return observed.gone("Released", started=task is not None)
    if task is not None:
        return observed.gone(_taken(observed, task) or _LOST_TRACK, started=True)
    for step in observed.pod.status.init_container_statuses:
        ended = step.state.terminated
        if ended is not None and ended.exit_code != 0 and step.name != STAGE_OUT:
            return _step_failed(observed, step.name, ended)
    return observed.gone(_taken(observed, None) or "PodFailed", _may_have_run(observed))


def _is_lost(ended: Terminated) -> bool:
    """Whether nothing is known of how a container ended, since its node or its runtime went down under it."""
    return ended.reason == _LOST_TRACK or (ended.reason, ended.exit_code) == _CUT_OFF


def _step_failed(observed: _ObservedPod, name: str, step: Terminated) -> Final_:
    """A container before the task failed: the task never ran."""
    staged = read_staged(step.message)
    if name == STAGE_IN and step.exit_code == INPUT_LOST:
        return observed.gone("InputLost", started=False, lost=staged.lost)
    if name == STAGE_IN and step.exit_code == UNREACHABLE:
        return observed.gone(staged.reason or "AgentUnreachable", started=False)
    if taken := _taken(observed, step):
        return observed.gone(taken, started=False)
    if _is_lost(step):
        return observed.gone(_LOST_TRACK, started=False)
    words = staged.message or step.message
    if name == STAGE_IN and step.exit_code == NOT_LAID:
        return observed.ended(_NOT_RUNNABLE, staged.reason or "StartFailed", words)
    return observed.ended(_NOT_RUNNABLE, "StartFailed", f"{name}: {step.reason} ({step.exit_code}): {words}")


def _task_failed(observed: _ObservedPod, task: Terminated) -> PodEnded:
    """The task ended by itself, and not well (or well in a pod that failed all the same)."""
    if task.reason in _START_REASONS:
        missing = any(words in task.message for words in ("not found", "no such file"))
        return observed.ended(_NOT_FOUND if missing else _NOT_RUNNABLE, "StartFailed", task.message)
    if task.reason == "OOMKilled":
        return observed.ended(OOM_CODE, "OOMKilled", task.message or "it used more memory than it may")
    message = task.message
    if not message and 128 < task.exit_code <= _LAST_SIGNAL_CODE:
        message = f"killed by signal {task.exit_code - 128}"
    steps = observed.steps
    if not message and len(steps) > 1:
        failed = next(
            (number for number, name in enumerate(steps, 1) if observed.terminated(name) is task), len(steps)
        )
        message = f"step {failed} of {len(steps)} ended with exit code {task.exit_code}"
    result = _result_of(observed.pod)
    if result is not None and result.reason == "OOMKilled":  # stage-out has withheld its outputs for that
        return observed.ended(OOM_CODE, result.reason, message)
    return observed.ended(task.exit_code, "" if task.exit_code else "PodFailed", message)


def _was_released(observed: _ObservedPod) -> bool:
    """Whether the task ended because we asked for it."""
    return observed.released and bool(_taken(observed, observed.last))


def _taken(observed: _ObservedPod, ended: Terminated | None) -> str:
    """Why the pod is taken away: Released, Kubernetes' own word, or PodDeleted; "" = it is not, or only after that end.

    Args:
        ended: How a container of it ended; None = no end is to be compared with the deletion.
    """
    deadline_ms = moment_ms(observed.pod.metadata.deletion_timestamp)
    if ended is not None and deadline_ms is not None and not _is_signalled(ended):
        asked_ms = deadline_ms - 1000 * (observed.pod.metadata.deletion_grace_period_seconds or 0)
        if (_moment(ended.finished_at) or asked_ms) < asked_ms:
            return ""
    if observed.released:
        return "Released" if deadline_ms is not None or observed.deleted else ""
    return _disruption(observed) or ("PodDeleted" if deadline_ms is not None else "")


def _is_signalled(ended: Terminated) -> bool:
    """Whether a kubelet may have ended it: no moments are compared then, since clocks of nodes and of the API server differ."""
    return ended.reason != "OOMKilled" and _real_code(ended) in _SIGNALLED


def _disruption(observed: _ObservedPod) -> str:
    """Why the pod was disrupted, if Kubernetes says so: EvictionByEvictionAPI, PreemptionByScheduler …"""
    condition = condition_of(observed.pod.status.conditions, "DisruptionTarget")
    if condition is None or condition.status != "True":
        return ""
    return condition.reason or "Evicted"


def _real_code(ended: Terminated) -> int:
    """A step's exit code. If its failure is ignored, the code comes from the termination message of its script."""
    digits = ended.message.strip().removeprefix(IGNORED)
    if ended.reason == "OOMKilled":
        return OOM_CODE
    if ended.exit_code == 0 and ended.message.startswith(IGNORED) and digits.isdecimal() and len(digits) < 4:
        return int(digits)
    return ended.exit_code


def _may_have_run(observed: _ObservedPod) -> bool:
    """Whether the task's process may have run; where that cannot be known, yes."""
    if observed.started_ms is not None:
        return True
    pod = observed.pod
    return bool(pod.spec.node_name) and observed.container(TASK) is None and pod.status.phase != "Pending"


def _moment(timestamp: str | None) -> int | None:
    """A moment as wall-clock ms. Kubelets write 1970 where there is none."""
    found = moment_ms(timestamp)
    return found if found is not None and found > 0 else None
