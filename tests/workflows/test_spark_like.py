"""A driver, and executors which may come late, or be lost."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from document_runner import finish, gang, stages_of, task_environment

(STAGE,) = stages_of("spark-like.json")

#: Found by awk over the same file, which shares no code with the program.
KNOWN = {"reads": 3307, "kmers": 50238, "distinct": 7629, "most": ["A" * 21, 42], "partitions": 24}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return task_environment(STAGE, 0, [None], {}, tmp_path / "kmers")


def summary(environment: dict[str, str]) -> dict[str, object]:
    return json.loads(Path(environment["FLOWSCHED_OUTPUT_SUMMARY"]).read_text())


def test_four_executors_share_the_partitions(environment: dict[str, str]) -> None:
    """Every read is counted once, and all executors had work, since it began when all had come."""
    with gang(STAGE, environment, seed=3, extra={"PARTITION_DELAY_MS": "50", "EXECUTORS": "4"}) as members:
        finish(members)
    assert summary(environment) == {**KNOWN, "executors": 4, "lost": 0}
    first, *_, last = Path(environment["FLOWSCHED_OUTPUT_KMERS"]).read_text().splitlines()
    assert first == "A" * 21 + "\t42"
    assert last.endswith("\t1")


def test_a_lost_executors_partition_is_done_by_another(environment: dict[str, str]) -> None:
    """Nothing is lost with it, and nothing counted twice."""
    with gang(STAGE, environment, extra={"PARTITION_DELAY_MS": "500", "EXECUTORS": "3"}) as members:
        (driver,) = [member for member in members if member.role == "driver"]
        (victim,) = [member for member in members if member.name == "executor/1"]
        come = f"executor {victim.environment['FLOWSCHED_ADDRESS']} has come\n"
        end = time.monotonic() + 120
        while come not in driver.log.read_text():
            assert time.monotonic() < end, driver.log.read_text()
            time.sleep(0.02)
        os.killpg(victim.process.pid, signal.SIGKILL)
        finish(members)
    found = summary(environment)
    assert found["lost"] == 1
    assert {name: found[name] for name in KNOWN} == KNOWN


def test_two_of_four_executors_are_enough(environment: dict[str, str]) -> None:
    """The minimum of the role."""
    with gang(
        STAGE, environment, absent=["executor/0", "executor/3"], extra={"PARTITION_DELAY_MS": "0"}
    ) as members:
        finish(members)
    assert summary(environment) == {**KNOWN, "executors": 2, "lost": 0}


def test_one_executor_is_not_enough(environment: dict[str, str]) -> None:
    """The driver does not begin below the minimum, and says so."""
    absent = ["executor/0", "executor/1", "executor/2"]
    with gang(STAGE, environment, absent=absent, extra={"RENDEZVOUS_TIMEOUT": "4"}) as members:
        (driver,) = [member for member in members if member.role == "driver"]
        assert driver.process.wait(120) == 1
        assert driver.log.read_text().splitlines()[-1] == "1 of 2 executors came within 4 s"
    assert not Path(environment["FLOWSCHED_OUTPUT_SUMMARY"]).exists()
