"""Files of a container task in its pod: put in place before the steps, taken out after them, links seen as the steps see them."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flowsched.cluster.kubernetes.packing import unpacked
from flowsched.cluster.kubernetes.pods.container_task import files_variables
from flowsched.cluster.kubernetes.step_messages import read_result
from flowsched.cluster.kubernetes.steps import files as step_files
from flowsched.cluster.kubernetes.steps.program import fitted
from flowsched.cluster.local.runner import deliver
from flowsched.cluster.local.runner.bounds import Bounds
from flowsched.cluster.local.runner.image_places import ImagePlaces
from flowsched.cluster.local.runner.trees import file_version
from flowsched.cluster.node.container_paths import Refusal, SharedVolume, lay_out
from flowsched.cluster.node.origins import Origins
from flowsched.cluster.node.transfers import OriginSource, finish
from flowsched.executor.protocol import DeliveredFile
from flowsched.values import replace
from flowsched.workflow.spec import Container, Delivered, Left, LeftFor, Mount, Placed, Step
from tests.kubernetes import written as w
from tests.object_store import object_store


class Task:
    """A container task's volumes as folders, with a shared one at its real path."""

    def __init__(self, root: Path, container: Container, **more: Any) -> None:
        self.shared = root / "shared"
        self.inputs = root / "inputs"
        self.work = root / "work"
        for folder in (self.shared, self.inputs, self.work):
            folder.mkdir(exist_ok=True)
        layout = lay_out(container, (SharedVolume("lab", str(self.shared)),))
        assert not isinstance(layout, Refusal), layout
        told = files_variables(w.task(container=container, **more), layout, contents=True)
        self.env = {each["name"]: each["value"] for each in told}
        self.env |= {"FLOWSCHED_INPUTS": str(self.inputs), "FLOWSCHED_WORK": str(self.work), "POD_UID": "u1"}

    def begin(self) -> None:
        assert step_files.prepare(self.env) == (0, {})
        assert step_files.fill(self.env) == (0, {})

    def ended(self, *codes: int) -> None:
        """As if its steps had ended so."""
        for number, code in enumerate(codes):
            (self.work / f"steps/{number}.begun").touch()
            (self.work / f"steps/{number}.code").write_text(f"{code}\n")

    def told_to_end(self) -> None:
        """As if its first step had been told to end, and had."""
        self.ended(143)
        (self.work / "steps/0.term").touch()

    def deliver(self) -> dict[str, Any]:
        return step_files.deliver(self.env)


RUN = Step(("run",))


def test_contents_are_put_where_the_steps_look(tmp_path: Path) -> None:
    """Unchanged, to be read and run by anybody, in folders that the steps may write to."""
    text = "#!/bin/sh\r\necho $(x) 'é' \\\n\n"
    task = Task(
        tmp_path, Container((RUN,), (Placed("/in/a/script", content=text), Placed("/in/empty", content="")))
    )
    task.begin()
    assert (task.inputs / "d/0/a/script").read_bytes() == text.encode()
    assert (task.inputs / "d/0/a/script").stat().st_mode & 0o777 == 0o755
    assert (task.inputs / "d/0/empty").read_bytes() == b""


def test_a_folder_where_a_file_is_asked_for_is_missing(tmp_path: Path) -> None:
    """A kubelet would mount whatever is there, and make a folder of what is not."""
    (tmp_path / "shared/folder").mkdir(parents=True)
    place = str(tmp_path / "shared/folder")
    task = Task(tmp_path, Container((RUN,), (Placed("/in/a", source=place),)))
    code, told = step_files.prepare(task.env)
    assert (code, told["reason"]) == (65, "InputMissing")
    assert f"/in/a (from {place})" in told["message"]


