"""The cache of results over a whole service: what is taken, what runs, and why."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest

from flowsched.control.leading.retention import Expiry
from flowsched.errors import Conflict, InvalidDocument
from flowsched.executor.protocol import Fingerprint, Pod
from flowsched.store.database import url_for
from flowsched.workflow.views import TaskView
from tests.cluster.fake import FakeProcesses, Outcome
from tests.service.processes import Process, process
from tests.soak import worlds

SMALL = {"cpu": "100m", "memory": "1Mi"}
OUT = [{"name": "o", "path": "o"}]
QUICK = Outcome(runtime_ms=1)


class Lab:
    """A service over fake pods; `fails` names stages whose tasks fail."""

    def __init__(self, one: Process, world: FakeProcesses) -> None:
        self.one, self.world = one, world
        self.fails: set[str] = set()
        world.script = self._outcome

    def _outcome(self, pod: Pod) -> Outcome:
        return Outcome(runtime_ms=1, exit_code=int(pod.stage in self.fails))

    async def run(self, document: dict[str, Any], **more: Any) -> str:
        """To its end."""
        ident = (await self.one.service.submit(json.dumps({**document, **more}).encode())).id
        async with asyncio.timeout(60):
            while (await self.one.service.workflow(ident)).ended_at is None:
                await asyncio.sleep(0.02)
        return ident

    async def tasks(self, ident: str) -> list[TaskView]:
        return (await self.one.service.tasks(ident, limit=1000)).tasks

    async def found(self, ident: str) -> list[tuple[str, int, str]]:
        """(stage, shards, "from …" or why they ran) of the workflow's look-ups."""
        views = await self.one.service.cache(ident)
        return [(v.stage, v.shards, f"from {v.source}" if v.source else v.why) for v in views]


@pytest.fixture
async def lab(tmp_path: Path) -> AsyncIterator[Lab]:
    world = FakeProcesses(lambda _: QUICK)
    async with process(url_for(tmp_path / "db"), tmp_path, world) as one:
        one.lead()
        await one.ready()
        yield Lab(one, world)


def stage(name: str, *parents: str, **more: Any) -> dict[str, Any]:
    inputs = [{"name": f"from-{parent}", "from": f"{parent}.o"} for parent in parents]
    return {
        "name": name, "command": ["do", name], "resources": SMALL, "inputs": inputs, "outputs": OUT, **more,
    }  # fmt: skip


def diamond(**changes: dict[str, Any]) -> dict[str, Any]:
    """Of 38 tasks: split, 35 x work (in one stage), check, join."""
    stages = [
        stage("split", inputs=[{"name": "data", "uri": "file:///data/x"}]),
        stage("work", "split", scatter={"count": 35}),
        stage("check", "split"),
        stage("join", "work", "check"),
    ]
    return {"name": "diamond", "stages": [{**each, **changes.get(each["name"], {})} for each in stages]}


async def test_a_run_that_was_cancelled_half_way_goes_on(lab: Lab) -> None:
    """38 tasks, cancelled when half have ended; the command of one stage changes: it runs again, and what follows it, and what had
    not run; nothing else.
    """
    ended = asyncio.Event()

    def outcome(pod: Pod) -> Outcome:
        late = pod.stage == "work" and pod.index >= 18
        return Outcome(runtime_ms=60_000 if late and not ended.is_set() else 1)

    lab.world.script = outcome
    first = (await lab.one.service.submit(json.dumps(diamond()).encode())).id
    while (await lab.one.service.workflow(first)).counts.get("SUCCEEDED", 0) < 20:
        await asyncio.sleep(0.02)
    await lab.one.service.command(first, "cancel")
    while (await lab.one.service.workflow(first)).ended_at is None:
        await asyncio.sleep(0.02)
    done = {(t.stage, t.index) for t in await lab.tasks(first) if t.state == "SUCCEEDED"}
    assert len(done) == 20
    assert ("check", 0) in done
    ended.set()
    before = set(lab.world.launched)
    second = await lab.run(diamond(check={"command": ["do", "check", "better"]}), resume=first)
    ran = {name.removeprefix(f"fs-{second}-").removesuffix("-0") for name in set(lab.world.launched) - before}
    assert ran == {"check-0", "join-0", *(f"work-{shard}" for shard in range(18, 35))}
    assert await lab.found(second) == [
        ("split", 1, f"from {first}/split"),
        ("work", 18, f"from {first}/work"),
        ("work", 17, f"it has not succeeded in {first}"),
        ("check", 1, f"command differs from {first}/check"),
        ("join", 1, f"it has not succeeded in {first}"),
    ]
    assert [view.cached for view in await lab.one.service.stages(second)] == [1, 18, 0, 0]
    taken, anew = [view.which for view in await lab.one.service.cache(second) if view.stage == "work"]
    assert (taken, anew) == ([str(n) for n in range(8)], [str(n) for n in range(18, 26)])
    assert [view.ran for view in await lab.one.service.cache(second)] == [False, False, True, True, True]


