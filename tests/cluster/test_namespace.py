"""A private mount namespace on a machine on which others come and go."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from flowsched.cluster.local.runner import namespace
from flowsched.cluster.local.runner.places import Places

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux' mount namespaces")


def seen_inside(room: Path, mounts: list[namespace.Mount], *paths: str) -> list[str]:
    """What of some paths is there for a process that has entered; in a process of its own."""
    places = Places(str(room))
    places.needed = True
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        said = b"?"
        try:
            namespace.enter(places, mounts)
            said = "\n".join(path for path in paths if os.path.exists(path)).encode()
        except OSError as error:
            said = f"OSError: {error}".encode()
        finally:
            os.write(write, said)
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        told = answer.read().decode()
    os.waitpid(pid, 0)
    return told.split("\n")


@pytest.fixture
def room(tmp_path: Path) -> Path:
    made = tmp_path / "room"
    made.mkdir()
    if reason := namespace.refusal(str(made)):
        pytest.skip(f"no private mounts here: {reason}")
    return made


def test_what_others_take_away_while_a_task_begins_is_no_matter(room: Path, tmp_path: Path) -> None:
    """Temporary files of other programs, beside the task's own, go at any moment: seen with Snakemake, whose jobs own /tmp."""
    base = tmp_path / "tmp"
    base.mkdir()
    for name in ("stays", "goes"):
        (base / name).write_text(name)
    mounts = namespace.show(
        str(base), str(room), frozenset({"stays", "goes", "gone before"}), read_only=False
    )
    (base / "goes").unlink()
    (room / "goes").unlink()
    assert seen_inside(room, mounts, "/stays", "/goes") == ["/stays"]


def test_what_the_task_asked_for_must_be_there(room: Path, tmp_path: Path) -> None:
    """An input that has gone is an error, never an empty file."""
    (room / "input").touch()
    mounts = [namespace.Mount(str(tmp_path / "gone"), str(room / "input"), read_only=True)]
    (told,) = seen_inside(room, mounts, "/input")
    assert told.startswith("OSError: [Errno 2] mount: No such file or directory")
