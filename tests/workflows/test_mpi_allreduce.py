"""A real mpirun whose daemons and ranks run inside the gang's workers."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from document_runner import WORKFLOWS, finish, gang, stages_of, task_environment

pytestmark = [
    pytest.mark.skipif(
        not Path(sys.executable).with_name("mpirun").exists() or importlib.util.find_spec("mpi4py") is None,
        reason="needs the extra: pip install 'flowsched[mpi]'",
    ),
    pytest.mark.skipif(
        {name for _, name in socket.if_nameindex()} == {"lo"},
        reason="mpirun's daemons insist on a network interface besides loopback",
    ),
]

(STAGE,) = stages_of("mpi-allreduce.json")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return task_environment(STAGE, 0, [None], {}, tmp_path / "components")


def processes_of(environment: Mapping[str, str]) -> list[str]:
    """The command lines of everything that knows this gang's token: agents, daemons, ranks."""
    token = f"FLOWSCHED_GANG_TOKEN={environment['FLOWSCHED_GANG_TOKEN']}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if token in (folder / "environ").read_bytes().split(b"\0"):
                found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue  # It has ended meanwhile, or is not ours.
    return found


def running_ranks(environment: Mapping[str, str]) -> int:
    return sum(line.startswith("python -c ") for line in processes_of(environment))


def until(fact: str, holds: Callable[[], bool], timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"never: {fact}"
        time.sleep(0.1)


def test_four_ranks_on_four_addresses_find_the_components_of_all_digits(environment: dict[str, str]) -> None:
    """The first three components explain what the singular values of the whole matrix say."""
    with gang(STAGE, environment, seed=1) as members:
        finish(members)
    assert json.loads(Path(environment["FLOWSCHED_OUTPUT_COMPONENTS"]).read_text()) == {
        "ranks": 4,
        "hosts": 4,
        "images": 1797,
        "explained": [0.1489, 0.1362, 0.1179],
    }


@pytest.mark.parametrize("lost", ["launcher/0", "worker/2"])
def test_nothing_outlives_a_killed_member_but_the_agents(environment: dict[str, str], lost: str) -> None:
    """Daemons and ranks leave by themselves, even those in process groups of their own."""
    with gang(STAGE, environment, extra={"ITERATIONS": "100000"}) as members:
        until("four ranks run", lambda: running_ranks(members[0].environment) == 4)
        (victim,) = [member for member in members if member.name == lost]
        os.killpg(victim.process.pid, signal.SIGKILL)
        left = 4 if lost == "launcher/0" else 3
        until("only agents are left", lambda: len(processes_of(victim.environment)) == left)
        assert all(line.endswith("agent ") for line in processes_of(victim.environment))
        codes = {member.name: member.process.poll() for member in members if member is not victim}
    assert codes.pop("launcher/0", 1) == 1
    assert set(codes.values()) == {None}


def test_a_missing_worker_is_a_clear_failure(environment: dict[str, str]) -> None:
    """Whoever asked in vain says so."""
    with gang(STAGE, environment, absent=["worker/1"], extra={"RENDEZVOUS_TIMEOUT": "1"}) as members:
        (launcher,) = [member for member in members if member.name == "launcher/0"]
        assert launcher.process.wait(120) == 1
        assert "waited 1 s for the agent at 127." in launcher.log.read_text()
    assert not Path(environment["FLOWSCHED_OUTPUT_COMPONENTS"]).exists()


def test_an_agent_runs_nothing_for_who_does_not_know_the_token(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """The same request is carried out with the gang's token and refused with a guessed one."""
    with gang(STAGE, environment, absent=["launcher/0"]) as members:
        worker = members[0]
        program = WORKFLOWS / "programs" / "mpi_allreduce.py"

        def ask(token: str, file: Path) -> int:
            command = [
                sys.executable,
                program,
                "ask",
                worker.environment["FLOWSCHED_ADDRESS"],
                f"touch {file}",
            ]
            known = {**worker.environment, "FLOWSCHED_GANG_TOKEN": token}
            return subprocess.run(command, env=known, timeout=120, capture_output=True).returncode

        assert ask("guess", tmp_path / "refused") == 1
        assert ask(worker.environment["FLOWSCHED_GANG_TOKEN"], tmp_path / "done") == 0
        assert "does not know the gang's token" in worker.log.read_text()
    assert not (tmp_path / "refused").exists()
    assert (tmp_path / "done").exists()
