"""Variants of NA18507 by the samtools and bcftools of an image: `flowsched run` on podman."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.containers.conftest import Podman

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "tests/workflows/variant-calling-containers.json"


def test_variants_are_called_in_containers(
    tmp_path: Path, podman: Podman, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same as on real nodes (tests/kubernetes/nodes/test_demo.py), and as pysam finds them (workflows/variant-calling.json)."""
    monkeypatch.setenv("FLOWSCHED_IMAGES", "use")
    podman.load("samtools")
    document = json.loads(DOCUMENT.read_text())
    for stage in document["stages"]:
        for each in stage["inputs"]:
            if "uri" in each:
                each["uri"] = (ROOT / "workflows" / each["uri"]).as_uri()
    (tmp_path / "variants.json").write_text(json.dumps(document))
    command = [sys.executable, "-m", "flowsched", "run", str(tmp_path / "variants.json"), "-o", "json"]
    command += ["--root", str(tmp_path / "root"), "--containers", "podman"]
    environment = {**os.environ, "FLOWSCHED_SERVER": "", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    (summary,) = (output["value"] for output in said["outputs"] if output["name"] == "summary")
    assert json.loads(summary) == {"reads": 3307, "duplicates": 53, "variants": 7, "snps": 4, "indels": 3}
    (image,) = said["images"]
    assert image["digest"].startswith("sha256:")
