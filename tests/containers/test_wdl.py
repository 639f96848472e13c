"""miniwdl on a service whose tasks run in podman's containers."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.containers.conftest import Podman
from tests.wdl.engine import REPOSITORY, Engine, Service

READS = REPOSITORY / "workflows/data/ex1/ex1.sam.gz"


def test_reads_are_sorted_and_counted_by_the_samtools_of_an_image(
    tmp_path: Path, podman: Podman, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers are those of the other ways to count them; the files belong to whoever runs the service."""
    monkeypatch.setenv("FLOWSCHED_IMAGES", "use")
    monkeypatch.setenv("FLOWSCHED_CONTAINERS", "podman")
    service = Service(tmp_path / "root")
    try:
        service.start()
        engine = Engine(service, tmp_path / "engine")
        run = engine.run("samtools", f"sam={READS}", f"image={podman.load('samtools')}")
        assert run.end() == 0, run.said
        assert json.loads(run.outputs.read_text())["outputs"]["reads.counts"] == [1501, 1806]
        bams = [path for path in Path(run.folder).rglob("sorted.bam") if not path.is_symlink()]
        assert {path.stat().st_uid for path in bams} == {os.geteuid()}
        digests = [
            image.digest for task in service.tasks(run) for each in task.attempts for image in each.images
        ]
        assert len(digests) == 3
        assert all(digest.startswith("sha256:") for digest in digests)
    finally:
        service.stop()