async def test_results_of_the_resumed_run_come_before_the_same_of_others(lab: Lab) -> None:
    """A copy under another name has run the same first stage later, and its second differs: what the resumed run has made of its
    own first stage is found all the same.
    """
    inputs = [{"name": "data", "uri": "file:///data/x"}]
    first = {"name": "w", "stages": [stage("a", inputs=inputs), stage("b", "a")]}
    other = {"name": "copy", "stages": [stage("a", inputs=inputs), stage("b", "a", command=["other"])]}
    ran = await lab.run(first)
    await lab.run(other, resume=await lab.run(other))
    again = await lab.run(first, resume=ran)
    assert await lab.found(again) == [("a", 1, f"from {ran}/a"), ("b", 1, f"from {ran}/b")]
    last = await lab.run(first, resume=again)
    assert [why.startswith("from ") for _, _, why in await lab.found(last)] == [True, True]


async def test_a_miss_is_compared_with_the_run_that_is_resumed(lab: Lab) -> None:
    """Not with a later one of the same name; and also where the resumed run has another name."""
    old = {"name": "w", "stages": [stage("a", command=["old"])]}
    ran = await lab.run(old)
    await lab.run({"name": "w", "stages": [stage("a", command=["later"], env={"X": "1"})]})
    for name in ("w", "copy"):
        new = await lab.run({"name": name, "stages": [stage("a", command=[name])]}, resume=ran)
        assert await lab.found(new) == [("a", 1, f"command differs from {ran}/a")]


async def test_a_task_that_was_cancelled_before_it_began_has_not_run(lab: Lab) -> None:
    """It was looked up, and no result was taken; no node is large enough for it."""
    document = {"name": "a", "stages": [stage("one", cache=True, resources={"cpu": 1000})]}
    ident = (await lab.one.service.submit(json.dumps(document).encode())).id
    async with asyncio.timeout(60):
        while not await lab.found(ident):
            await asyncio.sleep(0.02)
    await lab.one.service.command(ident, "cancel")
    assert [(view.stage, view.source, view.ran) for view in await lab.one.service.cache(ident)] == [
        ("one", "", False)
    ]


async def test_a_stage_says_cache_and_all_workflows_of_the_tenant_share(lab: Lab) -> None:
    """Under another name, too; a second look-up finds the first owner, not a copy."""
    document = {"name": "a", "stages": [stage("one", cache=True), stage("two", "one")]}
    first = await lab.run(document)
    assert await lab.found(first) == [("one", 1, "it has not succeeded before")]
    second = await lab.run({**document, "name": "b"})
    third = await lab.run({**document, "name": "c"})
    assert await lab.found(second) == await lab.found(third) == [("one", 1, f"from {first}/one")]
    assert [task.reason for task in await lab.tasks(third)] == [f"CACHED {first}/one/0", ""]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"command": ["do", "else"]}, "command"),
        ({"env": {"LEVEL": "9"}}, "environment"),
        ({"container": {"image": "tool:2"}}, "image"),
        ({"resources": {**SMALL, "gpu": 1}}, "devices"),
        ({"outputs": [{"name": "o", "path": "other"}]}, "outputs"),
        ({"inputs": [{"name": "more", "uri": "file:///data/y"}]}, "input more is new, input data is gone"),
    ],
)
async def test_why_a_task_runs_again(lab: Lab, change: dict[str, Any], why: str) -> None:
    """What differs is named."""
    one = stage(
        "one", inputs=[{"name": "data", "uri": "file:///data/x"}], container={"image": "tool:1"}, cache=True
    )
    first = await lab.run({"name": "w", "stages": [one]})
    ident = (
        await lab.one.service.submit(json.dumps({"name": "w", "stages": [{**one, **change}]}).encode())
    ).id
    async with asyncio.timeout(20):
        while not (found := await lab.found(ident)):
            await asyncio.sleep(0.02)
    assert found == [("one", 1, f"{why} differs from {first}/one")]


