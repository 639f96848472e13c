"""Node agents bring the version of an input that a dataset's name says, whatever users do to it meanwhile."""

from __future__ import annotations

import os
import random
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from flowsched.executor.datasets import versioned
from tests.kubernetes.agent_world import Served, several
from tests.soak import worlds


class Given:
    """A file, and a folder, that a user edits in ways that size and time do not show."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random, self.folder, self.number = random.Random(seed), folder, 0
        (folder / "d" / "sub").mkdir(parents=True)
        for name in ("f", "d/a", "d/sub/b"):
            (folder / name).write_text(self.text())

    def text(self) -> str:
        self.number += 1
        return f"{self.number:04}"

    def edit(self) -> None:
        path = self.folder / self.random.choice(("f", "d/a", "d/sub/b"))
        fresh = self.folder / "fresh"
        fresh.write_text(self.text())
        os.utime(fresh, (1, 1))
        if self.random.random() < 0.5:
            fresh.replace(path)
        else:
            path.write_text(fresh.read_text())

    def content(self, name: str) -> str:
        return content_of(self.folder / name)


def content_of(path: Path) -> str:
    if path.is_file():
        return path.read_text()
    return " ".join(f"{p.relative_to(path)}={p.read_text()}" for p in sorted(path.rglob("*")) if p.is_file())


async def name_of(agent: Served, path: Path) -> str:
    """The dataset that a path is now."""
    reply = await agent.call("POST", "/v1/fingerprints", json={"uris": [path.as_uri()]})
    return versioned(path.as_uri(), reply.json["seen"][path.as_uri()]["version"])


@pytest.mark.soak
async def test_a_node_has_the_version_that_was_asked_for(tmp_path: Path) -> None:
    """From the origin, or from a node that has it after the origin has changed; a version that nobody has is not brought."""
    async with AsyncExitStack() as stack:
        first, second = await several(stack, tmp_path, 2)
        for seed in range(worlds(4, 200)):
            given = Given(tmp_path / "shared" / str(seed), seed)
            for _ in range(4):
                given.edit()
                name = given.random.choice(("f", "d"))
                dataset, want = await name_of(first, given.folder / name), given.content(name)
                (told,) = await first.bring({"uri": dataset})
                assert told["error"] is None
                given.edit()
                peer = {"node": "node-0", "url": first.url}
                (told,) = await second.bring({"uri": dataset, "source": peer})
                assert told["error"] is None
                for agent in (first, second):
                    assert content_of(agent.agent.cache.home(dataset) / name) == want
                late = await name_of(second, given.folder / name)
                changed = given.content(name)
                while given.content(name) == changed:
                    given.edit()
                (told,) = await second.bring({"uri": late})
                if late != dataset:  # else it is there
                    assert told["error"]["changed"]
