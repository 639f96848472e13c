"""Which engine is taken, and what it is told it can do, by what real engines said: a script says it again.

The real ones are tried in tests/containers, as root. Rootless podman 4.3 on control groups of version 1 was asked by hand.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flowsched.cluster.local import containers
from flowsched.cluster.local.containers import find_engine
from flowsched.cluster.local.images import ContainerSettings, Images
from tests.executors.executor_contract import pod

ROOTLESS = "Resource limits are not supported and ignored on cgroups V1 rootless systems"
SETRLIMIT = "Error: runc: runc create failed: error setting rlimits for process: setrlimit RLIMIT_NOFILE: Operation not permitted"
RLIMIT = "Error: OCI runtime error: error setting rlimits: setting rlimit type 7: operation not permitted; OCI permission denied"
NO_INIT = "Error: container-init binary not found on the host: stat /usr/libexec/podman/catatonit: no such file or directory"


def engine_that(folder: Path, name: str, answers: str) -> None:
    """A program that does as the branches of a `case` over its arguments say."""
    program = folder / name
    program.write_text(f'#!/bin/sh\ncase " $* " in\n{answers}\n*) exit 0;;\nesac\n')
    program.chmod(0o755)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(containers, "AGAIN_S", 0.0)
    return tmp_path


def version(text: str) -> str:
    return f'*" --version "*) echo "podman version {text}";;\n'


def test_limits_that_are_ignored_are_no_limits(path: Path) -> None:
    """Then flowsched watches the memory, and asks for no limits: each task would have that line in its stderr."""
    engine_that(path, "podman", version("4.3.1") + f'*" --memory "*) echo "{ROOTLESS}" >&2;;')
    engine, why = find_engine("podman")
    assert engine is not None, why
    assert (engine.bounded, engine.init, engine.version) == (False, True, "4.3.1")


def test_a_first_process_that_is_not_installed(path: Path) -> None:
    engine_that(path, "podman", version("4.3.1") + f'*" --init "*) echo "{NO_INIT}" >&2; exit 125;;')
    engine, why = find_engine("podman")
    assert engine is not None, why
    assert (engine.bounded, engine.init) == (True, False)


def test_one_failed_trial_takes_no_options_away(path: Path) -> None:
    """The engine is asked once in the life of a service: a busy machine would cost all its tasks their limits."""
    fails_once = (
        f'*" run "*) [ -e {path}/failed ] || {{ touch {path}/failed; echo "timed out" >&2; exit 125; }};;'
    )
    engine_that(path, "podman", version("4.3.1") + fails_once)
    engine, why = find_engine("podman")
    assert engine is not None, why
    assert (engine.bounded, engine.init) == (True, True)


@pytest.mark.parametrize("words", [SETRLIMIT, RLIMIT])
def test_an_engine_that_does_not_work_is_passed_over_with_its_words_and_a_remedy(
    path: Path, words: str
) -> None:
    engine_that(path, "podman", version("4.3.1") + f'*" run "*) echo "{words}" >&2; exit 126;;')
    engine_that(path, "docker", '*" version "*) echo "Version: 28.2.2";;')
    engine, why = find_engine("auto")
    assert engine is not None
    assert engine.kind == "docker"
    (said,) = why
    assert said.startswith("podman: Error: ")
    assert "default_ulimits" in said


async def test_a_refusal_begins_with_what_to_do(path: Path) -> None:
    """Lists cut it at their width: the engine's own words come last."""
    engine_that(path, "podman", version("4.3.1") + f'*" run "*) echo "{RLIMIT}" >&2; exit 126;;')
    with ThreadPoolExecutor(1) as pool:
        images = Images(ContainerSettings("podman"), path, pool, lambda *_: None, lambda _: True)
        asked = pod("a", "true", image="bwa:2")
        await images.have(asked, lambda *_: None)
        _, message = images.order(asked, path, [], {})["refused"]
        await images.close()
    advice, _, found = message.partition(" Found: ")
    assert advice == (
        "no container engine runs the image 'bwa:2': `flowsched doctor` says what to mend, `--images ignore` of "
        "`flowsched serve` or `run` takes the programs of this machine."
    )
    assert "default_ulimits" in found


def test_the_storage_that_copies_images_is_known(path: Path) -> None:
    engine_that(path, "podman", version("4.3.1") + '*" info "*) echo vfs;;')
    engine, _ = find_engine("podman")
    assert engine is not None
    assert engine.copies_images()


async def test_an_image_is_looked_for_once_however_many_tasks_wait(path: Path) -> None:
    """A hundred tasks that start together ran `podman image inspect` a hundred times."""
    facts = '[{"Id": "sha256:1", "RepoDigests": [], "Size": 7}]'
    engine_that(
        path,
        "podman",
        version("4.3.1") + f"""*" inspect "*) echo x >>{path}/asked; sleep 0.2; echo '{facts}';;""",
    )
    seen: list[tuple[str, int]] = []
    with ThreadPoolExecutor(20) as pool:
        images = Images(
            ContainerSettings("podman"), path, pool, lambda *found: seen.append(found), lambda _: True
        )
        pods = [pod(f"p{number}", "true", image="tool:1") for number in range(20)]
        await asyncio.gather(*(images.have(each, lambda *_: None) for each in pods))
        await images.close()
    assert all(images.is_ready(each) for each in pods)
    assert seen == [("tool:1", 7)]
    assert (path / "asked").read_text() == "x\n"


def test_a_container_goes_once_its_runner_has_said_that_it_does_not_start_it(path: Path) -> None:
    """A service that starts and ends while a runner of an earlier one is silent asks again: containers were left."""
    removed = path / "removed"
    engine_that(path, "podman", f'*" ps "*) echo "c1 fs-a";;\n*" rm "*) echo "$*" >> {removed};;')
    (path / "engines").write_text(f"podman {path}/podman\n")
    known: list[bool | None] = [None, None, True]
    asked: list[str] = []

    def is_over(attempt: str) -> bool | None:
        asked.append(attempt)
        return known[min(len(asked), len(known)) - 1]

    async def serve() -> None:
        with ThreadPoolExecutor(1) as pool:
            images = Images(ContainerSettings(), path, pool, lambda _name, _size: None, is_over)
            await images.sweep()
            assert not removed.exists(), "it may still run"
            await images.close()

    asyncio.run(serve())
    assert asked == ["fs-a", "fs-a", "fs-a"]
    assert removed.read_text().split()[-1] == "c1"
