"""References: files of a shared storage that many calls of a run read, on virtual nodes with disks and links of their own."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from flowsched import app
from flowsched.cluster.local.settings import LocalSettings
from tests.containers.conftest import Podman, installed_podman, podman
from tests.tes.running import Running, need_container_paths

__all__ = ["installed_podman", "podman"]
MB = 1_000_000
SIZE = 100 * MB
SHARDS = 20


@asynccontextmanager
async def two_nodes(root: Path, profile: Path | None = None, **local: Any) -> AsyncIterator[Running]:
    """A service with two nodes of eight cores, whose disks and links give 500 MB/s each."""
    rates = {"disk_rate": "500M", "nic_rate": "500M", "cpu": "8", "memory": "8Gi", "nodes": 2}
    chosen = app.Settings(
        root=root, port=0, log_level="error", profile=profile, local=LocalSettings(**{**rates, **local})
    )
    async with app.running(chosen) as service, aiohttp.ClientSession() as session:
        yield Running(service.url, session)


def reference(folder: Path, letter: bytes = b"A") -> Path:
    path = folder / "ref" / "hg38.fa"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(letter * SIZE)
    return path


def shard(root: Path, ref: Path, number: int, docker_root: str, **executor: Any) -> dict[str, Any]:
    """One shard as Cromwell sends it: it says which file it sees as the reference, and that file's first byte and size."""
    place = f"WGS/1111-22/call-Align/shard-{number}"
    host, inside = root / place / "execution", f"{docker_root}/{place}/execution"
    host.mkdir(parents=True, exist_ok=True)
    seen = str(ref) if docker_root == str(root) else f"{docker_root}/{place}/inputs{ref}"
    command = f"stat -L -c %i {seen} > {inside}/seen; head -c 1 {seen} >> {inside}/seen; wc -c < {seen} >> {inside}/seen"
    return {
        "name": "WGS.Align",
        "description": f"1111-22:BackendJobDescriptorKey_CommandCallNode_WGS.Align:{number}:1",
        "inputs": [{"name": "WGS.Align.ref", "url": str(ref), "path": seen, "type": "FILE"}],
        "outputs": [{"name": "seen", "url": f"{host}/seen", "path": f"{inside}/seen", "type": "FILE"}],
        "resources": {"cpu_cores": 1, "ram_gb": 0.2},
        "executors": [{"image": "alpine", "command": ["/bin/sh", "-c", command], **executor}],
        "tags": {"workflow_id": "1111-22", "root_workflow_id": "1111-22"},
    }


