"""What pyproject.toml asks for, and the versions that development is done with."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.deploy.rendering import ROOT

ABOUT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKED = ROOT / "constraints.txt"


def requirements() -> Iterator[Requirement]:
    """Of the base and of every extra."""
    extras = [entry for entries in ABOUT["optional-dependencies"].values() for entry in entries]
    yield from map(Requirement, [*ABOUT["dependencies"], *extras])


def test_every_dependency_has_a_lower_bound() -> None:
    """`make lower-bounds` tries them; a dependency without one would be tried in its first version ever."""
    bare = [each.name for each in requirements() if not any(part.operator == ">=" for part in each.specifier)]
    assert bare == []


def test_the_locked_versions_are_those_that_are_asked_for() -> None:
    """Each dependency has one version, within its bounds, and no line names an index: `make lock` writes the file anew."""
    lines = [line for line in LOCKED.read_text().splitlines() if line and not line.startswith("#")]
    pinned = [Requirement(line) for line in lines]
    assert [line for line in lines if "://" in line or line.startswith("-")] == []
    versions: dict[str, list[Version]] = {}
    for each in pinned:
        (exact,) = each.specifier
        assert exact.operator == "=="
        versions.setdefault(canonicalize_name(each.name), []).append(Version(exact.version))
    for each in requirements():
        found = versions.get(canonicalize_name(each.name), [])
        assert found, f"{each.name} is not in constraints.txt: make lock"
        assert all(each.specifier.contains(version, prereleases=True) for version in found), (each, found)


def test_the_links_of_the_project_lead_into_the_repository() -> None:
    """Absolute, as an index shows them."""
    assert {"Homepage", "Documentation", "Changelog", "Issues", "Source"} <= ABOUT["urls"].keys()
    assert all(url.startswith("https://") for url in ABOUT["urls"].values())
    for url in ABOUT["urls"].values():
        _, found, path = url.partition("/blob/main/")
        assert not found or (ROOT / path).exists(), url
