"""What the backend makes of a task's runtime section and of how its workflow ended, with miniwdl's own configuration and errors."""

from __future__ import annotations

import logging
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from WDL import Error, Value
from WDL.runtime import config
from WDL.runtime.error import Interrupted, Terminated
from WDL.runtime.task_container import TaskContainer

from flowsched.miniwdl import backend as settings
from flowsched.miniwdl.backend import Backend, run_of
from flowsched.miniwdl.following import End
from flowsched.miniwdl.places import Place
from tests.wdl.engine import entry_points

LOG = logging.getLogger("test")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FLOWSCHED_SERVER", "FLOWSCHED_TOKEN", "MINIWDL_CFG"):
        monkeypatch.delenv(name, raising=False)


def loader(**options: str) -> config.Loader:
    return config.Loader(LOG, filenames=[], overrides={"flowsched": options})


def backend(folder: Path, monkeypatch: pytest.MonkeyPatch, **options: str) -> Backend:
    cfg = loader(**options)
    monkeypatch.setattr(Backend, "_settings", settings.read(cfg))
    monkeypatch.setattr(Backend, "_largest", {"cpu": 8, "mem_bytes": 16_000_000_000})
    return Backend(cfg, "call-align", str(folder / "task"))


def end(**changes: Any) -> End:
    return End(
        **{
            "workflow": "w1",
            "state": "FAILED",
            "launched": True,
            "exit_code": None,
            "reason": "",
            "message": "",
        }
        | changes
    )


def test_the_entry_points_are_what_miniwdl_asks_for(tmp_path: Path) -> None:
    """What pip writes down can be loaded: a container backend, two plugins, three downloaders."""
    (info,) = entry_points(tmp_path).glob("*.dist-info")
    group, found = "", {}
    for line in (info / "entry_points.txt").read_text().splitlines():
        group = line.strip("[]") if line.startswith("[") else group
        if group.startswith("miniwdl.plugin") and "=" in line:
            name, _, value = line.partition(" = ")
            found[f"{group}:{name}"] = EntryPoint(name, value, group).load()
    assert sorted(found) == [
        "miniwdl.plugin.container_backend:flowsched",
        "miniwdl.plugin.file_download:http",
        "miniwdl.plugin.file_download:https",
        "miniwdl.plugin.file_download:s3",
        "miniwdl.plugin.task:flowsched",
        "miniwdl.plugin.workflow:flowsched",
    ]
    assert issubclass(found["miniwdl.plugin.container_backend:flowsched"], TaskContainer)


def test_a_task_that_says_nothing_gets_a_core_and_the_default_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The local cluster enforces memory, so the default of documents (256 Mi) would kill many a task."""
    task = backend(tmp_path, monkeypatch)
    task.process_runtime(LOG, {})
    assert task._resources() == {"cpu": 1, "memory": 2_000_000_000}


def test_runtime_values_are_asked_for_and_cut_to_the_largest_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As miniwdl does it on one machine."""
    task = backend(tmp_path, monkeypatch)
    task.process_runtime(
        LOG, {"cpu": Value.Int(64), "memory": Value.String("4 GB"), "gpu": Value.Boolean(True)}
    )
    assert task._resources() == {"cpu": 8, "memory": 4_000_000_000, "gpu": 1}


def test_a_number_of_gpus_and_a_queue_may_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As other engines have them; miniwdl knows neither."""
    task = backend(tmp_path, monkeypatch)
    task.process_runtime(LOG, {"gpuCount": Value.Int(2), "queue": Value.String("gpus")})
    order = task._order()
    assert (order.resources["gpu"], order.queue) == (2, "gpus")


def test_what_is_taken_away_is_tried_again_though_the_task_does_not_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Miniwdl would let the whole run fail for a lost node; a task that allows more keeps its number."""
    task = backend(tmp_path, monkeypatch)
    task.process_runtime(LOG, {})
    assert task.runtime_values["preemptible"] == 3
    more = backend(tmp_path / "more", monkeypatch, interruptions="1")
    more.process_runtime(LOG, {"preemptible": Value.Int(5)})
    assert more.runtime_values["preemptible"] == 5


def test_an_image_that_would_have_to_be_built_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than run in another one."""
    task = backend(tmp_path, monkeypatch)
    with pytest.raises(Error.RuntimeError, match="inlineDockerfile"):
        task.process_runtime(LOG, {"inlineDockerfile": Value.String("FROM ubuntu")})


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        (end(state="SUCCEEDED", exit_code=0), 0),
        (end(exit_code=3), 3),
        (end(exit_code=137, reason="OOMKilled", message="it used 70 Mi of 64 Mi"), 137),
        (end(exit_code=143, reason="Timeout", message="it ran longer than 5 s"), 143),
    ],
)
def test_the_exit_code_is_that_of_the_program(
    ended: End, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is: miniwdl decides by returnCodes and maxRetries what it means."""
    assert backend(tmp_path, monkeypatch)._exit_code(LOG, ended) == code


