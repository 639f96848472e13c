"""Random workflow documents, small and of every kind the engine must carry."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st


@st.composite
def documents(draw: st.DrawFn, name: str = "w") -> dict[str, Any]:
    """A valid document of one to seven stages: scatters, gangs, all matches, order edges, conditions, retries."""
    stages: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 7))):
        stages.append(_stage(draw, number, stages))
    return {"name": name, "priority": draw(st.integers(-1, 1)), "stages": stages}


def _stage(draw: st.DrawFn, number: int, before: list[dict[str, Any]]) -> dict[str, Any]:
    gang = draw(st.integers(0, 3)) == 0
    width = draw(st.sampled_from([1, 1, 2, 3, 5]))
    inputs: list[dict[str, Any]] = []
    for parent in draw(st.lists(st.sampled_from(before), max_size=2, unique_by=id)) if before else []:
        choices = ["all"]
        wide = parent["_width"]
        if wide == width:
            choices.append("index")
        if wide >= width and width > 1:
            choices.append("chunk")
        inputs.append(
            {
                "name": f"from_{parent['name']}",
                "from": f"{parent['name']}.out",
                "match": draw(st.sampled_from(choices)),
                "optional": draw(st.integers(0, 5)) == 0,
            }
        )
    if draw(st.integers(0, 2)) == 0:
        inputs.append(
            {"name": "ext", "uri": "s3://lab/" + draw(st.sampled_from(["ref", "{index}"])), "size": 5_000_000}
        )
    stage: dict[str, Any] = {
        "name": f"s{number}",
        "_width": width,
        "inputs": inputs,
        "outputs": [{"name": "out", "path": "out", "optional": False}],
        "retry": {"attempts": draw(st.integers(1, 3)), "memory_factor": 1.5},
    }
    if width > 1:
        stage["scatter"] = {"count": width}
    if before and draw(st.integers(0, 3)) == 0:
        stage["needs"] = [draw(st.sampled_from(before))["name"]]
    waits = "needs" in stage or any("from" in given for given in inputs)
    if waits and draw(st.integers(0, 5)) == 0:
        stage["when"] = draw(st.sampled_from(["failure", "always"]))
    if draw(st.integers(0, 1)):
        stage["estimate"] = {"runtime": f"{draw(st.integers(1, 30))}s"}
    if draw(st.integers(0, 7)) == 0:
        policy = draw(
            st.sampled_from(["abort_workflow", "complete_stage", "ignore", "fail_stage", "restart_task"])
        )
        stage["policies"] = [{"event": "task_failed", "action": policy}]
    if not gang and draw(st.booleans()):
        stage["fit_memory"] = True
    if gang:
        stage["gang"] = True
        stage["outputs"][0]["role"] = "worker"
        workers = draw(st.integers(1, 3))
        stage["roles"] = {
            "ps": {
                "replicas": draw(st.integers(1, 2)),
                "command": ["ps"],
                "completes": False,
                "resources": _ask(draw),
            },
            "worker": {
                "replicas": workers,
                "min": draw(st.integers(1, workers)),
                "command": ["w"],
                "resources": _ask(draw),
            },
        }
    else:
        stage["command"] = ["run"]
        stage["resources"] = _ask(draw)
    return stage


def _ask(draw: st.DrawFn) -> dict[str, Any]:
    return {"cpu": draw(st.sampled_from([1, "500m", 2])), "memory": draw(st.sampled_from(["64Mi", "512Mi"]))}


def clean(document: dict[str, Any]) -> dict[str, Any]:
    """Without the notes the strategy made for itself."""
    stages = [{key: value for key, value in stage.items() if key != "_width"} for stage in document["stages"]]
    return document | {"stages": stages}