@pytest.fixture
def closed() -> Iterator[Path]:
    """A pod's volumes in which the task's user may not write to the shared folder `run`, nor look into `run/secret`."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        root = Path(name)
        root.chmod(0o755)
        for each in ("inputs", "work"):
            (root / each).mkdir()
            (root / each).chmod(0o777)
        run = root / "shared/run"
        (run / "secret").mkdir(parents=True)
        (run / "err").touch()
        (run / "err").chmod(0o444)
        (run / "secret").chmod(0o700 if os.geteuid() == 0 else 0)
        run.chmod(0o755 if os.geteuid() == 0 else 0o555)
        yield root
        for each in (run, run / "secret"):
            each.chmod(0o755)


def prepared_as_another(task: Task) -> tuple[int, dict[str, Any], int]:
    """Exit code, message and user of stage-in; where the tests run as root it is another user."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        return *step_files.prepare(task.env), os.geteuid()
    finally:
        os.seteuid(before)


@pytest.mark.parametrize(("name", "kind"), [("out", "folder"), ("err", "file")])
def test_a_run_folder_of_another_user_is_told_before_the_first_step(
    closed: Path, name: str, kind: str
) -> None:
    """The shell would end with 2 and print nothing, since the file that its message should go to cannot be opened."""
    run = closed / "shared/run"
    step = Step(("run",), stdout="/here/out", stderr="/here/err")
    step = replace(step, **{"stderr" if name == "out" else "stdout": None})
    task = Task(closed, Container((step,), mounts=(Mount(str(run), "/here"),)))
    code, told, user = prepared_as_another(task)
    assert (code, told["reason"]) == (65, "StartFailed")
    place = run if kind == "folder" else run / "err"
    assert told["message"].startswith(
        f"the task may not write {run / name}: the {kind} {place} belongs to user {os.geteuid()}, group {os.getegid()}, mode "
    )
    assert f"tasks run as user {user}, groups " in told["message"]
    assert "FLOWSCHED_RUN_AS_USER" in told["message"]


def test_an_input_in_a_closed_folder_is_not_called_missing_alone(closed: Path) -> None:
    """The folder that is closed is named, with its owner."""
    place = closed / "shared/run/secret/a"
    task = Task(closed, Container((RUN,), (Placed("/in/a", source=str(place)),)))
    code, told, user = prepared_as_another(task)
    assert (code, told["reason"]) == (65, "InputMissing")
    assert f"{place.parent} belongs to user {os.geteuid()}, group" in told["message"]
    assert f"tasks run as user {user}" in told["message"]


def test_a_file_mounted_alone_that_nobody_wrote_is_missing(tmp_path: Path) -> None:
    """It is there because a mount needs something; written, were it with nothing, it is an output."""
    uris = [str(tmp_path / f"shared/{name}") for name in "ab"]
    outputs = (Delivered("/a.txt", uris[0]), Delivered("/b.txt", uris[1]))
    task = Task(tmp_path, Container((RUN,), outputs=outputs))
    task.begin()
    (task.inputs / "f/1/b.txt").write_text("")
    task.ended(0)
    assert task.deliver()["delivered"] == [["/b.txt", uris[1], 0]]


def test_links_lead_where_the_steps_see_them(tmp_path: Path) -> None:
    """From folder to folder of the container; never to what only we have, nor to the image's own files."""
    outputs = tuple(
        Delivered(f"/out/{name}", str(tmp_path / f"shared/{name}")) for name in ("good", "bad", "own", "loop")
    )
    task = Task(tmp_path, Container((RUN,), outputs=outputs, volumes=("/else",)))
    task.begin()
    out, other = task.inputs / "d/1", task.inputs / "d/0"
    (other / "real").write_text("real")
    (out / "good").symlink_to("../else/./real")
    (out / "bad").symlink_to("/proc/self/environ")
    (out / "own").symlink_to(str(task.work / "steps/started"))
    (out / "loop").symlink_to("loop")
    task.ended(0)
    assert [each[0] for each in task.deliver()["delivered"]] == ["/out/good"]
    assert (task.shared / "good").read_text() == "real"


def test_a_link_cannot_climb_out_of_the_container(tmp_path: Path) -> None:
    """Its root is the end, as in every file system."""
    (tmp_path / "inputs/d/0").mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "inputs/d/0/up").symlink_to("../../../../../../secret")
    layout = {"view": [["/out", "d/0"]], "mounts": [], "files": []}
    places = ImagePlaces(str(tmp_path / "inputs"), layout, Bounds())
    assert not os.path.lexists(places.real("/out/up"))
    assert places.real("/out/../../../out") == str(tmp_path / "inputs/d/0")


