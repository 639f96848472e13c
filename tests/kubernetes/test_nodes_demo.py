"""`make demo-kubernetes` where there is no cluster to be had."""

from __future__ import annotations

import subprocess
from pathlib import Path

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


def test_make_looks_for_a_cluster_before_it_installs_anything(tmp_path: Path) -> None:
    """The packages of the tests take minutes: what is missing is said before."""
    here = Path(__file__).parents[2]
    given = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    planned = subprocess.run(
        ["make", "-n", "-B", "demo-kubernetes"],
        cwd=here,
        env=given,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "kube-apiserver" in planned.stdout.splitlines()[0]
    none = subprocess.run(
        ["make", "kube-built"], cwd=here, env=given, capture_output=True, text=True, check=False
    )
    assert none.returncode == 2
    assert "run 'make kube-node'" in none.stderr
    built = tmp_path / "kube-apiserver"
    built.touch(mode=0o755)
    there = {**given, "KUBEBUILDER_ASSETS": str(tmp_path)}
    assert subprocess.run(["make", "kube-built"], cwd=here, env=there, check=False).returncode == 0
