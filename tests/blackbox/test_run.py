"""Half a minute of a black-box run, as `make blackbox` starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from bench.blackbox.faults import Fault, schedule
from bench.blackbox.judge import judge, load, read_journal
from bench.blackbox.workloads import Folders, Mix

ROOT = Path(__file__).parents[2]


def namespaces() -> bool:
    """Whether this account may make the namespaces of a run."""
    command = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--ipc", "--net", "true"]
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(
    not namespaces(), reason="a black-box run makes namespaces and mounts: it needs root and unshare(1)"
)
def test_half_a_minute_of_kills_loses_nothing(tmp_path: Path) -> None:
    """Real processes end to end. How quickly `/livez` answers and the service starts is judged where nothing else runs."""
    program = Path(sys.executable).with_name("flowsched")
    command = [
        sys.executable,
        "-m",
        "bench.blackbox",
        "--minutes",
        "0.5",
        "--seed",
        "5",
        "--no-row",
        "--pace",
        "2",
    ]
    command += ["--repo", str(program), "--faults", "kill,stop runner", "--out", str(tmp_path)]
    before = set(Path("/mnt").iterdir())
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert (tmp_path / "evidence.json").exists(), done.stdout + done.stderr
    evidence = load(tmp_path / "evidence.json")
    timed = ("slow", "died")
    assert [each for each in judge(evidence) if each.kind not in timed] == [], done.stdout[-6000:]
    assert len(evidence.stories) > 5
    assert all(story.ended_s is not None for story in evidence.stories)
    assert sum(line.what == "START" for line in read_journal(evidence.journal)) > 10
    assert evidence.absences, "no fault was done"
    assert set(Path("/mnt").iterdir()) <= before, "the run has left its folder"


def test_the_same_seed_gives_the_same_faults_and_workloads(tmp_path: Path) -> None:
    """So that a run can be looked into, as far as the machine allows."""
    folders = Folders(tmp_path, tmp_path / "journal", tmp_path, tmp_path)
    one, other = Mix(folders, 3), Mix(folders, 3)
    assert [one.next() for _ in range(50)] == [other.next() for _ in range(50)]
    assert schedule(3, 600, "sqlite") == schedule(3, 600, "sqlite")
    assert schedule(3, 600, "sqlite") != schedule(4, 600, "sqlite")


def test_an_hour_has_every_fault_of_its_database_and_every_family() -> None:
    """Else a run of 60 minutes would prove less than it says."""
    common = {
        "kill service", "kill inner service", "stop service", "kill runner", "stop runner", "full disk", "no inodes", "clock",
        "poison", "half-sent requests",
    }  # fmt: skip

    def kinds(faults: list[Fault]) -> Counter[str]:
        return Counter(fault.what for fault in faults)

    assert set(kinds(schedule(1, 3600, "sqlite"))) == common | {"lock database"}
    assert set(kinds(schedule(1, 3600, "postgresql"))) == common | {"kill database", "stop database"}
    assert min(kinds(schedule(1, 3600, "postgresql")).values()) >= 5
    mix = Mix(Folders(Path("/t"), Path("/j"), Path("/m"), Path("/d")), 1)
    families = {mix.next().kind for _ in range(500)}
    assert families == {
        "chain", "gang", "cancelled", "failing", "timeout", "patient", "detached", "gated", "tes", "tee", "echo",
        "tes-cancelled", "tes-failing",
    }  # fmt: skip
    assert os.access(ROOT / "bench/blackbox/task.sh", os.R_OK)
