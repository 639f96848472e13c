"""A model of inputs that change: whatever users do to them between runs, each run reads them as they are when it is accepted.

Histories of random edits and runs, cached and not, on one node and on two, with restarts of the service between.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from flowsched.app import Settings, running
from flowsched.cluster.local.settings import LocalSettings
from tests.soak import worlds

#: What a task makes of a folder: each file's path and content, in the order of the paths.
TREE = """
cd "$FLOWSCHED_INPUT_R"
find -L . -type f | LC_ALL=C sort | while read f; do printf "%s=" "$f"; cat "$f"; done > "$HERE/o"
"""
FILE = 'cat "$FLOWSCHED_INPUT_R" > "$HERE/o"'
LIVES = 3
STEPS = 2
LONG_AGO_S = 1_000_000_000


class Site:
    """Documents on a web server, each with a version of its own kind."""

    def __init__(self) -> None:
        self.bodies: dict[str, str] = {}
        self.changes: dict[str, int] = {}
        app = web.Application()
        app.router.add_get("/{kind}/{name}", self._give)
        self.server = TestServer(app)

    async def _give(self, request: web.Request) -> web.Response:
        kind, name = request.match_info["kind"], request.path
        number = self.changes[name]
        moment = f"Thu, 01 Jan 2026 00:{number // 60:02}:{number % 60:02} GMT"
        headers = {"etag": {"ETag": f'"{number}"'}, "time": {"Last-Modified": moment}, "none": {}}[kind]
        return web.Response(text=self.bodies[name], headers=headers)


class History:
    """One user's folder, the inputs in it, and what was done to them."""

    def __init__(self, folder: Path, site: Site, seed: int) -> None:
        self.random = random.Random(seed)
        self.folder, self.site, self.seed = folder, site, seed
        self.told: list[str] = []
        self.number = 0
        folder.mkdir()
        for name in ("a", "b"):
            (folder / name).mkdir()
            for inner in ("x", "sub/y"):
                self._write(folder / name / inner, self._text())
        self._write(folder / "f", self._text())
        (folder / "link").symlink_to("a/x")
        (folder / "way").symlink_to("a")
        for kind in ("etag", "time", "none"):
            self._publish(kind)

    def _text(self) -> str:
        """A new content, often of the same size as others."""
        self.number += 1
        return f"{self.seed:04}-{self.number:03}" + "+" * self.random.choice((0, 0, 0, 1, 7))

    def _write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def _publish(self, kind: str) -> None:
        name = f"/{kind}/{self.seed}"
        self.site.bodies[name] = self._text()
        self.site.changes[name] = self.site.changes.get(name, 0) + 1

    def _file(self) -> Path:
        files = [
            self.folder / "f",
            *(p for top in "ab" for p in (self.folder / top).rglob("*") if p.is_file()),
        ]
        return self.random.choice(sorted(files))

    # ---- what users do ----

    def edit(self) -> None:
        """One of the ways in which an input becomes another one."""
        ways: list[Callable[[], str]] = [
            self.rewrite, self.rewrite_with_old_time, self.move_over, self.turn_link, self.turn_way,
            self.add, self.remove, self.rename, self.swap_folders, self.publish, self.publish,
        ]  # fmt: skip
        self.told.append(self.random.choice(ways)())

    def rewrite(self) -> str:
        path = self._file()
        self._write(path, self._text())
        return f"wrote {path.relative_to(self.folder)}"

    def rewrite_with_old_time(self) -> str:
        path = self._file()
        self._write(path, self._text())
        os.utime(path, (LONG_AGO_S, LONG_AGO_S))
        return f"wrote {path.relative_to(self.folder)} with an old time"

    def move_over(self) -> str:
        """As `mv` and `rsync -t` do: the new file is older than the copy that nodes have of the old one."""
        path, fresh = self._file(), self.folder / "fresh"
        self._write(fresh, self._text())
        os.utime(fresh, (LONG_AGO_S, LONG_AGO_S))
        fresh.replace(path)
        return f"moved a file over {path.relative_to(self.folder)}"

    def turn_link(self) -> str:
        (self.folder / "link").unlink()
        to = self.random.choice(("a/x", "b/x", "f"))
        if not (self.folder / to).exists():
            to = "f"
        (self.folder / "link").symlink_to(to)
        return f"link -> {to}"

    def turn_way(self) -> str:
        (self.folder / "way").unlink()
        to = self.random.choice("ab")
        (self.folder / "way").symlink_to(to)
        return f"way -> {to}"

    def add(self) -> str:
        path = self.folder / self.random.choice("ab") / f"n{self.number}"
        self._write(path, self._text())
        return f"added {path.relative_to(self.folder)}"

    def remove(self) -> str:
        path = self._file()
        if path.name in ("f", "x"):  # links lead there
            return self.rewrite()
        path.unlink()
        return f"removed {path.relative_to(self.folder)}"

    def rename(self) -> str:
        path = self._file()
        if path.name in ("f", "x"):
            return self.rewrite()
        path.rename(path.with_name(f"r{self.number}"))
        return f"renamed {path.relative_to(self.folder)}"

    def swap_folders(self) -> str:
        """A copy with all its times takes the place of a folder."""
        old, new = self.random.sample("ab", 2)
        shutil.rmtree(self.folder / old)
        shutil.copytree(self.folder / new, self.folder / old)
        return f"{old} is a copy of {new}"

    def publish(self) -> str:
        kind = self.random.choice(("etag", "time", "none"))
        self._publish(kind)
        return f"published {kind}"

    # ---- runs ----

    def expected(self, given: str) -> str:
        """What a task reads of an input as it is now."""
        if given in self.site.bodies:
            return self.site.bodies[given]
        path = self.folder / given
        if path.is_file():
            return path.read_text()
        names = sorted(
            "./" + os.path.relpath(os.path.join(top, name), path)
            for top, _, names in os.walk(path, followlinks=True)
            for name in names
        )
        return "".join(f"{name}={(path / name).read_text()}" for name in names)

    async def run(self, service: Any) -> None:
        """Run a task for each of some inputs, and compare what it read."""
        pages = [f"/{kind}/{self.seed}" for kind in ("etag", "time", "none")]
        given = self.random.sample(["f", "link", "a", "b", "way", *pages], 3)
        cached = [self.random.random() < 0.6 for _ in given]
        want = [self.expected(each) for each in given]
        stages = [
            self._stage(number, each, cache)
            for number, (each, cache) in enumerate(zip(given, cached, strict=True))
        ]
        ident = (await service.submit(json.dumps({"name": "w", "stages": stages}).encode())).id
        async with asyncio.timeout(120):
            while (view := await service.workflow(ident)).ended_at is None:
                await asyncio.sleep(0.05)
        assert view.state == "SUCCEEDED", (self.seed, self.told, view.reason)
        tasks = (await service.tasks(ident)).tasks
        got = [next(o.value for o in (t.outputs or ())) for t in tasks]
        self.told.append(f"run {list(zip(given, cached, strict=True))}")
        assert got == want, (self.seed, self.told)

    def _stage(self, number: int, given: str, cache: bool) -> dict[str, Any]:
        page = given in self.site.bodies
        uri = str(self.site.server.make_url(given)) if page else str(self.folder / given)
        script = TREE if not page and (self.folder / given).is_dir() else FILE
        return {
            "name": f"s{number}",
            "command": ["sh", "-c", f"HERE=$PWD; {script}"],
            "inputs": [{"name": "r", "uri": uri}],
            "outputs": [{"name": "o", "path": "o", "value": True}],
            "cache": cache,
            "resources": {"cpu": "100m", "memory": "8Mi"},
        }

    async def live(self, service: Any) -> None:
        """Between two starts of the service."""
        for _ in range(STEPS):
            for _ in range(self.random.choice((0, 1, 1, 2))):
                self.edit()
            await self.run(service)


@pytest.mark.soak
@pytest.mark.parametrize(("nodes", "rate"), [(1, None), (2, None), (2, "1G")])
async def test_each_run_reads_its_inputs_as_they_are(tmp_path: Path, nodes: int, rate: str | None) -> None:
    """Where they lie or as copies; also from the cache of results, and where a node still has a copy of what they were."""
    site = Site()
    await site.server.start_server()
    count, root = worlds(12, 667), tmp_path / "root"
    settings = Settings(
        port=0, root=root, log_level="error", local=LocalSettings(nodes=nodes, cpu="4", nic_rate=rate)
    )
    try:
        for first in range(0, count, 20):
            seeds = range(first, min(count, first + 20))
            users = [History(tmp_path / f"h{seed}", site, seed) for seed in seeds]
            for _ in range(LIVES):
                async with running(settings) as up:
                    await asyncio.gather(*(user.live(up.service) for user in users))
    finally:
        await site.server.close()
