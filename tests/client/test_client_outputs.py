"""Outputs through the SDK: whole files or none."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_service import FakeService

from flowsched import Client, errors


async def test_an_output_is_read_in_pieces(client: Client, service: FakeService) -> None:
    """All its bytes."""
    service.add()
    service.write("vcf", "calls.vcf", b"abc" * 100_000)
    assert b"".join([part async for part in client.output("wf1", "call", 0, "vcf")]) == b"abc" * 100_000


async def test_an_output_is_saved_under_its_own_name_or_mine(
    client: Client, service: FakeService, tmp_path: Path
) -> None:
    """In a folder under the task's name for it; a file as I say; what was there before is replaced."""
    service.add()
    service.write("vcf", "größe.vcf", b"calls")
    assert await client.download("wf1", "call", 0, "vcf", tmp_path) == tmp_path / "größe.vcf"
    mine = tmp_path / "deep" / "mine.vcf"
    for _ in range(2):
        assert await client.download("wf1", "call", 0, "vcf", mine) == mine
    assert mine.read_bytes() == b"calls"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["deep", "größe.vcf", "mine.vcf"]


async def test_a_broken_download_leaves_nothing(client: Client, service: FakeService, tmp_path: Path) -> None:
    """It is begun again a few times; half a file is never seen."""
    service.add()
    service.write("vcf", "calls.vcf", b"x" * 70_000, 100_000)
    with pytest.raises(errors.Unavailable):
        await client.download("wf1", "call", 0, "vcf", tmp_path)
    assert service.closed == 3
    assert list(tmp_path.iterdir()) == []


async def test_why_an_output_cannot_be_had(client: Client, service: FakeService, tmp_path: Path) -> None:
    """As the service raised it."""
    service.add()
    with pytest.raises(errors.NotFound, match="has not written"):
        await client.download("wf1", "call", 0, "vcf", tmp_path)
    service.write("vcf", "calls.vcf", None)
    with pytest.raises(errors.Conflict, match="any more"):
        await client.download("wf1", "call", 0, "vcf", tmp_path)
