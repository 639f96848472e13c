"""deploy/systemd: units that systemd takes, with a command line that flowsched takes."""

from __future__ import annotations

import re
import shutil
import subprocess
from configparser import ConfigParser
from pathlib import Path

import pytest

from tests.deploy.test_manifests import options_of

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"


def unit(name: str) -> ConfigParser:
    """A unit's sections. The keys keep their case."""
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((UNITS / name).read_text())
    return parser


def test_the_service_is_restarted_and_its_tasks_are_left_alone() -> None:
    """KillMode=process: a restart that killed tasks would be worse than none. Exit code 2 is not tried again."""
    service = unit("flowsched.service")["Service"]
    assert (service["KillMode"], service["Restart"], service["Type"]) == ("process", "on-failure", "notify")
    assert (service["RestartPreventExitStatus"], service["LimitNOFILE"]) == ("2", "65536")
    assert unit("flowsched.service")["Unit"]["Requires"] == "flowsched.socket"
    assert unit("flowsched.socket")["Socket"]["ListenStream"] == "127.0.0.1:8470"


def test_the_command_line_is_one_of_flowsched() -> None:
    """Every option that it names exists."""
    words = unit("flowsched.service")["Service"]["ExecStart"].split()
    named = {word for word in words if word.startswith("--")}
    assert words[1] == "serve"
    assert words[2:] == ["$OPTIONS"]  # systemd makes a word of each option
    assert named <= (options_of(["flowsched", "serve"]) or set())


def test_the_options_of_the_page_are_options_of_serve() -> None:
    """docs/owner.md adds them by a line of the file of the environment; without it there are none."""
    given = unit("flowsched.service")["Service"]["Environment"]
    assert given == "OPTIONS= FLOWSCHED_ROOT=/var/lib/flowsched"
    page = (UNITS.parents[1] / "docs" / "owner.md").read_text()
    (line,) = re.findall(r"echo '(OPTIONS=[^']+)'", page)
    named = {word for word in line.removeprefix("OPTIONS=").split() if word.startswith("--")}
    assert named == {"--cpu", "--memory", "--gpus"}
    assert named <= (options_of(["flowsched", "serve"]) or set())


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """`systemd-analyze verify` finds nothing, where there is one."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    for path in [*UNITS.glob("*.service"), *UNITS.glob("*.socket")]:
        text = (
            path.read_text()
            .replace("/usr/local/bin/flowsched", "/bin/true")
            .replace("User=flowsched", "User=root")
        )
        (tmp_path / path.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("drop_ins", "most"), [([], 75), (["no-containers.conf"], 35)], ids=["the unit", "without containers"]
)
def test_systemd_finds_little_to_take_away(tmp_path: Path, drop_ins: list[str], most: int) -> None:
    """`systemd-analyze security` gives 9.5 to a unit without settings, and 7.2 and 3.3 to these."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze here")
    text = (UNITS / "flowsched.service").read_text().replace("User=flowsched", "User=daemon")
    (tmp_path / "flowsched.service").write_text(text)
    folder = tmp_path / "flowsched.service.d"
    folder.mkdir()
    for name in drop_ins:
        shutil.copy(UNITS / name, folder)
    done = subprocess.run(
        [
            "systemd-analyze",
            "security",
            "--offline=true",
            f"--threshold={most}",
            tmp_path / "flowsched.service",
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout[-200:]
