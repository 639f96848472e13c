"""What a document says reaches a container, and nothing of it the engine's own process or its options."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from flowsched.cluster.local.images import ContainerSettings
from flowsched.cluster.local.runner.engine import Engine
from flowsched.cluster.local.runner.kin import living
from flowsched.cluster.local.runner.outputs import Refused
from tests.cluster import lives
from tests.cluster.conftest import RealWorld
from tests.cluster.test_crashes import until
from tests.cluster.test_engines import engine_that, version
from tests.executors.executor_contract import pod

HOSTILE = {
    "LD_PRELOAD": "/tmp/evil.so",
    "CONTAINER_HOST": "tcp://127.0.0.1:1",
    "CONTAINERS_CONF": "/tmp/evil.conf",
    "DOCKER_CONFIG": "/tmp/evil",
    "XDG_CONFIG_HOME": "/tmp/evil",
    "PATH": "/tmp/evil",
    "TOKEN": "a secret",
}


def engine_of(kind: str) -> Engine:
    return Engine(
        {
            "kind": kind,
            "program": kind,
            "env": {"PATH": "/usr/bin", "HOME": "/home/lab"},
            "options": [],
            "name": "flowsched-1-fs-a",
            "bounded": True,
        }
    )


def started(
    kind: str, env: dict[str, str], image: str = "tool:1", argv: tuple[str, ...] = ("true",)
) -> tuple[list[str], dict[str, str]]:
    return engine_of(kind).run("c1", image, list(argv), env, [], None, "/tmp/note", reads=False)


def lines_of(command: list[str]) -> str:
    """What the file that the command names holds."""
    return Path(command[command.index("--env-file") + 1]).read_text()


@pytest.mark.parametrize("kind", ["podman", "docker"])
def test_no_variable_of_a_document_is_one_of_the_engines_process(kind: str) -> None:
    """They were: LD_PRELOAD, CONTAINER_HOST and CONTAINERS_CONF ran code outside of the container, as the service's user."""
    command, own = started(kind, HOSTILE)
    assert own == {"PATH": "/usr/bin", "HOME": "/home/lab"}
    assert not any("evil" in word or "secret" in word for word in command), (
        "other accounts read command lines"
    )
    assert lines_of(command).splitlines() == [
        "LD_PRELOAD=/tmp/evil.so",
        "CONTAINER_HOST=tcp://127.0.0.1:1",
        "CONTAINERS_CONF=/tmp/evil.conf",
        "DOCKER_CONFIG=/tmp/evil",
        "XDG_CONFIG_HOME=/tmp/evil",
        "PATH=/tmp/evil",
        "TOKEN=a secret",
    ]


def test_values_that_no_line_carries_come_under_names_that_no_program_reads() -> None:
    command, own = started("podman", {"LD_PRELOAD": "a\nb", "PLAIN": "c"}, argv=("tool", "-x"))
    assert own == {"PATH": "/usr/bin", "HOME": "/home/lab", "FLOWSCHED_VALUE_0": "a\nb"}
    assert lines_of(command) == "PLAIN=c\n"
    assert command[-8:] == [
        "/bin/sh", "--", "tool:1", "-c",
        'export LD_PRELOAD="${FLOWSCHED_VALUE_0}"; unset FLOWSCHED_VALUE_0; exec "$@"', "sh", "tool", "-x",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "value", ["a\nb", "a\r", "# a", "a#b", " a", "a ", '"a"', "'a", "`a`", "x" * 70_000, "\udcff"]
)
def test_odd_values_arrive_as_they_are(value: str) -> None:
    """Engines differ in how they read such lines of a file; some cut a value silently."""
    command, own = started("podman", {"SAID": value}, argv=(*("sh", "-c", 'printf %s "$SAID"'),))
    assert lines_of(command) == ""
    inside = {"PATH": os.defpath, "FLOWSCHED_VALUE_0": own["FLOWSCHED_VALUE_0"]}
    done = subprocess.run(
        [command[command.index("--entrypoint") + 1], *command[command.index("tool:1") + 1 :]],
        env=inside,
        capture_output=True,
        check=True,
    )
    assert done.stdout == os.fsencode(value)


