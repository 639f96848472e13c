"""Container tasks as pods: which containers, which mounts, and what there can be nowhere."""

from __future__ import annotations

import json
import time
from typing import Any

import msgspec
import pytest

from flowsched.cluster.kubernetes import orders, packing
from flowsched.cluster.kubernetes.objects.pod import Pod as PodObject
from flowsched.cluster.kubernetes.objects.pod_requests import requests_of
from flowsched.cluster.kubernetes.objects.release import ReleaseSettings
from flowsched.cluster.kubernetes.pods.manifest import pod_manifest
from flowsched.cluster.node.container_paths import MOST_MOUNTS, Layout, Refusal, SharedVolume, lay_out
from flowsched.executor.protocol import InputFile, Pod
from flowsched.values import replace
from flowsched.workflow.spec import Container, Delivered, Left, Mount, Placed, Step
from tests.kubernetes import written as w
from tests.kubernetes.hostile import TEXTS

SETTINGS = replace(
    w.SETTINGS, shared=(SharedVolume("lab", "/data"), SharedVolume("references", "/ref", True))
)
RUN = Step(("run", "it"), image="tool:1")


def written(container: Container, settings: ReleaseSettings = SETTINGS, **changes: Any) -> dict[str, Any]:
    return w.written(w.task(container=container, **changes), settings)


def refused(container: Container) -> Refusal:
    told = pod_manifest(w.task(container=container), SETTINGS)
    assert isinstance(told, Refusal), told
    return told


def mounts(manifest: dict[str, Any], name: str = "task") -> dict[str, str]:
    """Where a container sees what: path -> volume/part, with ! if it may not write there."""
    return {
        each["mountPath"]: each["name"]
        + (f"/{each['subPath']}" if "subPath" in each else "")
        + ("!" if each.get("readOnly") else "")
        for each in w.container(manifest, name)["volumeMounts"]
    }


def files_order(manifest: dict[str, Any], name: str = "stage-in") -> dict[str, Any]:
    told: dict[str, Any] = json.loads(
        packing.unpacked(w.started(manifest, name, {})[0]["FLOWSCHED_CONTAINER"])
    )
    return told


ALWAYS = {"/flowsched/work": "work", "/data": "shared-0", "/ref": "shared-1!"}


def test_each_step_is_a_container_and_the_last_is_the_task() -> None:
    """Each has its own image, environment and folder, and what the task asks for; stage-in goes first."""
    steps = (
        Step(("one",), image="a:1", env={"MODE": "first"}, workdir="/work"),
        Step(("two",), image="b:2"),
        Step(("three",), image="c:3"),
    )
    manifest = written(Container(steps), env={"MODE": "plain"})
    spec = manifest["spec"]
    assert [each["name"] for each in spec["initContainers"]] == ["stage-in", "step-0", "step-1"]
    assert [each["name"] for each in spec["containers"]] == ["task"]
    told = [w.container(manifest, name) for name in ("step-0", "step-1", "task")]
    assert [(each["image"], each["command"]) for each in told] == [
        ("a:1", ["one"]),
        ("b:2", ["two"]),
        ("c:3", ["three"]),
    ]
    assert [each.get("workingDir") for each in told] == ["/work", None, None]
    modes = [next(each["value"] for each in one["env"] if each["name"] == "MODE") for one in told]
    assert modes == ["first", "plain", "plain"]
    asks = {"requests": {"cpu": "1500m", "memory": "1073741824"}, "limits": {"memory": "1073741824"}}
    assert [each["resources"] for each in told] == [asks, asks, asks]
    assert manifest["metadata"]["annotations"]["flowsched.io/steps"] == "3"


def test_steps_take_no_more_room_than_one_of_them() -> None:
    """They run one after the other: the pod asks for what its task asks for, and the sidecar for nothing."""
    container = Container((RUN, RUN, RUN), outputs=(Delivered("/out/x", "/data/x"),))
    asked = requests_of(msgspec.convert(written(container), PodObject))
    assert (asked.cpu_millicores, asked.memory_bytes) == (1500, 1 << 30)