async def run(service: Running, bodies: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """Run the shards, as many at once as there is room for. Returns the inode that each saw, and the rest of what it saw."""
    idents = await asyncio.gather(*map(service.create, bodies))
    ended = await asyncio.gather(*map(service.until, idents))
    assert [task["state"] for task in ended] == ["COMPLETE"] * len(bodies), ended[0]
    said = [Path(body["outputs"][0]["url"]).read_text().split("\n", 1) for body in bodies]
    return [(int(inode), rest) for inode, rest in said]


def of_nodes(root: Path) -> set[int]:
    """The inodes of the copies in the nodes' caches."""
    return {path.stat().st_ino for path in root.glob("nodes/*/cache/*/hg38.fa")}


async def test_each_node_reads_a_reference_once(tmp_path: Path) -> None:
    """Of 20 shards at most the first reads the file where it lies: it may start before the second one comes."""
    need_container_paths(tmp_path)
    ref = reference(tmp_path)
    async with two_nodes(tmp_path / "root", images="ignore") as service:
        bodies = [shard(tmp_path / "data", ref, number, "/cromwell-executions") for number in range(SHARDS)]
        seen = await run(service, bodies)
    copies = of_nodes(tmp_path / "root")
    assert {rest for _, rest in seen} == {f"A{SIZE}\n"}
    assert sum(inode in copies for inode, _ in seen) >= SHARDS - 1
    assert 1 <= len(copies) <= 2


async def test_a_process_reads_a_path_of_this_machine_where_it_lies(tmp_path: Path) -> None:
    """`root` == `dockerRoot`, and no image: nothing can be put over the path, so no copy is made."""
    ref = reference(tmp_path)
    async with two_nodes(tmp_path / "root", images="ignore") as service:
        root = tmp_path / "data"
        seen = await run(service, [shard(root, ref, number, str(root)) for number in range(4)])
    assert seen == [(ref.stat().st_ino, f"A{SIZE}\n")] * 4
    assert of_nodes(tmp_path / "root") == set()


async def test_containers_get_the_copy_at_the_path_of_the_file(tmp_path: Path, podman: Podman) -> None:
    """`root` == `dockerRoot` in images: the copy is mounted over the path, and cannot be written to."""
    ref, root, image = reference(tmp_path), tmp_path / "data", podman.load("debian")
    async with two_nodes(tmp_path / "root", containers="podman") as service:
        bodies = [shard(root, ref, number, str(root), image=image) for number in range(4)]
        seen = await run(service, bodies)
        writer = shard(root, ref, 4, str(root), image=image)
        writer["executors"][0]["command"][2] += f"; ! echo x > {ref}"
        seen += await run(service, [writer])
    copies = of_nodes(tmp_path / "root")
    assert {rest for _, rest in seen} == {f"A{SIZE}\n"}
    assert sum(inode in copies for inode, _ in seen) >= 4
    assert ref.read_bytes() == b"A" * SIZE


async def test_tasks_after_a_change_read_the_new_bytes(tmp_path: Path) -> None:
    """The file keeps its size and its time: it has another inode, or another time of change."""
    need_container_paths(tmp_path)
    ref = reference(tmp_path)
    status = ref.stat()
    async with two_nodes(tmp_path / "root", images="ignore") as service:
        bodies = [shard(tmp_path / "data", ref, number, "/cromwell-executions") for number in range(6)]
        before = await run(service, bodies[:3])
        reference(tmp_path, b"C")
        os.utime(ref, ns=(status.st_atime_ns, status.st_mtime_ns))
        after = await run(service, bodies[3:])
    assert [rest for _, rest in before] == [f"A{SIZE}\n"] * 3
    assert [rest for _, rest in after] == [f"C{SIZE}\n"] * 3
    assert {inode for inode, _ in after} <= of_nodes(tmp_path / "root")


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder of another file system than the services' roots, as a storage is that nodes share."""
    folder = tmp_path / "storage"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=200M", "storage", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here (root can): {mounted.stderr!r}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_the_node_keeps_what_its_task_delivered_to_a_shared_storage(
    tmp_path: Path, other_disk: Path
) -> None:
    """The reader sees the kept file of the writer's node. After another program has written to the delivered file it sees that."""
    need_container_paths(tmp_path)
    bam = other_disk / "a.bam"
    write = {
        "name": "write",
        "executors": [
            {"image": "alpine", "command": ["sh", "-c", "head -c 40000000 /dev/zero > /out/a.bam"]}
        ],
        "outputs": [{"url": str(bam), "path": "/out/a.bam", "type": "FILE"}],
    }
    async with two_nodes(tmp_path / "root", images="ignore") as service:
        task = await service.until(await service.create(write))
        assert task["state"] == "COMPLETE", task
        (kept,) = (tmp_path / "root").glob("nodes/*/cache/*/a.bam")
        inode, size = kept.stat().st_ino, kept.stat().st_size
        ((seen, _),) = await run(service, [shard(tmp_path / "data", bam, 0, "/cromwell-executions")])
        bam.write_bytes(b"C" * 40 * MB)
        ((_, rest),) = await run(service, [shard(tmp_path / "data", bam, 1, "/cromwell-executions")])
    assert (size, seen) == (40 * MB, inode)
    assert rest == f"C{40 * MB}\n"


async def test_heavy_readers_of_a_shared_storage_do_not_run_all_at_once(tmp_path: Path) -> None:
    """20 tasks of 1 s read 40 MB each of a storage of 100 MB/s: half of 40 MB in 1.4 s counts for one, so six fit in the budget of
    90 MB/s. There are cores for 16.
    """
    need_container_paths(tmp_path)
    profile = tmp_path / "profile.yaml"
    profile.write_text("{name: lab, storages: [{name: lab, read_rate: 100000000}]}")
    bodies = []
    for number in range(SHARDS):
        sample = tmp_path / "data" / f"{number}.bam"
        sample.parent.mkdir(exist_ok=True)
        sample.touch()
        os.truncate(sample, 40 * MB)
        body = shard(tmp_path / "data", sample, number, "/cromwell-executions")
        inside = body["outputs"][0]["path"]
        command = f"date +%s%N > {inside}; sleep 1; date +%s%N >> {inside}"
        body["executors"][0]["command"] = ["/bin/sh", "-c", command]
        body["resources"]["backend_parameters"] = {"expectedRuntime": "1s"}
        bodies.append(body)
    async with two_nodes(tmp_path / "root", profile, images="ignore") as service:
        times = [(begin, int(end)) for begin, end in await run(service, bodies)]
    most = max(sum(begin <= at < end for begin, end in times) for at, _ in times)
    assert 2 <= most <= 6