@pytest.mark.parametrize("reason", ["NodeLost", "Preempted", "Evicted", "Drained"])
def test_a_task_that_was_taken_away_was_interrupted(
    reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which miniwdl tries again without counting it as a failure."""
    with pytest.raises(Interrupted, match=reason):
        backend(tmp_path, monkeypatch)._exit_code(LOG, end(reason=reason))


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (end(exit_code=126, reason="ImageRefused", message="runs no images"), "ImageRefused: runs no images"),
        (end(exit_code=0, reason="OutputFailed", message="disk full"), "OutputFailed: disk full"),
        (end(launched=False, message="waited for room longer than allowed"), "waited for room longer"),
    ],
)
def test_what_could_not_be_run_is_told_with_its_reason(
    ended: End, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exit code would say that the program was to blame."""
    with pytest.raises(Error.RuntimeError, match=said) as raised:
        backend(tmp_path, monkeypatch)._exit_code(LOG, ended)
    assert "w1" in str(raised.value)


def test_a_task_that_somebody_cancels_in_flowsched_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its maxRetries: `flowsched cancel RUN` ends the run."""
    with pytest.raises(Terminated):
        backend(tmp_path, monkeypatch)._exit_code(LOG, end(state="CANCELLED"))


def test_the_service_is_named_by_the_section_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The section first; then what the command line reads; then this machine."""
    assert settings.read(loader()).url == "http://127.0.0.1:8470"
    monkeypatch.setenv("FLOWSCHED_SERVER", "http://head:8470")
    monkeypatch.setenv("FLOWSCHED_TOKEN", "t0")
    assert (settings.read(loader()).url, settings.read(loader()).token) == ("http://head:8470", "t0")
    given = settings.read(loader(url="http://other:1", token="t1", priority="5", patience="9"))
    assert (given.url, given.token, given.priority, given.patience_s) == ("http://other:1", "t1", 5, 9.0)


def test_a_setting_that_is_no_number_is_named() -> None:
    """By miniwdl's own loader."""
    with pytest.raises(ValueError, match="priority"):
        settings.read(loader(priority="high"))


@pytest.mark.parametrize(
    ("name", "value"), [("memory", "lots"), ("priority", "high"), ("patience", "long"), ("plan", "perhaps")]
)
def test_a_setting_that_cannot_be_read_is_told_without_a_traceback(name: str, value: str) -> None:
    """Before anything is asked of the service."""
    with pytest.raises(Error.RuntimeError, match=name):
        Backend.global_init(loader(**{name: value}), LOG)


def test_all_calls_of_a_run_have_its_id_and_no_other_run_has() -> None:
    """It begins with the name of the run's folder, so that people find it."""
    align = Place("/runs/20260301_germline", "germline", "align")
    call = Place("/runs/20260301_germline", "germline", "sub.call")
    other = Place("/elsewhere/20260301_germline", "germline", "align")
    assert run_of(align) == run_of(call)
    assert run_of(align) != run_of(other)
    assert run_of(align).startswith("20260301_germline-")


def test_variables_are_in_the_script_and_not_in_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A document is shown to whoever may read workflows; values are quoted as they are."""
    task = backend(tmp_path, monkeypatch)
    task.process_runtime(LOG, {})
    task.runtime_values["env"] = {"KEY": "it's $5"}
    task._write_command("echo $KEY")
    assert (Path(task.host_dir) / "command").read_text() == "export KEY='it'\"'\"'s $5'\necho $KEY"
    assert "it's" not in repr(task._order())


def test_inputs_that_are_too_many_to_mount_are_links_to_what_the_run_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link costs no bytes; what belongs to others is copied, so that a task cannot change it."""
    task = backend(tmp_path, monkeypatch)
    task.set_place(["w", "task"], task.host_dir)
    monkeypatch.setattr("flowsched.miniwdl.backend.MOST_MOUNTS", 1)
    own, others = tmp_path / "call-a" / "own.txt", tmp_path.parent / "others.txt"
    own.parent.mkdir()
    own.write_text("own")
    others.write_text("others")
    task.add_paths([str(own), str(others)])
    task._link_inputs(LOG)
    inputs = Path(task.host_dir) / "work" / "_miniwdl_inputs" / "0"
    assert (inputs / "own.txt").stat().st_ino == own.stat().st_ino
    assert (inputs / "others.txt").read_text() == "others"
    assert (inputs / "others.txt").stat().st_ino != others.stat().st_ino
    task.process_runtime(LOG, {})
    assert task._order().inputs == {}
