"""Calls of runs whose DAG another engine keeps: what somebody has read ahead of it orders them."""

from __future__ import annotations

from typing import Any

from tests.engine.scene import Scene, node


def call(node_name: str, rank_ms: int = 0) -> dict[str, Any]:
    return {"run": "r", "node": node_name, "rank_ms": rank_ms}


STAGE = {"name": "t", "command": ["x"], "resources": {"cpu": 1}}


def test_the_call_with_the_longest_way_behind_it_goes_first() -> None:
    """Room for one: the later one, after which most is still to come, gets it."""
    scene = Scene(node(cpu=1))
    scene.submit("busy", STAGE)
    scene.submit("short", STAGE, call=call("W.short", 60_000))
    scene.submit("long", STAGE, call=call("W.long", 3_600_000))
    scene.submit("unknown", STAGE, call=call("W.unknown"))
    scene.end("fs-busy-t-0-0")
    order = []
    while scene.launched:
        order += scene.launched
        scene.end(*scene.launched)
    assert order == ["fs-long-t-0-0", "fs-short-t-0-0", "fs-unknown-t-0-0"]