def test_paths_of_the_container_are_mounts() -> None:
    """The smallest folders that hold what is asked for; a file alone in a folder of the system; shared volumes where they are."""
    container = Container(
        (Step(("run",), stdout="/out/log/said.txt", workdir="/out", image="a"),),
        (
            Placed("/in/text", content="text"),
            Placed("/in/genome.fa", source="/ref/hg38/genome.fa"),
            Placed("/etc/app.conf", content="conf"),
            Placed("/data/run/script", source="/data/run/script"),
        ),
        (
            Delivered("/out/log/said.txt", "/data/run/said.txt"),
            Delivered("/results", "s3://lab/r", directory=True),
        ),
        (Mount("/data/case", "/case"), Mount("/ref/db", "/db", read_only=True)),
        ("/scratch/one",),
    )
    manifest = written(container)
    assert mounts(manifest) == ALWAYS | {
        "/in": "inputs/d/0",
        "/in/genome.fa": "shared-1/hg38/genome.fa!",
        "/etc/app.conf": "inputs/f/0/app.conf",
        "/out": "inputs/d/1",
        "/results": "inputs/d/2",
        "/scratch/one": "inputs/d/3",
        "/case": "shared-0/case",
        "/db": "shared-1/db!",
    }
    order = files_order(manifest)
    assert order["folders"] == ["d/0", "d/1", "d/1/log", "d/2", "d/3", "f/0"]
    assert order["contents"] == ["d/0/text", "f/0/app.conf"]
    assert order["sources"] == [
        ["/case", "/data/case", True],
        ["/db", "/ref/db", True],
        ["/in/genome.fa", "/ref/hg38/genome.fa", False],
        ["/data/run/script", "/data/run/script", False],
    ]


def test_where_paths_are_the_same_nothing_is_mounted() -> None:
    """As Cromwell has it with root == dockerRoot."""
    call = "/data/run/call-a/execution"
    container = Container(
        (Step(("/bin/bash", f"{call}/script"), stdout=f"{call}/stdout", image="a", workdir=call),),
        (Placed(f"{call}/script", source=f"{call}/script"),),
        (Delivered(f"{call}/rc", f"{call}/rc"),),
    )
    manifest = written(container)
    assert mounts(manifest) == ALWAYS
    assert files_order(manifest)["folders"] == [call]


def test_a_staged_input_is_put_at_its_path_by_the_agent() -> None:
    """The signed order names its place in the volume of which the folder is mounted."""
    container = Container(
        (RUN,), (Placed("/in/reads.fq.gz", input="file-0"), Placed("/db", input="file-1", directory=True))
    )
    inputs = (InputFile("file-0", ("s3://lab/x.fq.gz",)), InputFile("file-1", ("s3://lab/db/",)))
    manifest = written(container, inputs=inputs)
    order = orders.read(w.started(manifest, "stage-in", {})[0]["FLOWSCHED_ORDER"])
    assert [given.path for given in order.inputs] == ["d/0/reads.fq.gz", "f/0/db"]
    assert mounts(manifest) == ALWAYS | {"/in": "inputs/d/0", "/db": "inputs/f/0/db"}
    env, _ = w.started(manifest, "task", {})
    assert env["FLOWSCHED_INPUT_FILE_0"] == "/in/reads.fq.gz"


@pytest.mark.parametrize(
    "output",
    [
        Delivered("/out/x", "s3://lab/x"),
        Delivered("/out/x", "s3://lab/x/", directory=True),
        Delivered("/out/*", "s3://lab/x", path_prefix="/out"),
    ],
    ids=["file", "folder", "wildcard"],
)
def test_the_order_of_an_output_allows_it_and_what_lies_below(output: Delivered) -> None:
    """A step may leave a folder where a file was named. Nothing beside it is allowed."""
    manifest = written(Container((RUN,), outputs=(output,)))
    order = orders.read(w.started(manifest, "stage-out", {})[0]["FLOWSCHED_ORDER"])
    for uri in ("s3://lab/x", "s3://lab/x/", "s3://lab/x/y/z"):
        assert order.may_deliver(uri), uri
    for uri in ("s3://lab/xy", "s3://lab/x.bai", "s3://lab", "s3://other/x"):
        assert not order.may_deliver(uri), uri


