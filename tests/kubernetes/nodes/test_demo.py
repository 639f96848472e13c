"""`make demo-kubernetes`, on the cluster that these tests share: real samtools in real pods, and a gang."""

from __future__ import annotations

import io
import json
import re

from rich.console import Console

from tests.kubernetes.nodes.demo import demonstrate
from tests.kubernetes.nodes.installed import Installation


async def test_variants_are_called_by_samtools_images_and_a_gang_is_trained(installed: Installation) -> None:
    """The same variants as `tests/workflows` finds by other means, and what `kubectl get pods -o wide` shows."""
    said = io.StringIO()
    assert await demonstrate(installed, Console(file=said, width=400)), said.getvalue()
    text = said.getvalue()
    (summary,) = re.findall(r"^summary: (.*)$", text, re.MULTILINE)
    assert json.loads(summary) == {"reads": 3307, "duplicates": 53, "variants": 7, "snps": 4, "indels": 3}
    (accuracy,) = re.findall(r"^accuracy: (.*)$", text, re.MULTILINE)
    assert json.loads(accuracy)["accuracy"] > 0.95
    assert len(re.findall(r"^flowsched +fs-\S+-train-\d-0 .* node-[01] ", text, re.MULTILINE)) == 6
