"""Outputs through the SDK: whole files or none."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_service import FakeService, stage_view

from flowsched import Client, errors
from flowsched.workflow.views import OutputView, TaskView


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
    assert await client.download("wf1", "call", 0, "vcf", str(tmp_path)) == tmp_path / "größe.vcf"
    mine = tmp_path / "deep" / "mine.vcf"
    for path in (mine, str(mine)):
        assert await client.download("wf1", "call", 0, "vcf", path) == mine
    assert mine.read_bytes() == b"calls"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["deep", "größe.vcf", "mine.vcf"]


@pytest.mark.parametrize(
    "name", ["a\\b.txt", "..\\b.txt", "line\nend.txt", "-rf", " blank ", "50%;2B'\"*.txt", "b\udcff.bam", "...", "C:x"]
)  # fmt: skip
async def test_an_output_keeps_the_name_that_its_task_gave_it(
    client: Client, service: FakeService, tmp_path: Path, name: str
) -> None:
    """A backslash, a line end, a hyphen in front or what is no UTF-8 are parts of a name; dots in front are not."""
    service.add()
    service.write("vcf", f"deep/{name}", b"calls")
    saved = await client.download("wf1", "call", 0, "vcf", str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["output" if name == "..." else name.lstrip(".")]
    assert saved.read_bytes() == b"calls"


async def test_the_outputs_of_a_stage_go_into_a_folder_that_is_named_by_a_text(
    client: Client, service: FakeService, tmp_path: Path
) -> None:
    """As `SyncClient` takes it."""
    service.add()
    service.write("vcf", "calls.vcf", b"calls")
    output = OutputView(name="vcf", uri="flowsched:x", size_bytes=5)
    service.task_views = [
        TaskView(stage="call", index=0, shard=0, role="", state="SUCCEEDED", attempt=0, outputs=[output])
    ]
    run = await client.find("wf1")
    [saved] = await run.download_all("call", str(tmp_path / "results"))
    assert saved.relative_to(tmp_path / "results").name == "calls.vcf"
    assert saved.read_bytes() == b"calls"


@pytest.mark.parametrize(
    ("items", "folders"),
    [
        (["HG001", "HG002"], ["HG001", "HG002"]),
        (["s3://lab/a.fq", "HG002"], ["0", "1"]),
        (["hg001", "HG001"], ["0", "1"]),
        (["..", "HG002"], ["0", "1"]),
        ([None, None], ["0", "1"]),
    ],
)
async def test_folders_of_shards_have_the_names_of_their_items(
    client: Client, service: FakeService, tmp_path: Path, items: list[str | None], folders: list[str]
) -> None:
    """Where all of them are names of files, and apart also where case does not count; else the number of the shard."""
    service.add()
    service.write("vcf", "calls.vcf", b"calls")
    service.stage_views = [stage_view(0, "call", width=2)]
    output = OutputView(name="vcf", uri="flowsched:x", size_bytes=5)
    service.task_views = [
        TaskView(
            stage="call",
            index=at,
            shard=at,
            item=item,
            role="",
            state="SUCCEEDED",
            attempt=0,
            outputs=[output],
        )
        for at, item in enumerate(items)
    ]
    run = await client.find("wf1")
    saved = await run.download_all("call", tmp_path)
    assert [path.parent.relative_to(tmp_path).name for path in saved] == folders


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