def test_the_order_leaves_out_what_a_task_writes_in_place() -> None:
    """It leaves no copy, and thousands of such outputs would make the order too long for a variable."""
    outputs = (
        Delivered("/data/call/1.bam", "/data/call/1.bam"),
        Delivered("/call/*.bam", "/data/call", path_prefix="/call"),
        Delivered("/out/2.bam", "/data/call/2.bam"),
        Delivered("/out/3.bam", "s3://lab/3.bam"),
    )
    manifest = written(Container((RUN,), mounts=(Mount("/data/call", "/call"),), outputs=outputs))
    order = orders.read(w.started(manifest, "stage-out", {})[0]["FLOWSCHED_ORDER"])
    assert order.delivers == (("/data/call/2.bam", False), ("s3://lab/3.bam", False))


def test_thousands_of_folders_of_outputs_are_laid_out_at_once() -> None:
    """The scheduler waits for it. A search of all folders for each of them took 7 s for so many."""
    outputs = tuple(Delivered(f"/out/{n}/x", f"s3://lab/{n}") for n in range(4_000))
    began_s = time.process_time()
    layout = lay_out(Container((RUN,), outputs=outputs), SETTINGS.shared)
    assert time.process_time() - began_s < 2
    assert isinstance(layout, Layout)
    assert {layout.place(f"/out/{n}/x") for n in range(4_000)} == {f"d/{n}/x" for n in range(4_000)}


def test_inputs_that_are_too_many_to_mount_are_links() -> None:
    """Two hundred mounts, the folder's own among them; the rest are made by stage-in, and lead to the shared volume."""
    inputs = tuple(Placed(f"/in/{n}.bam", source=f"/ref/{n}.bam") for n in range(300))
    manifest = written(Container((RUN,), inputs))
    assert len(mounts(manifest)) == 200 + len(ALWAYS)
    links = files_order(manifest)["links"]
    assert (len(links), links[0], links[-1]) == (
        101,
        ["d/0/199.bam", "/ref/199.bam"],
        ["d/0/299.bam", "/ref/299.bam"],
    )


@pytest.mark.parametrize(
    ("container", "first"),
    [
        (Container((RUN,)), "run"),
        (Container((RUN,), outputs=(Delivered("/data/x", "/data/x"),)), "run"),
        (Container((replace(RUN, stdin="/data/x"),)), "/bin/sh"),
        (Container((replace(RUN, stdout="/data/x"),)), "/bin/sh"),
        (Container((replace(RUN, ignore_error=True),)), "/bin/sh"),
        (Container((RUN,), outputs=(Delivered("/out/x", "/data/x"),)), "/bin/sh"),
        (Container((RUN,), leave=(Left("/data/rc", "79"),)), "/bin/sh"),
    ],
)
def test_a_shell_is_needed_only_where_something_has_to_be_done_around_a_step(
    container: Container, first: str
) -> None:
    """Files for its streams, a failure that is ignored, or files that are taken out only if all went well."""
    assert w.container(written(container), "task")["command"][0] == first


@pytest.mark.parametrize(
    ("container", "there"),
    [
        (Container((RUN,)), False),
        (Container((RUN,), outputs=(Delivered("/data/x", "/data/x"),)), True),
        (Container((RUN,), leave=(Left("/data/rc", "79"),)), True),
    ],
)
def test_stage_out_stays_where_there_is_something_to_take_out(container: Container, there: bool) -> None:
    """To report files that are in place already, too; a pod without any has no sidecar."""
    names = [each["name"] for each in written(container)["spec"]["initContainers"]]
    assert ("stage-out" in names) is there


def test_what_a_message_may_hold_is_said_to_stage_out() -> None:
    """A kubelet takes 12 KiB of a pod's containers together: with ten steps that is 1 KiB for each."""
    manifest = written(Container((RUN,) * 10, outputs=(Delivered("/out/x", "/data/x"),)))
    assert w.started(manifest, "stage-out", {})[0]["FLOWSCHED_MESSAGE_BYTES"] == "1024"


def test_credentials_of_object_stores_are_for_the_steps_beside_the_task() -> None:
    """They come by reference, and the task does not get them."""
    settings = replace(SETTINGS, steps_secret="objectstore")
    manifest = written(Container((RUN,), outputs=(Delivered("/out/x", "s3://lab/x"),)), settings)
    source = [{"secretRef": {"name": "objectstore", "optional": True}}]
    assert [w.container(manifest, name).get("envFrom") for name in ("stage-in", "stage-out", "task")] == [
        source,
        source,
        None,
    ]


