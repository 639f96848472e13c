"""What the status of a container task's pod means: steps are containers, and the one that failed is what failed."""

from __future__ import annotations

from typing import Any

from flowsched.cluster.kubernetes.objects.pod import Pod
from flowsched.cluster.kubernetes.pods.status import Waiting
from flowsched.executor.protocol import (
    ContainerReport,
    DeliveredFile,
    PodEnded,
    PodGone,
    PodStarted,
    StepEnd,
)
from tests.kubernetes.test_outcomes import (
    DELETED_AT_END,
    FINISHED_MS,
    STARTED_MS,
    ended,
    final,
    pod,
    runs,
    told,
    waits,
)

THREE = {"flowsched.io/steps": "3"}
DONE = StepEnd(0, STARTED_MS, FINISHED_MS)
OUT = {"outputs": [], "delivered": [["/out/x", "/data/x", 7]], "stdio": [["", ""], ["said", "why"], ["", ""]]}


def three(phase: str, *statuses: dict[str, Any], **fields: Any) -> Pod:
    """A container task of three steps with stage-out."""
    steps = ("stage-in", "stage-out", "step-0", "step-1")
    return pod(phase, *statuses, steps=steps, annotations=fields.pop("annotations", THREE), **fields)


def test_all_steps_went_well() -> None:
    """Their ends in order, with the ends of their files, and what was taken out."""
    seen = three(
        "Succeeded", ended("stage-in", 0), ended("stage-out", 0, message=OUT), ended("step-0", 0), ended("step-1", 0),
        ended("task", 0),
    )  # fmt: skip
    report = ContainerReport(
        (DONE, StepEnd(0, STARTED_MS, FINISHED_MS, "said", "why"), DONE),
        (DeliveredFile("/out/x", "/data/x", 7),),
    )
    assert final(seen) == PodEnded("fs-a", FINISHED_MS, 0, container=report, ran_ms=9_000)


def test_what_the_task_returned_to_its_client_is_in_the_report() -> None:
    """Stage-out has read it."""
    seen = three(
        "Succeeded", ended("stage-in", 0), ended("stage-out", 0, message=OUT | {"returned": 3}), ended("step-0", 0),
        ended("step-1", 0), ended("task", 0),
    )  # fmt: skip
    end = final(seen)
    assert isinstance(end, PodEnded)
    assert end.container is not None
    assert (end.exit_code, end.container.returned) == (0, 3)


def test_an_output_of_a_failed_step_that_did_not_come_back_is_a_warning() -> None:
    """Beside the step's own failure; an object has the version that its store has given it."""
    warning = "not all outputs came back: output /out/y: no"
    out = {"delivered": [["/out/x", "s3://lab/x", 7, "its-tag"]], "message": warning}
    seen = three(
        "Failed", ended("stage-in", 0), ended("stage-out", 0, message=out), ended("step-0", 4), waits("step-1"),
        waits("task"),
    )  # fmt: skip
    end = final(seen)
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason, end.message) == (
        4,
        "",
        f"step 1 of 3 ended with exit code 4; {warning}",
    )
    assert end.container is not None
    assert end.container.outputs == (DeliveredFile("/out/x", "s3://lab/x", 7, "its-tag"),)


def test_it_starts_with_its_first_step() -> None:
    """Not with the container that is called task, which is its last."""
    seen = three(
        "Pending", ended("stage-in", 0), runs("stage-out"), runs("step-0"), waits("step-1"), waits("task")
    )
    assert told(seen) == (PodStarted("fs-a", STARTED_MS),)


def test_a_failed_step_is_the_attempts_end() -> None:
    """Its exit code and its moment; the task's container never ran."""
    seen = three(
        "Failed", ended("stage-in", 0), ended("stage-out", 0, message={"outputs": [], "delivered": []}), ended("step-0", 0),
        ended("step-1", 4), waits("task"),
    )  # fmt: skip
    end = final(seen)
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason, end.message) == (4, "", "step 2 of 3 ended with exit code 4")
    assert end.container == ContainerReport((DONE, StepEnd(4, STARTED_MS, FINISHED_MS)))


def test_a_failure_that_was_ignored_is_told_by_its_message() -> None:
    """The container ended well, since its script said so."""
    seen = three(
        "Succeeded", ended("stage-in", 0), ended("stage-out", 0, message=OUT), ended("step-0", 0, message="ignored exit 3\n"),
        ended("step-1", 0, message="ignored exit no number"), ended("task", 0),
    )  # fmt: skip
    end = final(seen)
    assert isinstance(end, PodEnded)
    assert end.container is not None
    assert (end.exit_code, [step.exit_code for step in end.container.steps]) == (0, [3, 0, 0])


def test_any_step_may_be_out_of_memory() -> None:
    """137 and the reason, whatever the runtime made of it."""
    seen = three(
        "Failed",
        ended("stage-in", 0),
        ended("stage-out", 0),
        ended("step-0", 1, "OOMKilled"),
        waits("step-1"),
        waits("task"),
    )
    end = final(seen)
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason) == (137, "OOMKilled")
    assert end.container == ContainerReport((StepEnd(137, STARTED_MS, FINISHED_MS),))


