"""Six processes that train only together."""

import json
import os
import signal
import socket
import struct
import time
from pathlib import Path

import pytest
from document_runner import Member, finish, gang, stages_of, task_environment

(STAGE,) = stages_of("parameter-server.json")


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return task_environment(STAGE, 0, [None], {}, tmp_path / "train")


def codes_of(members: list[Member], timeout_s: float = 120) -> dict[str, int]:
    """How each member ended by itself."""
    return {member.name: member.process.wait(timeout_s) for member in members}


def member(members: list[Member], name: str) -> Member:
    return next(member for member in members if member.name == name)


def wait_for(member: Member, text: str, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while text not in member.log.read_text():
        assert time.monotonic() < deadline, f"{member.name} never said {text!r}"
        time.sleep(0.05)


def test_digits_are_learned_alike_whatever_order_the_members_start_in(tmp_path: Path) -> None:
    """Above 95 % of the images never seen are read rightly, and both runs end with the same parameters."""
    models = []
    for seed in (1, 2):
        environment = task_environment(STAGE, 0, [None], {}, tmp_path / str(seed))
        with gang(STAGE, environment, seed=seed, extra={"STEP_DELAY_MS": "0"}) as members:
            finish(members)
        report = json.loads(Path(environment["FLOWSCHED_OUTPUT_ACCURACY"]).read_text())
        assert report["accuracy"] >= 0.95
        assert report["last_loss"] < report["first_loss"] / 10
        assert (report["steps"], report["servers"], report["workers"]) == (112, 2, 4)
        models.append(Path(environment["FLOWSCHED_OUTPUT_MODEL"]).read_bytes())
    assert models[0] == models[1]


@pytest.mark.parametrize("absent", ["ps/0", "ps/1", "worker/3"])
def test_five_of_six_never_train(environment: dict[str, str], absent: str) -> None:
    """Whoever is missing, all others give up with code 1, and no output exists."""
    with gang(STAGE, environment, absent=[absent], extra={"RENDEZVOUS_TIMEOUT": "1.5"}) as members:
        codes = codes_of(members)
        logs = [member.log.read_text() for member in members]
    assert len(codes) == 5
    assert set(codes.values()) == {1}
    assert all("the gang" in log for log in logs)
    assert not any("epoch" in log for log in logs)
    assert not Path(environment["FLOWSCHED_OUTPUT_ACCURACY"]).exists()


def test_who_is_missing_is_named(environment: dict[str, str]) -> None:
    """Rank 0 has the list."""
    with gang(STAGE, environment, absent=["worker/3"], extra={"RENDEZVOUS_TIMEOUT": "4"}) as members:
        codes_of(members)
        log = member(members, "ps/0").log.read_text()
    assert log == "rank 0: waited 4 s for the gang in vain: ranks [5] of 6 never came\n"


def test_a_stranger_cannot_take_the_place_of_a_member(environment: dict[str, str]) -> None:
    """Who does not know the token is turned away, though it calls itself rank 5."""
    with gang(STAGE, environment, absent=["worker/3"], extra={"RENDEZVOUS_TIMEOUT": "4"}) as members:
        address = (members[0].environment["MASTER_ADDR"], int(members[0].environment["MASTER_PORT"]))
        deadline = time.monotonic() + 60
        while True:
            try:
                stranger = socket.create_connection(address)
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.02)
        with stranger:
            stranger.sendall(struct.pack("!I5sII", 5, b"guess", 4, 5))
            assert set(codes_of(members).values()) == {1}


def test_a_worker_lost_in_training_ends_the_others(environment: dict[str, str]) -> None:
    """They do not wait for a gradient that never comes."""
    with gang(STAGE, environment, extra={"EPOCHS": "1000"}) as members:
        wait_for(member(members, "worker/0"), "epoch 2")
        os.killpg(member(members, "worker/2").process.pid, signal.SIGKILL)
        codes = codes_of(members)
    assert codes.pop("worker/2") == -signal.SIGKILL
    assert set(codes.values()) == {1}


def test_servers_end_with_their_workers(environment: dict[str, str]) -> None:
    """Nobody has to kill them, though the service may."""
    with gang(STAGE, environment, extra={"EPOCHS": "1", "STEP_DELAY_MS": "0"}) as members:
        assert set(codes_of(members).values()) == {0}