async def test_what_changes_nothing(lab: Lab) -> None:
    """CPU, memory, retries, a timeout, the queue's words for it."""
    one = stage("one", cache=True)
    first = await lab.run({"name": "w", "stages": [one]})
    more = {"resources": {"cpu": 2, "memory": "1Gi"}, "retry": {"attempts": 3}, "timeout": "1h"}
    second = await lab.run({"name": "w", "priority": 5, "stages": [{**one, **more}]})
    assert await lab.found(second) == [("one", 1, f"from {first}/one")]


async def test_an_input_that_changed_or_cannot_be_identified(lab: Lab) -> None:
    """Then the task runs, and says which input it was."""
    one = stage("one", inputs=[{"name": "data", "uri": "file:///data/x"}], cache=True)
    first = await lab.run({"name": "w", "stages": [one]})
    lab.world.versions["file:///data/x"] = Fingerprint("2", 0)
    second = await lab.run({"name": "w", "stages": [one]})
    assert await lab.found(second) == [
        ("one", 1, f"version (size and time, or ETag) of input data differs from {first}/one")
    ]
    lab.world.versions["file:///data/x"] = "403"
    third = await lab.run({"name": "w", "stages": [one]})
    assert await lab.found(third) == [("one", 1, "input data cannot be identified: 403")]


async def test_files_that_are_known_in_another_way(lab: Lab) -> None:
    """The service was started with another `--cache-content`: no file has changed."""
    one = stage("one", inputs=[{"name": "data", "uri": "file:///data/x"}], cache=True)
    first = await lab.run({"name": "w", "stages": [one]})
    lab.world.versions["file:///data/x"] = Fingerprint("1", 0, "abc")
    second = await lab.run({"name": "w", "stages": [one]})
    known = "known by its content now, by its size and time before"
    assert await lab.found(second) == [
        ("one", 1, f"input data ({known}: `serve --cache-content` has changed) differs from {first}/one")
    ]


async def test_an_input_that_was_taken_from_another_run(lab: Lab) -> None:
    """The stage that wrote it did not run again. It went back to a command that an older run had."""
    other = {"command": ["do", "else"]}
    prep, reads = stage("prep", cache=True), stage("reads", "prep", cache=True)
    first = await lab.run({"name": "w", "stages": [prep]})
    second = await lab.run({"name": "w", "stages": [{**prep, **other}, reads]})
    third = await lab.run({"name": "w", "stages": [prep, reads]})
    assert await lab.found(third) == [
        ("prep", 1, f"from {first}/prep"),
        ("reads", 1, f"input from-prep (prep took it from {first}/prep) differs from {second}/reads"),
    ]
    fourth = await lab.run({"name": "w", "stages": [{**prep, "command": ["do", "new"]}, reads]})
    assert (await lab.found(fourth))[1] == (
        "reads", 1, f"input from-prep (made anew by prep) differs from {third}/reads",
    )  # fmt: skip


async def test_a_slow_input_holds_up_no_other_stage(lab: Lab) -> None:
    """A server that does not answer, or a file that takes minutes to digest: other stages are looked up meanwhile."""
    go = lab.world.slow["file:///slow"] = asyncio.Event()
    slow = stage("slow", inputs=[{"name": "data", "uri": "file:///slow"}], cache=True)
    waits = (await lab.one.service.submit(json.dumps({"name": "s", "stages": [slow]}).encode())).id
    other = await lab.run(
        {"name": "w", "stages": [stage("one", cache=True), stage("two", "one", cache=True)]}
    )
    assert [found[0] for found in await lab.found(other)] == ["one", "two"]
    assert await lab.found(waits) == []
    go.set()
    async with asyncio.timeout(20):
        while (await lab.one.service.workflow(waits)).ended_at is None:
            await asyncio.sleep(0.02)
    assert await lab.found(waits) == [("slow", 1, "it has not succeeded before")]


async def test_an_input_that_changed_after_the_run_that_is_resumed(lab: Lab) -> None:
    """Nothing was written down when that run began: the time of the change decides."""
    document = {"name": "w", "stages": [stage("one", inputs=[{"name": "data", "uri": "file:///data/x"}])]}
    first = await lab.run(document)
    lab.world.versions["file:///data/x"] = Fingerprint("1", 1 << 60)
    second = await lab.run(document, resume=first)
    assert await lab.found(second) == [
        ("one", 1, f"version (size and time, or ETag) of input data differs from {first}/one")
    ]