def test_a_step_whose_outputs_stayed_is_out_of_memory() -> None:
    """Stage-out took what killed it for a lack of fitted memory. No end but that one brings the attempt that delivers."""
    out = {"outputs": [], "delivered": [], "reason": "OOMKilled"}
    seen = three(
        "Failed", ended("stage-in", 0), ended("stage-out", 0, message=out), ended("step-0", 137), waits("step-1"), waits("task"),
    )  # fmt: skip
    end = final(seen)
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason, end.message) == (137, "OOMKilled", "killed by signal 9")


def test_a_step_whose_image_lacks_its_program() -> None:
    """It could not be started: it has no end to report."""
    message = 'exec: "/bin/sh": stat /bin/sh: no such file or directory'
    seen = three(
        "Failed",
        ended("stage-in", 0),
        ended("stage-out", 0),
        ended("step-0", 128, "StartError", message),
        waits("task"),
    )
    end = final(seen)
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason, end.message) == (127, "StartFailed", message)
    assert end.container == ContainerReport()


def test_a_timeout_keeps_the_steps_that_ended() -> None:
    """The report is there, however the attempt ended."""
    seen = three(
        "Failed", ended("stage-in", 0), ended("stage-out", 0, message=OUT), ended("step-0", 0), ended("step-1", 143), waits("task"),
        reason="DeadlineExceeded", message="too long",
    )  # fmt: skip
    end = final(seen)
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason, end.message) == (143, "Timeout", "too long")
    assert end.container is not None
    assert [step.exit_code for step in end.container.steps] == [0, 143]


def test_inputs_that_are_not_there_are_the_tasks_failure() -> None:
    """No other node would find them either: it has ended, and the reason is stage-in's."""
    seen = three(
        "Failed",
        ended("stage-in", 65, message={"reason": "InputMissing", "message": "/in/a"}),
        waits("step-0"),
        waits("task"),
    )
    assert final(seen) == PodEnded(
        "fs-a", final(seen).at_ms, 126, "InputMissing", "/in/a", container=ContainerReport()
    )


def test_outputs_that_could_not_be_delivered() -> None:
    """Success without them is none."""
    result = {"outputs": [], "delivered": [], "reason": "OutputFailed", "message": "no room"}
    seen = three(
        "Succeeded", ended("stage-in", 0), ended("stage-out", 0, message=result), ended("step-0", 0), ended("step-1", 0),
        ended("task", 0),
    )  # fmt: skip
    end = final(seen)
    assert isinstance(end, PodEnded)
    assert (end.exit_code, end.reason, end.message) == (0, "OutputFailed", "no room")


def test_a_later_image_that_cannot_be_had() -> None:
    """The task has started, and waits for what will never come: both are told."""
    missing = waits("task", "ErrImagePull", "manifest unknown")
    seen = three(
        "Pending", ended("stage-in", 0), runs("stage-out"), ended("step-0", 0), ended("step-1", 0), missing
    )
    assert told(seen) == (PodStarted("fs-a", STARTED_MS), Waiting("ErrImagePull", "manifest unknown", True))
    hopeful = waits("task", "ImagePullBackOff", "connection refused")
    seen = three(
        "Pending", ended("stage-in", 0), runs("stage-out"), ended("step-0", 0), ended("step-1", 0), hopeful
    )
    assert told(seen) == (PodStarted("fs-a", STARTED_MS),)


def test_an_eviction_between_two_steps() -> None:
    """The cluster's doing: no end of the task's own."""
    seen = three("Failed", ended("stage-in", 0), ended("step-0", 0), waits("task"), reason="Evicted")
    gone = final(seen)
    assert isinstance(gone, PodGone)
    assert (gone.reason, gone.started) == ("Evicted", True)


def test_one_step_without_files_is_a_container_task_all_the_same() -> None:
    """Its report says how it ended."""
    seen = pod(
        "Failed",
        ended("stage-in", 0),
        ended("task", 9),
        steps=("stage-in",),
        annotations={"flowsched.io/steps": "1"},
    )
    end = final(seen)
    assert isinstance(end, PodEnded)
    assert end.container == ContainerReport((StepEnd(9, STARTED_MS, FINISHED_MS),))


def test_what_is_no_container_task_has_no_report() -> None:
    """As before."""
    end = final(pod("Succeeded", ended("stage-in", 0), ended("task", 0), steps=("stage-in",)))
    assert isinstance(end, PodEnded)
    assert end.container is None


def test_a_step_that_a_deletion_ends_charges_nobody() -> None:
    """The first step, between two steps, and the last one, whose failure is to be ignored: it was told to end."""
    first = three("Failed", ended("stage-in", 0), ended("step-0", 143), waits("task"), **DELETED_AT_END)
    between = three("Failed", ended("stage-in", 0), ended("step-0", 0), waits("task"), **DELETED_AT_END)
    last = three(
        "Succeeded", ended("stage-in", 0), ended("stage-out", 0, message=OUT), ended("step-0", 0), ended("step-1", 0),
        ended("task", 0, message="ignored exit 143"), **DELETED_AT_END,
    )  # fmt: skip
    for seen in (first, between, last):
        gone = final(seen)
        assert isinstance(gone, PodGone)
        assert (gone.reason, gone.started) == ("PodDeleted", True)