LEFT = Container((RUN,), outputs=(Delivered("/out/x", "/x"),), leave=(Left("/rc", "79\n"),))


def left_behind(tmp_path: Path) -> Container:
    """A task with an output, and a file that shall be left on the shared volume."""
    shared = tmp_path / "shared"
    return replace(
        LEFT, outputs=(Delivered("/out/x", str(shared / "x")),), leave=(Left(str(shared / "rc"), "79\n"),)
    )


def test_a_file_is_left_after_a_failure_unless_there_is_one(tmp_path: Path) -> None:
    """What the task has written itself stays."""
    task = Task(tmp_path, left_behind(tmp_path))
    task.begin()
    task.ended(1)
    assert task.deliver()["delivered"] == []
    assert (task.shared / "rc").read_text() == "79\n"
    (task.shared / "rc").write_text("1\n")
    task.deliver()
    assert (task.shared / "rc").read_text() == "1\n"
    assert os.listdir(task.shared) == ["rc"]


def test_a_step_that_was_killed_leaves_the_file(tmp_path: Path) -> None:
    """It began and has noted no end: out of memory, say."""
    task = Task(tmp_path, left_behind(tmp_path))
    task.begin()
    (task.work / "steps/0.begun").touch()
    assert task.deliver()["delivered"] == []
    assert os.listdir(task.shared) == ["rc"]


@pytest.mark.parametrize(
    ("code", "left"), [(None, ["oom", "rc"]), (137, ["oom", "rc"]), (1, ["rc"]), (143, ["rc"]), (0, ["rc"])]
)
def test_a_file_is_left_for_memory_where_a_step_was_killed(
    tmp_path: Path, code: int | None, left: list[str]
) -> None:
    """No container sees why a kernel killed it; one that was not told to end, and was killed, counts as out of memory."""
    container = left_behind(tmp_path)
    oom = Left(str(tmp_path / "shared/oom"), "0\n", LeftFor.OOM_KILLED)
    cancelled = Left(str(tmp_path / "shared/rc"), "143\n", LeftFor.CANCELLED)
    task = Task(tmp_path, replace(container, leave=(oom, cancelled, *container.leave)))
    task.begin()
    (task.work / "steps/0.begun").touch()
    if code is not None:
        task.ended(code)
    task.deliver()
    assert sorted(os.listdir(task.shared)) == left
    assert (task.shared / "rc").read_text() == "79\n"


def test_an_attempt_that_was_taken_away_leaves_nothing(tmp_path: Path) -> None:
    """It was told to end before its time; or its first step has not even begun."""
    task = Task(tmp_path, left_behind(tmp_path), timeout_ms=3_600_000)
    task.begin()
    task.deliver()
    assert os.listdir(task.shared) == []
    task.told_to_end()
    task.deliver()
    assert os.listdir(task.shared) == []


@pytest.mark.parametrize(
    ("codes", "delivered"), [((0, 0), ["/out/x"]), ((0, 3), []), ((0,), []), ((3,), []), ((143,), [])]
)
def test_what_ended_well_although_it_was_told_to_end_is_delivered(
    tmp_path: Path, codes: tuple[int, ...], delivered: list[str]
) -> None:
    """The last step, that is: a step that was to follow has not begun."""
    container = Container((RUN, RUN), outputs=(Delivered("/out/x", str(tmp_path / "shared/x")),))
    task = Task(tmp_path, container)
    task.begin()
    (task.inputs / "d/0/x").write_text("x")
    task.ended(*codes)
    (task.work / f"steps/{len(codes) - 1}.term").touch()
    assert [path for path, _, _ in task.deliver()["delivered"]] == delivered


