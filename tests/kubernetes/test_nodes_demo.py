"""`make demo-kubernetes` where there is no cluster to be had."""

from __future__ import annotations

import pytest

from tests.kubernetes.nodes import demo


def test_without_any_nodes_one_line_names_both_ways(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No banner, no folder and no traceback: one line says what makes real nodes, and what hollow ones."""
    monkeypatch.setattr(demo, "missing", lambda: "run 'make kube-node'")
    monkeypatch.setattr(demo, "hollow_missing", lambda: "run 'make kube-assets'")
    assert demo.main() == 2
    assert capsys.readouterr().out == (
        "error: no cluster for the demonstration. Real nodes: run 'make kube-node'. Hollow nodes: run 'make kube-assets'\n"
    )