def test_a_name_that_no_way_carries_is_refused_with_what_to_do() -> None:
    with pytest.raises(
        Refused, match=re.escape("the variables KEY and a.b cannot be given to one container")
    ):
        started("docker", {"a.b": "c", "KEY": "c\nd"})


def test_apptainer_has_variables_under_its_own_prefix_alone() -> None:
    _, own = started("apptainer", HOSTILE)
    assert {key for key in own if not key.startswith("APPTAINERENV_")} == {"PATH", "HOME"}
    assert own["PATH"] == "/usr/bin"


@pytest.mark.parametrize("kind", ["podman", "docker"])
@pytest.mark.parametrize("image", ["-h", "--privileged", "--rootfs=/"])
def test_an_image_is_never_an_option(kind: str, image: str) -> None:
    """Documents refuse such names; this is the second door."""
    command, _ = started(kind, {}, image)
    assert command[command.index(image) - 1] == "--"


class OddEngineWorld(RealWorld):
    """A cluster with the podman that the PATH has."""

    options = {"containers": ContainerSettings("podman")}


async def test_an_answer_that_is_not_understood_ends_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`podman image inspect -h` prints its help. The task that read it raised unseen, and the attempt was STARTING for ever."""
    engine_that(tmp_path, "podman", version("4.3.1") + '*" inspect "*) echo "Usage: podman image inspect";;')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    async with OddEngineWorld(tmp_path) as world:
        cluster, ear, _ = await world.open()
        await cluster.launch([pod("a", "true", image="tool:1")])
        end = await ear.ended("a")
    assert (end.exit_code, end.reason) == (126, "ImageRefused")
    assert "the container engine's answer about its images is not understood" in end.message


async def test_an_engine_that_outlives_runner_and_shim_starts_no_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rootless podman works in a child, which does not die with its parent: its container began after the attempt was lost."""
    facts = '[{"Id": "sha256:1", "RepoDigests": [], "Size": 7}]'
    going = f"touch {tmp_path}/begun; (sleep 3; touch {tmp_path}/container) & wait"
    engine_that(
        tmp_path,
        "podman",
        version("4.3.1") + f"""*" image inspect "*) echo '{facts}';;\n*" --cidfile "*) {going};;""",
    )
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    async with OddEngineWorld(tmp_path) as world:
        cluster, ear, _ = await world.open()
        await cluster.launch([pod("a", "true", image="tool:1")])
        await until((tmp_path / "begun").exists, "the engine")
        found = lives.found(world.attempt("a"))
        assert found is not None
        pids = [living(found[0].shim), *lives.living_runners(world.root)]
        assert len(pids) == 2
        assert all(pids)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                os.kill(pid, number)
        assert (await ear.gone("a")).reason == "RunnerLost"
        await asyncio.sleep(3.5)
    assert not (tmp_path / "container").exists()


async def test_a_program_that_its_engine_cannot_be_given_ends_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal came when the attempt had begun: its process ended by it, and the attempt was lost again and again."""
    facts = '[{"Id": "sha256:1", "RepoDigests": [], "Size": 7}]'
    engine_that(tmp_path, "podman", version("4.3.1") + f"""*" image inspect "*) echo '{facts}';;""")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    async with OddEngineWorld(tmp_path) as world:
        cluster, ear, _ = await world.open()
        await cluster.launch([pod("a", "true", image="tool:1", env={"A": "x\ny", "b.c": "1"})])
        end = await ear.ended("a")
    assert (end.exit_code, end.reason) == (126, "StartFailed")
    assert "the variables A and b.c cannot be given to one container" in end.message