def test_long_texts_are_cut_into_variables() -> None:
    """A script of 300 KB that does not compress needs several; they make it whole again."""
    text = "".join(f"{number * 7919 % 1_000_003:x}" for number in range(60_000))
    manifest = written(Container((RUN,), (Placed("/in/x", content=text),)))
    env, _ = w.started(manifest, "stage-in", {})
    pieces = sorted(name for name in env if name.startswith("FLOWSCHED_CONTENT_"))
    assert len(pieces) > 1
    assert all(len(env[name]) <= 102_400 for name in pieces)


@pytest.mark.parametrize(
    ("container", "reason", "words"),
    [
        (Container((RUN,), (Placed("/in/a", source="/home/me/a"),)), "PathNotShared", "/home/me/a lies on no volume"),
        (Container((RUN,), (Placed("/home/me/a", source="/home/me/a"),)), "PathNotShared", "(/data, /ref)"),
        (Container((RUN,), outputs=(Delivered("/out/a", "/tmp/a"),)), "PathNotShared", "the output /out/a: /tmp/a"),
        (Container((RUN,), outputs=(Delivered("/out/a", "/ref/a"),)), "PathNotShared", "which is read only"),
        (Container((RUN,), outputs=(Delivered("/out/a", "ftp://h/a"),)), "ContainerPathsRefused", "ftp://h/a"),
        (Container((RUN,), mounts=(Mount("/srv/x", "/case"),)), "PathNotShared", "the mount at /case"),
        (Container((RUN,), mounts=(Mount("/ref/x", "/case"),)), "PathNotShared", "which is read only"),
        (Container((RUN,), mounts=(Mount("/data/x", "/usr"),)), "ContainerPathsRefused", "its folder /usr"),
        (Container((RUN,), volumes=("/bin",)), "ContainerPathsRefused", "/bin would be mounted over"),
        (Container((RUN,), outputs=(Delivered("/*.txt", "/data", path_prefix="/"),)), "ContainerPathsRefused", "its folder /"),
        (Container((RUN,), outputs=(Delivered("/etc", "/data/etc", directory=True),)), "ContainerPathsRefused", "/etc"),
        (Container((RUN,), (Placed("/proc/x", content=""),)), "ContainerPathsRefused", "below /dev /flowsched /proc /sys"),
        (Container((RUN,), (Placed("/flowsched/work/x", content=""),)), "ContainerPathsRefused", "use another folder"),
        (Container((RUN,), (Placed("/etc/a:b", content=""),)), "ContainerPathsRefused", "a colon"),
        (Container((replace(RUN, stdout="/sys/x"),)), "ContainerPathsRefused", "the file /sys/x of a step"),
    ],
)  # fmt: skip
def test_what_cannot_be_mounted_is_refused_with_the_reason(
    container: Container, reason: str, words: str
) -> None:
    """Before anybody is asked: a path that no other node sees, a folder that images need, the kernel's and our own."""
    told = refused(container)
    assert told.reason == reason
    assert words in told.message


def test_a_step_without_an_image() -> None:
    """The step is named, since each has its own."""
    told = pod_manifest(w.task(container=Container((RUN, Step(("x",))))), replace(SETTINGS, default_image=""))
    assert isinstance(told, Refusal)
    assert (told.reason, told.message) == (
        "ImageRefused",
        "step 1 of the task names no image, and there is no default image here: give it one (container: {image: …}), or start "
        "flowsched with FLOWSCHED_DEFAULT_IMAGE",
    )


def test_a_folder_with_a_colon_is_reached_by_the_one_above() -> None:
    """Kubernetes takes no mount path with a colon in it; names of files may have one."""
    layout = lay_out(Container((RUN,), (Placed("/in/a:b/c:d", content=""),)), ())
    assert not isinstance(layout, Refusal)
    assert [(each.path, each.inner) for each in layout.mounts] == [("/in", "d/0")]
    assert layout.place("/in/a:b/c:d") == "d/0/a:b/c:d"


def hostile(text: str) -> Pod:
    """A task with a text wherever a document may have one that no path is checked for."""
    step = Step(("run", text), env={"MODE": text}, stdout="/out/x", image="tool:1")
    container = Container(
        (step, replace(step, ignore_error=True)),
        (Placed("/in/x", content=text),),
        leave=(Left("/data/x", text),),
    )
    return w.task(container=container)