async def test_an_image_that_its_name_means_no_longer(lab: Lab) -> None:
    """A tag that was moved is another image; a digest that nobody knows is not asked about."""
    one = stage("one", container={"image": "tool:1"}, cache=True)
    lab.world.digests["tool:1"] = "sha256:" + "a" * 64
    first = await lab.run({"name": "w", "stages": [one]})
    second = await lab.run({"name": "w", "stages": [one]})
    assert await lab.found(second) == [("one", 1, f"from {first}/one")]
    lab.world.digests["tool:1"] = "sha256:" + "b" * 64
    third = await lab.run({"name": "w", "stages": [one]})
    assert await lab.found(third) == [
        ("one", 1, f"image tool:1 is sha256:{'b' * 12} now, and was sha256:{'a' * 12} in {first}/one")
    ]


async def test_what_failed_is_no_result(lab: Lab) -> None:
    """It runs again; what it needs is taken."""
    document = {"name": "w", "stages": [stage("one"), stage("two", "one")]}
    lab.fails = {"two"}
    first = await lab.run(document)
    lab.fails = set()
    second = await lab.run(document, resume=first)
    assert await lab.found(second) == [
        ("one", 1, f"from {first}/one"),
        ("two", 1, f"it has not succeeded in {first}"),
    ]


async def test_what_cannot_be_resumed(lab: Lab) -> None:
    """A workflow that is not there, and one that goes on."""
    document = {"name": "w", "stages": [stage("one", resources={"cpu": 1000})]}
    with pytest.raises(InvalidDocument, match="the id of an ended run"):
        await lab.one.service.submit(json.dumps({**document, "resume": "w1nothere"}).encode())
    first = (await lab.one.service.submit(json.dumps(document).encode())).id
    with pytest.raises(Conflict, match="wait for its end, or cancel it"):
        await lab.one.service.submit(json.dumps({**document, "resume": first}).encode())


async def test_a_result_outlives_the_workflow_that_made_it(lab: Lab) -> None:
    """The first expires; its data stay as long as the second, which took them, is there."""
    document = {"name": "w", "stages": [stage("one", cache=True)]}
    first = await lab.run(document)
    await asyncio.sleep(0.05)
    second = await lab.run(document)
    one, leader = lab.one, lab.one.leader
    assert leader.dispatcher is not None
    ended = (await one.service.workflow(first)).ended_at
    assert ended is not None
    moment = int(ended.timestamp() * 1000) + 86_400_000 + 1

    async def expire(now_ms: int) -> int:
        assert leader.dispatcher is not None
        expiry = Expiry(one.database, leader.dispatcher, leader._executor, keep_days=1, clock=lambda: now_ms)
        return await expiry.once()

    assert await expire(moment) == 1
    assert any(f"flowsched:{first}/one/0/0/o" in held for held in lab.world.replicas.values())
    third = await lab.run(document)
    assert await lab.found(third) == [("one", 1, f"from {second}/one")]
    assert len(lab.world.launched) == 1


# ---- a hundred edits against an oracle ----


