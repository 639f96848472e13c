"""The policy of a service that runs: reloaded, refused, extended by plugins, and recorded."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from structlog.testing import capture_logs

import flowsched
from flowsched.app import Running, Settings, running
from flowsched.client import Client
from flowsched.cluster.local.settings import LocalSettings
from flowsched.control.profiles import ProfileBook, find_plugins
from flowsched.errors import ConfigurationError, Conflict, InvalidDocument
from flowsched.scheduling.explain.recording import plan_bytes, replayed, unpacked
from tests.forks import ran
from tests.packages import install

DOCS = Path(flowsched.__file__).parent.parent / "docs"
BLOCKS = dict(
    re.findall(
        r"```(python|toml|yaml)\n(.*?)```",
        (DOCS / "plugins.md").read_text(encoding="utf-8").partition("It is a plugin as soon")[0]
        + (DOCS / "plugins.md").read_text(encoding="utf-8").partition("It is a plugin as soon")[2].partition("Parameters are")[0],
        re.DOTALL,
    )
)  # fmt: skip
WAITING = {
    "name": "two",
    "stages": [
        {"name": "s", "scatter": {"count": 3}, "command": ["true"], "resources": {"cpu": "100m"}},
    ],
}


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The package of docs/plugins.md, installed."""
    folder = tmp_path / "site"
    folder.mkdir()
    install(folder, "lab_plugins", BLOCKS["python"], BLOCKS["toml"])
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "lab_plugins", raising=False)
    return folder


def settings(tmp_path: Path, **more: Any) -> Settings:
    local = LocalSettings(nodes=2, cpu="2", memory="1Gi", labels=("node-1:disktype=ssd",))
    return Settings(root=tmp_path / "root", port=0, local=local, **more)