@pytest.mark.parametrize(
    ("code", "told", "late", "line"),
    [
        (
            "",
            False,
            False,
            "killed by signal 9, as what uses more memory than it may; `flowsched explain` says more",
        ),
        (
            "137",
            False,
            False,
            "killed by signal 9, as what uses more memory than it may; `flowsched explain` says more",
        ),
        ("143", True, True, "Timeout: it ran longer than its timeout of 60 s"),
        ("", True, True, "Timeout: it ran longer than its timeout of 60 s"),
        ("143", True, False, None),
        ("1", False, False, None),
        ("0", False, False, None),
    ],
)
def test_the_standard_error_says_what_ended_a_step(
    tmp_path: Path, code: str, told: bool, late: bool, line: str | None
) -> None:
    """A step that ended by itself, or was taken away, gets no line."""
    mounts = (Mount(str(tmp_path / "shared"), "/call"),)
    container = Container(
        (Step(("run",), stderr="/call/stderr"),), mounts=mounts, leave=(Left("/call/rc", "79\n"),)
    )
    task = Task(tmp_path, container, timeout_ms=60_000)
    task.begin()
    (task.shared / "stderr").write_text("mine\n")
    (task.work / "steps/0.begun").touch()
    if code:
        (task.work / "steps/0.code").write_text(f"{code}\n")
    if told:
        (task.work / "steps/0.term").touch()
    if late:
        started = task.work / "steps/started"
        started.write_text(str(float(started.read_text()) - 61))
    task.deliver()
    added = "" if line is None else f"flowsched: {line}\n"
    assert (task.shared / "stderr").read_text() == f"mine\n{added}"


def test_a_timeout_is_an_end_of_its_own(tmp_path: Path) -> None:
    """Whoever is told to end when its time is over has run into its timeout."""
    task = Task(tmp_path, left_behind(tmp_path), timeout_ms=60_000)
    task.begin()
    task.told_to_end()
    started = task.work / "steps/started"
    started.write_text(str(float(started.read_text()) - 61))
    task.deliver()
    assert os.listdir(task.shared) == ["rc"]


@pytest.mark.parametrize(("first", "delivered"), [(0, []), (1, ["/out/x"])])
def test_a_later_step_that_never_began_is_no_success(
    tmp_path: Path, first: int, delivered: list[str]
) -> None:
    """Nothing is delivered where the pod went away between the two; where the first has failed, what is there."""
    container = Container((RUN, RUN), outputs=(Delivered("/out/x", str(tmp_path / "shared/x")),))
    task = Task(tmp_path, container)
    task.begin()
    (task.inputs / "d/0/x").write_text("x")
    task.ended(first)
    assert [each[0] for each in task.deliver()["delivered"]] == delivered
    task.ended(first, 0)
    assert [each[0] for each in task.deliver()["delivered"]] == ["/out/x"]


def test_an_output_of_a_failed_task_that_cannot_come_back_is_a_warning(tmp_path: Path) -> None:
    """The message has no reason, since the task has one; the output after that one comes."""
    shared = tmp_path / "shared"
    outputs = (Delivered("/out/x", str(shared / "file/x")), Delivered("/out/y", str(shared / "y")))
    task = Task(tmp_path, Container((RUN,), outputs=outputs))
    task.begin()
    (shared / "file").touch()
    for name in ("x", "y"):
        (task.inputs / "d/0" / name).write_text(name)
    task.ended(1)
    told = task.deliver()
    assert ([each[0] for each in told["delivered"]], told["reason"]) == (["/out/y"], "")
    assert told["message"].startswith("not all outputs came back: output /out/x: ")


@pytest.mark.parametrize("is_last", [True, False])
def test_files_of_a_failed_attempt_stay_if_another_one_follows(tmp_path: Path, is_last: bool) -> None:
    """Its streams come in any case; once a task has ended well, all comes."""
    shared = tmp_path / "shared"
    outputs = tuple(Delivered(f"/out/{name}", str(shared / name)) for name in ("x", "said"))
    step = Step(("run",), stdout="/out/said")
    task = Task(tmp_path, Container((step,), outputs=outputs), is_last=is_last)
    task.begin()
    for name in ("x", "said"):
        (task.inputs / "d/0" / name).write_text(name)
    task.ended(1)
    delivered = [each[0] for each in task.deliver()["delivered"]]
    assert delivered == (["/out/x", "/out/said"] if is_last else ["/out/said"])
    task.ended(0)
    assert [each[0] for each in task.deliver()["delivered"]] == ["/out/x", "/out/said"]