class Edited:
    """A workflow that is changed again and again, and an oracle: by brute force, the value of each shard is a digest of everything
    that it was ever made of.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.versions = {f"file:///data/{number}": 1 for number in range(3)}
        self.stages: list[dict[str, Any]] = []
        for _ in range(5):
            self.add()

    def add(self) -> None:
        """Another stage, which reads earlier ones and perhaps something from outside."""
        pick, number = self.random, len(self.stages)
        width = pick.choice([1, 1, 2, 3, 4])
        inputs: list[dict[str, Any]] = []
        for parent in pick.sample(self.stages, min(len(self.stages), pick.choice([0, 1, 1, 2]))):
            same = self.width(parent) == width > 1
            match = pick.choice(["index", "all"]) if same else "all"
            inputs.append({"name": f"i{len(inputs)}", "from": f"{parent['name']}.o", "match": match})
        if not inputs or pick.random() < 0.3:
            inputs.append({"name": f"i{len(inputs)}", "uri": pick.choice([*self.versions])})
        more = {"scatter": {"count": width}} if width > 1 else {}
        self.stages.append(stage(f"s{number}", inputs=inputs, **more))

    @staticmethod
    def width(of: dict[str, Any]) -> int:
        return int(of.get("scatter", {}).get("count", 1))

    def edit(self) -> str:
        """One random change."""
        pick = self.random
        one = pick.choice(self.stages)
        what = pick.choice(
            ["command", "command", "env", "image", "outside", "resources", "width", "add", "back"]
        )
        if what == "command":
            one["command"] = ["do", one["name"], str(pick.randrange(1000))]
        elif what == "env":
            one["env"] = {"X": str(pick.randrange(3))}
        elif what == "image":
            one["container"] = {"image": f"tool:{pick.randrange(3)}"}
        elif what == "outside":
            self.versions[pick.choice([*self.versions])] += 1
        elif what == "resources":
            one["resources"] = {**SMALL, "memory": f"{pick.randrange(1, 9)}Mi"}
        elif what == "back":
            one["command"] = ["do", one["name"]]
        elif what == "width" and self.width(one) > 1 and not self.read_by_index(one):
            one["scatter"] = {"count": pick.choice([2, 3, 4])}
        elif what == "add" and len(self.stages) < 9:
            self.add()
        return what

    def read_by_index(self, of: dict[str, Any]) -> bool:
        own = any(given.get("match") == "index" for given in of["inputs"])
        return own or any(
            given.get("match") == "index" and given["from"] == f"{of['name']}.o"
            for each in self.stages
            for given in each["inputs"]
        )

    def document(self) -> dict[str, Any]:
        return {"name": "edited", "stages": self.stages}

    def values(self) -> dict[tuple[str, int], str]:
        """The oracle."""
        found: dict[tuple[str, int], str] = {}
        by_name = {each["name"]: each for each in self.stages}
        for each in self.stages:
            for shard in range(self.width(each)):
                made: list[Any] = [each["name"], each["command"], each.get("env"), each.get("container")]
                made.append(shard if "scatter" in each else None)
                for given in each["inputs"]:
                    if "uri" in given:
                        made.append([given["name"], given["uri"], self.versions[given["uri"]]])
                        continue
                    parent = by_name[given["from"].split(".")[0]]
                    shards = [shard] if given["match"] == "index" else range(self.width(parent))
                    made.append([given["name"], [found[parent["name"], number] for number in shards]])
                found[each["name"], shard] = hashlib.sha256(json.dumps(made).encode()).hexdigest()
        return found


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1, 1 + worlds(few=1, many=10)))
async def test_random_edits_run_exactly_what_they_must(lab: Lab, seed: int) -> None:
    """A hundred edits; now and then a stage fails. What was ever computed is not computed again, and nothing else is taken."""
    edited, computed, last = Edited(seed), set[str](), None
    for _ in range(100):
        edited.edit()
        lab.world.versions = {uri: Fingerprint(str(v), 0) for uri, v in edited.versions.items()}
        lab.fails = {edited.random.choice(edited.stages)["name"]} if edited.random.random() < 0.15 else set()
        values = edited.values()
        more = {} if last is None else {"resume": last}
        last = await lab.run(edited.document(), **more)
        for task in await lab.tasks(last):
            value = values[task.stage, task.index]
            if task.state in ("SUCCEEDED", "FAILED"):
                taken = task.reason.startswith("CACHED ")
                assert taken == (value in computed and more != {}), (task.stage, task.index)
                assert (f"fs-{last}-{task.stage}-{task.index}-0" in lab.world.launched) != taken
        computed |= {values[t.stage, t.index] for t in await lab.tasks(last) if t.state == "SUCCEEDED"}
    assert len(computed) > 100


class Door(asyncio.Event):
    """An event that says when a task waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = asyncio.Event()

    async def wait(self) -> Literal[True]:
        self.reached.set()
        return await super().wait()


async def test_stages_that_wait_for_the_same_look_and_for_another(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    """The look that both wait for is over while the second still waits for its own: it has the answer of the first."""
    shared, own = Door(), Door()
    lab.world.slow |= {"file:///shared": shared, "file:///own": own}
    given = [{"name": "data", "uri": "file:///own"}, {"name": "more", "uri": "file:///shared"}]
    first = stage("first", inputs=[{"name": "data", "uri": "file:///shared"}])
    document = {"name": "s", "stages": [first, stage("second", inputs=given)]}
    waits = (await lab.one.service.submit(json.dumps(document).encode())).id
    async with asyncio.timeout(60):
        await shared.reached.wait()
        await own.reached.wait()
        shared.set()
        while (await lab.tasks(waits))[0].state != "SUCCEEDED":
            await asyncio.sleep(0.02)
        own.set()
        while (await lab.one.service.workflow(waits)).ended_at is None:
            await asyncio.sleep(0.02)
    assert [task.state for task in await lab.tasks(waits)] == ["SUCCEEDED", "SUCCEEDED"]
    assert "a loop failed" not in capsys.readouterr().out
