"""Executors of other packages: found by name, refused with a reason, and told their options."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flowsched.app import Settings, now_ms, running
from flowsched.cli.app import app
from flowsched.cluster import registry
from flowsched.errors import ConfigurationError
from flowsched.executor.protocol import ServiceContext
from tests.packages import install

Offer = Callable[[str, str], None]


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Offer:
    """Install a package `lab` 1.0 whose executor has a name, and a module with some code."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))

    def made(name: str, code: str) -> None:
        monkeypatch.delitem(sys.modules, "lab_executor", raising=False)
        points = f'[project.entry-points."flowsched.executors"]\n{name} = "lab_executor:make"\n'
        install(folder, "lab_executor", code, f'[project]\nname = "lab"\nversion = "1.0"\n{points}')

    return made


async def opened(name: str, **options: Any) -> object:
    return await registry.open_executor(name, options, ServiceContext("/nowhere", now_ms))


def test_both_of_our_own_are_known_to_a_checkout_without_metadata(monkeypatch: pytest.MonkeyPatch) -> None:
    """They load, from the table of names."""
    monkeypatch.setattr(registry, "entries", lambda group: {})
    found = registry.executors()
    assert list(found) == ["kubernetes", "local"]
    assert all(callable(each.load()) for each in found.values())


def test_the_metadata_of_the_project_says_the_same_as_the_table() -> None:
    """A wheel registers what a checkout falls back to."""
    import tomllib

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["flowsched.executors"] == registry.BUILT_IN


async def test_an_unknown_one_is_refused_with_those_there_are(offer: Offer) -> None:
    """And with how to install another."""
    offer("hosts", "make = None\n")
    with pytest.raises(
        ConfigurationError, match=r"no executor 'slurm'; there are hosts, kubernetes, local\..*pip install"
    ):
        await opened("slurm")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import nothing_like_that\n", "the executor 'hosts' of lab 1.0 cannot be loaded: ModuleNotFoundError: No module named"),
        ("make = 7\n", "the executor 'hosts' of lab 1.0 is broken: TypeError: 'int' object is not callable"),
        ("async def make(options, service):\n    return 7\n", "is broken: lab_executor:make gave 7, no Executor"),
        (
            "from flowsched.executor.protocol import Executor\nclass Half(Executor):\n    pass\n"
            "async def make(options, service):\n    return Half()\n",
            "is broken: TypeError: Can't instantiate abstract class Half with abstract methods adopt, events",
        ),
    ],
)  # fmt: skip
async def test_a_broken_one_names_its_package_and_why(offer: Offer, code: str, why: str) -> None:
    """Code that cannot be imported, is no factory, or gives no whole executor."""
    offer("hosts", code)
    with pytest.raises(ConfigurationError) as refused:
        await opened("hosts")
    assert why in str(refused.value)


async def test_two_packages_cannot_offer_one_name(offer: Offer) -> None:
    """Neither is taken in place of the other, flowsched's own names included."""
    offer("local", "make = None\n")
    with pytest.raises(
        ConfigurationError, match=r"'local' .*: both flowsched.* and lab 1.0 offer it: uninstall one"
    ):
        await opened("local")


def test_the_command_line_refuses_what_the_service_would(tmp_path: Path) -> None:
    """Exit code 2, as for other settings that are wrong."""
    serve = ["serve", "--no-supervise", "--port", "0", "--root", str(tmp_path / "root")]
    for words, why in (
        (["--cluster", "slurm"], "there is no executor 'slurm'"),
        (["--cluster-option", "a=b"], "local has options of its own"),
        (["--cluster-option", "ab"], "'ab' is no KEY=VALUE"),
    ):
        refused = CliRunner().invoke(app, [*serve, *words])
        assert (refused.exit_code, why in refused.stderr) == (2, True), refused.stderr


def test_the_doctor_lists_them(offer: Offer, tmp_path: Path) -> None:
    """Those that load in one line, each that does not in its own."""
    offer("hosts", "import nothing_like_that\n")
    told = CliRunner().invoke(app, ["doctor", "--root", str(tmp_path)]).stdout
    assert "executors     kubernetes, local" in told
    assert "hosts of lab 1.0 cannot be loaded: ModuleNotFoundError" in told


async def test_the_factory_refuses_options_that_it_does_not_know(tmp_path: Path) -> None:
    """The service does not start, and the options that there are stand in the message."""
    from tests.executors import hosts

    with pytest.raises(ConfigurationError, match=r"the options are hosts, folder, command, cpu, memory"):
        await hosts.open_hosts({"hosts": "a", "colour": "red"}, ServiceContext(str(tmp_path), now_ms))
    with pytest.raises(ConfigurationError, match="no executor 'hosts'"):
        async with running(Settings(root=tmp_path / "root", port=0, cluster="hosts")):
            pass
