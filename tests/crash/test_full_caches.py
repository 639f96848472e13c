"""A service that is killed while it makes room in a full cache: the catalogue has forgotten, bytes may still be there (row 39)."""

from __future__ import annotations

from pathlib import Path

import pytest

from flowsched.control.leading.failpoints import CACHES
from tests.crash.harness import Campaign, Nursery

KB = 1_000


def kept(root: Path) -> int:
    """Bytes of the datasets in all caches."""
    return sum(file.stat().st_size for file in root.glob("nodes/*/cache/*/*.bin"))


@pytest.mark.slow
@pytest.mark.parametrize("point", CACHES)
async def test_killed_while_it_drops_it_ends_its_work_within_the_limit(
    tmp_path: Path, nursery: Nursery, point: str
) -> None:
    """Six tasks read 1 MB each, a cache holds 2.5 MB: the next start knows what lies there, deletes the rest, and all succeed."""
    campaign = Campaign(tmp_path, nursery, kills=0)
    campaign.more = ("--nodes", "1", "--cpu", "1", "--cache", "2500k", "--nic-rate", "10G")
    for number in range(6):
        (tmp_path / f"{number}.bin").write_bytes(bytes([number]) * 1000 * KB)
    uri = f"file://{tmp_path}/{{index}}.bin"
    test = 'test "$(wc -c < "$FLOWSCHED_INPUT_I")" -eq 1000000'
    stage = {
        "name": "a", "scatter": {"count": 6}, "command": ["/bin/sh", "-c", test],
        "inputs": [{"name": "i", "uri": uri, "size": 1000 * KB}],
    }  # fmt: skip
    try:
        campaign.start(f"{point}=kill@1")
        await campaign.ready()
        assert campaign.service is not None
        ident = (await campaign.client.submit({"name": "w", "stages": [stage]})).id
        assert await campaign.service.death(200), f"{point} was never passed"
        campaign.start()
        await campaign.ready()
        assert (await campaign.client.wait(ident, timeout=300)).state == "SUCCEEDED"
        (node,) = await campaign.client.nodes()
        assert node.cache_limit_bytes == 2500 * KB
        assert node.evicted_bytes >= 2000 * KB
        assert 0 < kept(campaign.root) <= 2500 * KB
        assert node.cache_bytes == kept(campaign.root)
        assert not list(campaign.root.glob("nodes/*/cache/.tmp-*"))
    finally:
        await campaign.end()