@pytest.mark.parametrize(("is_fitted", "code", "delivered"), [(True, 137, 0), (False, 137, 1), (True, 1, 1)])
def test_files_of_an_attempt_that_ran_out_of_fitted_memory_stay(
    tmp_path: Path, is_fitted: bool, code: int, delivered: int
) -> None:
    """Another attempt follows it, though it was the last that counts; none follows one that failed otherwise.

    The engine hears of it even where nothing but stage-out takes the end for one by memory (`timeout -s KILL`).
    """
    outputs = (Delivered("/out/x", str(tmp_path / "shared/x")),)
    task = Task(tmp_path, Container((RUN,), outputs=outputs), is_fitted=is_fitted)
    task.begin()
    (task.inputs / "d/0/x").write_text("x")
    task.ended(code)
    told = task.deliver()
    assert (len(told["delivered"]), told["reason"]) == (delivered, "" if delivered else "OOMKilled")


# --- what is told --------------------------------------------------------------------------------------------


def test_the_ends_of_files_are_told_where_there_is_room(tmp_path: Path) -> None:
    """The ends of stdout and stderr: as much as a message holds beside the list of files."""
    uri = str(tmp_path / "shared/x")
    step = Step(("run",), stdout="/out/said", stderr="/out/why")
    task = Task(tmp_path, Container((step,), outputs=(Delivered("/out/x", uri),)))
    task.begin()
    (task.inputs / "d/0/x").write_text("x")
    (task.inputs / "d/0/said").write_text("a" * 20_000 + "end")
    task.ended(0)
    told = task.deliver()
    assert (len(told["stdio"][0][0]), told["stdio"][0][1]) == (10_240, "")
    text = fitted(told, 4096)
    assert len(text) <= 4096
    read = read_result(text)
    assert read is not None
    assert read.stdio == (("a" * 1021 + "end", ""),)
    assert read.files == (DeliveredFile("/out/x", uri, 1),)


def test_many_files_are_packed_and_what_has_no_room_is_counted() -> None:
    """Two hundred names of a kind fit into 4 KiB; of ten thousand as many as there is room for."""
    for count, least in ((200, 200), (10_000, 200)):
        files = [[f"/out/shard-{n}.vcf.gz", f"/data/run/call/shard-{n}.vcf.gz", n] for n in range(count)]
        message = {
            "outputs": [],
            "reason": "",
            "message": "",
            "delivered": files,
            "stdio": [["x" * 9000, ""]],
        }
        text = fitted(message, 4096)
        assert len(text) <= 4096
        read = read_result(text)
        assert read is not None
        assert len(read.files) >= least
        assert len(read.files) + read.undelivered == count
        assert read.files[7] == DeliveredFile("/out/shard-7.vcf.gz", "/data/run/call/shard-7.vcf.gz", 7)
        assert not read.more


@pytest.mark.parametrize("listed", ["z:", "z:!!!", "x", "z:eJwDAAAAAAE=", json.dumps("z:" + "A" * 100)])
def test_a_list_that_is_none_is_empty(listed: str) -> None:
    """Whatever a pod has written, it is read as data."""
    read = read_result(json.dumps({"delivered": listed}))
    assert read is not None
    assert read.files == ()


def test_a_large_file_that_goes_to_a_shared_volume_has_a_version_and_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version is that of the delivered file, the place that of the task's own one: the node's cache may take it."""

    def link(*_: object, **__: object) -> None:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(deliver.os, "link", link)
    monkeypatch.setattr(deliver, "_SHARED_BYTES", 3)
    shared = tmp_path / "shared"
    outputs = tuple(Delivered(f"/out/{name}", f"{shared}/{name}") for name in ("large", "small"))
    task = Task(tmp_path, Container((RUN,), outputs=outputs))
    task.begin()
    for name, text in (("large", "ACGT"), ("small", "ACG")):
        (task.inputs / "d/0" / name).write_text(text)
    task.ended(0)
    told, own = task.deliver()["delivered"], (task.inputs / "d/0/large").stat()
    assert told == [
        ["/out/large", f"{shared}/large", 4, file_version((shared / "large").stat()), "d/0/large", own.st_ino, own.st_mtime_ns],
        ["/out/small", f"{shared}/small", 3],
    ]  # fmt: skip


# --- object stores -------------------------------------------------------------------------------------------


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of a store with the bucket `lab`, reached by the variables that stage-out gets from its Secret."""
    with object_store(monkeypatch) as client:
        yield client