@pytest.mark.parametrize("text", TEXTS)
def test_a_hostile_text_arrives_as_it_was(text: str) -> None:
    """As an argument of each step behind the script's own, as a variable, as a file: and the pod stays restricted."""
    manifest = w.written(hostile(text), SETTINGS)
    for name, ignored, fresh in (("step-0", "", "o"), ("task", "1", "")):
        env, command = w.started(manifest, name, {})
        assert env["MODE"] == text
        assert command[:2] == ["/bin/sh", "-c"]
        assert command[3:] == ["flowsched", "", "/out/x", "", ignored, fresh, "run", text]
        assert command[2] == w.started(w.written(hostile("plain"), SETTINGS), name, {})[1][2]
    assert files_order(manifest)["leave"] == [["/data/x", text, None]]


def test_an_input_that_lies_in_a_mount_is_mounted_over_it() -> None:
    """Who works in place (miniwdl) has mount points there; a copy on the shared volume could be changed, and cost its bytes."""
    container = Container(
        (RUN,), inputs=(Placed("/run1/in/a", source="/data/a"),), mounts=(Mount("/data/work", "/run1"),)
    )
    manifest = written(container)
    assert mounts(manifest) == {**ALWAYS, "/run1": "shared-0/work", "/run1/in/a": "shared-0/a!"}


def test_a_member_that_does_not_deliver_has_nobody_who_would() -> None:
    """In a gang one member takes the outputs out; every one has the folders, and knows the others."""
    container = Container((RUN,), outputs=(Delivered("/out/x", "/data/x"),))
    one = w.written(w.task(container=container, gang=w.seat()), SETTINGS, w.GANG)
    other = w.written(w.task(container=replace(container, delivers=False), gang=w.seat()), SETTINGS, w.GANG)
    assert [each["name"] for each in one["spec"]["initContainers"]] == ["stage-in", "stage-out"]
    assert [each["name"] for each in other["spec"]["initContainers"]] == ["stage-in"]
    for manifest in (one, other):
        assert "/out" in mounts(manifest)
        names = {each["name"] for each in w.container(manifest, "task")["env"]}
        assert {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= names


REF = InputFile("file-0", ("/data/ref/hg38.fa#version=" + "a" * 32,))


@pytest.mark.parametrize(
    ("mount", "path"),
    [((), "/data/ref/hg38.fa"), ((Mount("/data", "/run1"),), "/run1/ref/hg38.fa")],
    ids=["at its own path", "in a mount"],
)
def test_a_copy_from_the_nodes_cache_covers_the_file_of_a_shared_volume(
    mount: tuple[Mount, ...], path: str
) -> None:
    """The agent puts it into the pod's own volume. Nothing is written to the shared one, and steps cannot write to the copy."""
    placed = Placed(path, source="/data/ref/hg38.fa", input="file-0")
    manifest = written(Container((RUN,), (placed,), mounts=mount), inputs=(REF,))
    order = orders.read(w.started(manifest, "stage-in", {})[0]["FLOWSCHED_ORDER"])
    assert [given.path for given in order.inputs] == ["f/0-shared/hg38.fa"]
    assert mounts(manifest)[path] == "inputs/f/0-shared/hg38.fa!"
    assert (files_order(manifest)["copies"], files_order(manifest)["sources"][len(mount) :]) == ([], [])
    assert w.started(manifest, "task", {})[0]["FLOWSCHED_INPUT_FILE_0"] == path


def test_beyond_the_mounts_that_a_pod_may_have_a_file_is_read_where_it_lies() -> None:
    """The copy has no path then: neither is anything copied over the file of the shared volume."""
    many = tuple(Placed(f"/x/{number}/a", source=f"/data/{number}") for number in range(MOST_MOUNTS))
    placed = Placed("/data/ref/hg38.fa", source="/data/ref/hg38.fa", input="file-0")
    manifest = written(Container((RUN,), (*many, placed)), inputs=(REF,))
    assert "/data/ref/hg38.fa" not in mounts(manifest)
    assert files_order(manifest)["copies"] == []
    assert ["/data/ref/hg38.fa", "/data/ref/hg38.fa", False] in files_order(manifest)["sources"]
