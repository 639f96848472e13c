"""Objects that many calls write and one reads, on virtual nodes with links of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.object_store import Store
from tests.tes.running import need_container_paths
from tests.tes.test_tes_references import two_nodes

PARTS = 4
SIZE = 10 << 20


def call(run: str, step: str, name: str, command: str, inputs: tuple[str, ...] = ()) -> dict[str, Any]:
    """A task of a run that reads objects of it and writes one."""
    return {
        "name": step,
        "inputs": [
            {"url": f"s3://lab/{run}/{each}", "path": f"/in/{each}", "type": "FILE"} for each in inputs
        ],
        "outputs": [{"url": f"s3://lab/{run}/{name}", "path": "/out/file", "type": "FILE"}],
        "volumes": ["/out"],
        "resources": {"cpu_cores": 4, "ram_gb": 0.2},
        "executors": [{"image": "alpine", "command": ["sh", "-c", command]}],
        "tags": {"workflow_id": run, "step": step},
    }


async def test_a_second_run_gathers_objects_before_their_reader_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first run teaches that one task reads all. In the second, what a task writes elsewhere goes to that task's node."""
    need_container_paths(tmp_path)
    store = Store()
    store.start()
    for name, value in store.variables.items():
        monkeypatch.setenv(name, value)
    parts = tuple(f"part-{number}" for number in range(PARTS))

    def having_all(run: str) -> list[Path]:
        """The caches that have the parts of all runs so far."""
        count = PARTS * (1 if run == "one" else 2)
        caches = (tmp_path / "root").glob("nodes/*/cache")
        return [cache for cache in caches if len([*cache.glob("*/part-*")]) == count]

    try:
        async with two_nodes(tmp_path / "root", images="ignore", nic_rate="30M") as service:
            for run in ("one", "two"):
                write = f"sleep 0.5; head -c {SIZE} /dev/urandom > /out/file"
                idents = [await service.create(call(run, "part", name, write)) for name in parts]
                await asyncio.gather(*map(service.until, idents))
                if run == "two":
                    async with asyncio.timeout(60):
                        while not having_all(run):
                            await asyncio.sleep(0.05)
                else:
                    assert not having_all(run)
                read = "cat /in/* | wc -c > /out/file"
                task = await service.until(await service.create(call(run, "merge", "merged", read, parts)))
                assert task["state"] == "COMPLETE"
        assert store.client.get_object(Bucket="lab", Key="two/merged")["Body"].read() == b"%d\n" % (
            PARTS * SIZE
        )
        assert not store.read.keys() & {f"/lab/two/{name}" for name in parts}
    finally:
        store.stop()