def test_outputs_go_to_an_object_store(tmp_path: Path, bucket: Any) -> None:
    """A file to its key, matches of a pattern below theirs; each with the ETag that the store has given it."""
    outputs = (
        Delivered("/out/a.txt", "s3://lab/run/a"),
        Delivered("/out/*/*.bam", "s3://lab/bams", path_prefix="/out"),
    )
    task = Task(tmp_path, Container((RUN,), outputs=outputs))
    task.begin()
    (task.inputs / "d/0/a.txt").write_text("one")
    (task.inputs / "d/0/deep").mkdir()
    (task.inputs / "d/0/deep/x.bam").write_text("two!")
    task.ended(0)
    told = task.deliver()
    assert told["reason"] == ""
    assert [each[:4] for each in told["delivered"]] == [
        ["/out/a.txt", "s3://lab/run/a", 3, "f97c5d29941bfb1b2fdab0874906ab82"],
        ["/out/deep/x.bam", "s3://lab/bams/deep/x.bam", 4, "9f5b6d9a034d175868bf593885b7dc4e"],
    ]
    for each, place in zip(told["delivered"], ("d/0/a.txt", "d/0/deep/x.bam"), strict=True):
        status = (task.inputs / place).stat()
        assert each[4:] == [place, status.st_ino, status.st_mtime_ns]
    assert bucket.get_object(Bucket="lab", Key="bams/deep/x.bam")["Body"].read() == b"two!"


def test_the_agents_refusal_of_an_object_ends_the_delivery(tmp_path: Path) -> None:
    """A step left a folder where a file was named. Stage-out does not ask again; the reason has the agent's words."""
    task = Task(tmp_path, Container((RUN,), outputs=(Delivered("/out/db", "s3://lab/db"),)))
    task.begin()
    (task.inputs / "d/0/db").mkdir()
    (task.inputs / "d/0/db/1").write_text("one")
    task.ended(0)
    asked = []

    def refuse(body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        asked.append(body["file"]["uri"])
        return 403, {"message": "the order does not name it"}

    told = step_files.deliver(task.env, refuse)
    assert asked == ["s3://lab/db/1"]
    assert told["reason"] == "OutputFailed"
    assert told["message"] == "output /out/db: cannot write s3://lab/db/1: the order does not name it"


def test_a_folder_of_an_object_store_is_an_input(tmp_path: Path, bucket: Any) -> None:
    """All that lies below it, as a folder of the agent's cache."""
    for key in ("db/one", "db/deep/two", "dbx"):
        bucket.put_object(Bucket="lab", Key=key, Body=key.encode())
    entry = finish(OriginSource(Origins(), "s3://lab/db/").copy(tmp_path, 1 << 20), lambda _: None)
    assert (entry.name, entry.size_bytes, entry.directory) == ("db", 17, True)
    found = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert found == ["db/deep/two", "db/one"]


def _place(task: Task, path: str) -> Path:
    """Where a step finds a path of its container."""
    order = json.loads(unpacked(task.env["FLOWSCHED_CONTAINER"]))
    place = next(f"{place}{path[len(at) :]}" for at, place in order["view"] if path.startswith(at))
    return task.inputs / place


def test_nothing_that_a_step_has_left_lets_stage_out_wait(tmp_path: Path) -> None:
    """Pipes where it reads: the return code, a step's standard output, the notes of a step."""
    step = Step(("run",), stdout="/out/log")
    container = Container(
        (step,), outputs=(Delivered("/out/x", f"{tmp_path}/shared/x"),), return_code="/out/rc"
    )
    task = Task(tmp_path, container)
    task.begin()
    (task.work / "steps/0.begun").touch()
    os.mkfifo(task.work / "steps/0.code")
    assert task.deliver()["delivered"] == []
    (task.work / "steps/0.code").unlink()
    task.ended(0)
    for name in ("rc", "log"):
        place = _place(task, f"/out/{name}")
        place.unlink(missing_ok=True)
        os.mkfifo(place)
    told = task.deliver()
    assert (told["returned"], told["stdio"]) == (None, [["", ""]])