async def until(fact: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not fact():
            await asyncio.sleep(0.02)


async def until_something_waits(here: Running) -> None:
    """A service that is held up for longer than its lease has no state until it leads again."""
    await until(lambda: (state := here.service._state()) and state.round.reasons)


def test_the_example_of_the_documentation_has_ten_lines() -> None:
    """Without blank ones, imports included."""
    assert len([line for line in BLOCKS["python"].splitlines() if line.strip()]) <= 10


def test_plugins_are_found_by_their_entry_points(plugins: Path) -> None:
    """With kind, package and parameters; one that cannot be loaded keeps no other from being found."""
    (plugins / "bad.py").write_text("import nothing_like_that\n")
    install(
        plugins, "none", "x = 7\n",
        '[project]\nname = "none"\nversion = "2"\n[project.entry-points."flowsched.plugins"]\nbad = "bad:x"\nnone = "none:x"\n'
        'only-ssd = "none:x"\n',
    )  # fmt: skip
    found = find_plugins()
    assert found.plugins.keys() == set()
    assert found.broken["bad"] == "ModuleNotFoundError: No module named 'nothing_like_that'"
    assert found.broken["none"].startswith("7 is not marked as a plugin")
    assert found.broken["only-ssd"].startswith("both lab-plugins 1.0 and none 2 offer it")


async def test_a_profile_is_reloaded_while_the_service_runs(tmp_path: Path, plugins: Path) -> None:
    """A good one is in force with the next step; a bad one changes nothing, and is told until it is mended."""
    file = tmp_path / "profile.yaml"
    file.write_text("name: first\nwindow: 11\n")
    async with running(settings(tmp_path, profile=file)) as here, Client(here.url) as client:
        book = here.service.policies.book
        state = here.service._state()
        assert (state.policy.profile.name, state.policy.profile.window) == ("first", 11)

        file.write_text("name: second\nfilters: [only-ssd]\n")
        await until(lambda: state.policy.profile.name == "second")
        view = await client.profile()
        assert (view.name, view.source, view.kept, view.refused) == ("second", str(file), True, None)
        assert view.document["profiles"]["second"]["filters"] == [{"name": "only-ssd", "disktype": "ssd"}]

        file.write_text("name: third\nfilters: [only-ssdd]\nwindow: -1\n")
        await until(lambda: book.refused is not None)
        view = await client.profile()
        assert (view.name, state.policy.profile.name) == ("second", "second")
        assert view.refused is not None
        assert [fault["path"] for fault in view.refused.faults] == ["$.filters[0]", "$.window"]

        file.unlink()
        await until(lambda: book.refused.faults[0].expected == "a file that can be read")
        file.write_text("name: fourth\n")
        await until(lambda: state.policy.profile.name == "fourth")
        assert (await client.profile()).refused is None


async def test_a_filter_of_the_documentation_works(tmp_path: Path, plugins: Path) -> None:
    """Its tasks run on the node with the label; and without such a node they say why they wait."""
    async with running(settings(tmp_path)) as here, Client(here.url) as client:
        await client.put_profile(BLOCKS["yaml"])
        run = await client.submit(WAITING)
        await client.wait(run.id, timeout=300)
        assert {task.node async for task in client.tasks(run.id)} == {"node-1"}

        await client.put_profile({"name": "lab", "filters": [{"name": "only-ssd", "disktype": "nvme"}]})
        run = await client.submit(WAITING)

        await until_something_waits(here)
        (reason,) = await client.explain(run.id)
        assert reason.message == "no node allows task: of 2 ready nodes 2 nodes lack the label disktype=nvme"
        (listed,) = await client.plugins()
        assert (listed.name, listed.kind, listed.origin, listed.used_by) == (
            "only-ssd", "filter", "lab-plugins 1.0", ["lab"],
        )  # fmt: skip

        await client.put_profile("name: any\n")  # and what waited goes on
        await client.wait(run.id, timeout=300)


async def test_a_plugin_that_fails_keeps_the_service_alive(tmp_path: Path, plugins: Path) -> None:
    """What it keeps waiting says so, it is counted and logged, and another profile sets it right."""
    install(
        plugins, "wild", "from flowsched.scheduling.policy.extension import plugin\n@plugin('filter')\n"
        "def wild(snapshot, shape):\n    return snapshot.nothing if 'node-1' in snapshot.index else (snapshot.ready, '')\n",
        '[project]\nname = "wild"\nversion = "1"\n[project.entry-points."flowsched.plugins"]\nwild = "wild:wild"\n',
    )  # fmt: skip
    with capture_logs() as logged:
        await _fails_and_lives(tmp_path)
    assert {each["plugin"] for each in logged if each["event"] == "plugin failed"} == {"wild"}


async def _fails_and_lives(tmp_path: Path) -> None:
    async with running(settings(tmp_path)) as here, Client(here.url) as client:
        await client.put_profile("{name: lab, filters: [wild]}")
        await until(lambda: (state := here.service._state()) and state.policy.profile.name == "lab")
        run = await client.submit(WAITING)
        await until_something_waits(here)
        (reason,) = await client.explain(run.id)
        assert reason.message == (
            "no node allows task: of 2 ready nodes 2 nodes are not judged: plugin wild failed"
        )
        wild = next(each for each in await client.plugins() if each.name == "wild")
        assert wild.failures >= 1
        assert wild.last_failure == "AttributeError: 'Snapshot' object has no attribute 'nothing' (wild.py:4)"
        here.service.policies.book.log_trouble()
        await client.put_profile("name: plain")
        done = await client.wait(run.id, timeout=300)
        assert done.state == "SUCCEEDED"


async def test_a_plugin_that_fails_at_once_never_comes_into_force(tmp_path: Path, plugins: Path) -> None:
    """It is asked about a small made-up cluster before; the fault says where it is named and where it failed."""
    install(
        plugins, "hasty", "from flowsched.scheduling.policy.extension import plugin\n@plugin('cost')\n"
        "def hasty(snapshot, catalogue, group, role):\n    return snapshot.inbound / 2\n",
        '[project]\nname = "hasty"\nversion = "1"\n[project.entry-points."flowsched.plugins"]\nhasty = "hasty:hasty"\n',
    )  # fmt: skip
    book = ProfileBook(clock=lambda: 7)
    with pytest.raises(InvalidDocument) as raised:
        await book.apply(b"{name: lab, costs: [hasty]}")
    (fault,) = raised.value.faults
    assert fault.path == "$.costs[0]"
    assert fault.found == (
        "plugin hasty, which fails: WrongAnswer: an array of 3 int64 is asked for, this is an array (3,) of float64"
    )
    assert book.profile.name == "flowsched"
    await book.apply(b"{default: a, profiles: {a: {}}}")
    with pytest.raises(
        InvalidDocument, match=r"\$.profiles.b.step_costs\[0\]: found plugin hasty, which fails"
    ):
        await book.apply(b"{default: a, profiles: {a: {}, b: {step_costs: [hasty]}}}")


async def test_a_bad_profile_is_refused_over_the_api(tmp_path: Path) -> None:
    """422 with every fault; text that is none is 400; what was in force stays."""
    async with (
        running(settings(tmp_path)) as here,
        Client(here.url) as client,
        ClientSession(here.url) as session,
    ):
        with pytest.raises(InvalidDocument) as raised:
            await client.put_profile({"name": "x", "gang": 3, "windo": 1})
        assert {fault.path for fault in raised.value.faults} == {"$.gang", "$.windo"}
        async with session.put("/api/v1/profile", data=b"a: [") as answer:
            assert (answer.status, "not YAML" in (await answer.json())["detail"]) == (400, True)
        view = await client.profile()
        assert (view.name, view.source, view.kept) == ("flowsched", "built in", True)
        view = await client.put_profile("name: x\n")
        assert (view.name, view.source, view.kept) == ("x", "the API", False)


async def test_what_is_applied_is_written_to_the_profile_file(tmp_path: Path) -> None:
    """So that a restart finds it; where the file cannot be written, nothing changes."""
    folder = tmp_path / "config"
    folder.mkdir()
    file = folder / "profile.yaml"
    file.write_text("name: first\n")
    file.chmod(0o640)
    book = ProfileBook(path=file, clock=lambda: 7)
    await book.apply(b"# mine\nname: second\n")
    assert file.read_bytes() == b"# mine\nname: second\n"
    assert (file.stat().st_mode & 0o777, os.listdir(folder)) == (0o640, ["profile.yaml"])
    assert ProfileBook(path=file, clock=lambda: 8).profile.name == "second"
    assert (await book.poll(), book.persists) == (False, True)
    book.path = tmp_path / "gone" / "profile.yaml"
    with pytest.raises(Conflict, match=r"cannot be written .No such file or directory.: change it where"):
        await book.apply(b"name: third\n")
    assert book.profile.name == "second"


async def test_a_file_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    """Only what has stood still for a look: half a document may be a good one."""
    file = tmp_path / "profile.yaml"
    file.write_text("name: first\n")
    book = ProfileBook(path=file, clock=lambda: 7)
    file.write_text("name: second\n")
    assert (await book.poll(), book.profile.name) == (False, "first")
    file.write_text("name: second\nwindow: 3\n")
    assert (await book.poll(), book.profile.name) == (False, "first")
    assert (await book.poll(), book.profile.name, book.profile.window) == (True, "second", 3)


def test_a_service_does_not_start_with_a_wrong_profile(tmp_path: Path) -> None:
    """Every fault is told; a file that is not there is named."""
    file = tmp_path / "profile.yaml"
    with pytest.raises(ConfigurationError, match=r"--profile .*profile.yaml: No such file"):
        ProfileBook(path=file, clock=lambda: 7)
    file.write_text("name: x\nwindow: no\n")
    with pytest.raises(InvalidDocument, match=r'\$.window: found "no"'):
        ProfileBook(path=file, clock=lambda: 7)


async def test_a_running_service_is_recorded_and_replayed(tmp_path: Path) -> None:
    """The next cycle with what waits; and the cluster alone where nothing does. Recording changes nothing."""
    async with running(settings(tmp_path)) as here, Client(here.url) as client:
        idle = unpacked(await client.snapshot())
        assert (len(idle.inputs["snapshot"]), list(idle.inputs["backlog"])) == (2, [])
        stages = [{**WAITING["stages"][0], "resources": {"cpu": 9}}]  # type: ignore[dict-item]
        run = await client.submit({"name": "big", "stages": stages})
        await until_something_waits(here)
        record = unpacked(await client.snapshot())
        assert [group.name for group in record.inputs["backlog"]] == ["big/s"]
        assert json.loads(record.plan)["reasons"][0]["code"] == "LargerThanNode"
        assert plan_bytes(replayed(record)) == record.plan
        assert here.service._leader.dispatcher.tape is None
        both = await asyncio.gather(client.snapshot(), client.snapshot())
        assert all(plan_bytes(replayed(unpacked(raw))) == unpacked(raw).plan for raw in both)
        await client.cancel(run.id)


def flow(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return ran(arguments, env={**os.environ, **environment})


def test_the_commands_work_with_a_plugin_that_is_installed(tmp_path: Path, plugins: Path) -> None:
    """serve, profile plugins, check, show and apply, snapshot and replay, each a process of its own."""
    file = tmp_path / "lab.yaml"
    file.write_text(BLOCKS["yaml"])
    path = {"PYTHONPATH": os.pathsep.join([str(plugins), str(DOCS.parent)])}
    assert flow("profile", "check", str(file), **path).stdout == "good: default lab\n"
    serving = subprocess.Popen(
        [sys.executable, "-m", "flowsched", "serve", "--port", "0", "--root", str(tmp_path / "root"), "--nodes", "2",
         "--cpu", "2", "--memory", "1Gi", "--label", "node-1:disktype=ssd", "--profile", str(file), "--log-json"],
        env={**os.environ, **path}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert serving.stderr is not None
        ready = next(line for line in serving.stderr if '"ready"' in line)
        server = {**path, "FLOWSCHED_SERVER": json.loads(ready)["url"]}
        listed = flow("profile", "plugins", **server).stdout
        assert re.search(
            r"^only-ssd +filter +lab-plugins 1.0 +disktype=ssd +lab +0 +Only nodes with", listed, re.M
        )
        document = tmp_path / "two.json"
        document.write_text(json.dumps(WAITING))
        assert flow("submit", str(document), "--wait", **server).returncode == 0
        ident = json.loads(flow("ls", "-o", "json", **server).stdout)[0]["id"]
        tasks = json.loads(flow("show", ident, "--tasks", "-o", "json", **server).stdout)["tasks"]
        assert {task["node"] for task in tasks} == {"node-1"}
        shown = flow("profile", "show", **server)
        assert (shown.returncode, "only-ssd(disktype=ssd)" in shown.stdout) == (0, True)
        wrong = tmp_path / "wrong.yaml"
        wrong.write_text("{name: x, packing: tight}")
        refused = flow("profile", "apply", str(wrong), **server)
        assert (refused.returncode, '$.packing: found "tight"' in refused.stderr) == (2, True)
        taken = tmp_path / "cycle.zip"
        assert flow("snapshot", str(taken), **server).returncode == 0
        again = flow("replay", str(taken), **path)
        assert (again.returncode, again.stdout.splitlines()[0]) == (0, "the plan is the same, byte for byte")
    finally:
        serving.terminate()
        serving.wait(60)
    missing = flow("replay", str(taken), PYTHONPATH=str(DOCS.parent))
    assert (missing.returncode, 'found "only-ssd", expected a filter plugin' in missing.stderr) == (2, True)
