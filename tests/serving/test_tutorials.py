"""The notebooks of the documentation do what they show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.forks import ran
from tests.serving.processes import served
from tests.serving.tutorials import FOLDER, OPTIONS, executed


def test_run_goes_to_the_service_that_has_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As those do who have started one: `serve`, and then `run`. It says so."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("FLOWSCHED_SERVER", raising=False)
    document = tmp_path / "hello.json"
    document.write_text(json.dumps({"name": "hello", "stages": [{"name": "a", "command": ["true"]}]}))
    with served(tmp_path / "root", token=True) as service:
        service.ready()
        done = ran(["run", str(document), "--root", str(tmp_path / "root")])
        assert done.returncode == 0, done.stderr
        assert f"{tmp_path}/root belongs to the service at {service.url}: it runs there" in done.stderr
        token = (tmp_path / "root" / "token").read_text().strip()
        (kept,) = service.get("/api/v1/workflows", token=token)["workflows"]
        assert (kept["name"], kept["state"]) == ("hello", "SUCCEEDED")


def shown(notebook: Any) -> list[list[tuple[str, str]]]:
    """Of each cell what it shows: texts as they are, of tables that there is one, of an error its words."""
    found = []
    for cell in notebook.cells:
        outputs: list[tuple[str, str]] = []
        for output in cell.get("outputs", ()):
            if output.output_type == "stream" and outputs and outputs[-1][0] == output.name:
                outputs[-1] = (
                    output.name,
                    outputs[-1][1] + output.text,
                )  # it comes in as many pieces as it likes
            elif output.output_type == "stream":
                outputs.append((output.name, output.text))
            elif output.output_type == "error":
                outputs.append(("error", "\n".join(output.traceback)))
            else:
                outputs.append(("table" if "text/html" in output.data else "value", ""))
        found.append(outputs)
    return found


def test_the_notebooks_show_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each runs from top to bottom on the service that it tells its reader to start, and shows the same results."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    paths = sorted(FOLDER.glob("*.ipynb"))
    assert [path.name for path in paths] == ["gang.ipynb", "genomics.ipynb"]
    with served(tmp_path / "root", *OPTIONS, token=True) as service:
        service.ready()
        for path in paths:
            kept = nbformat.read(path, as_version=4)
            told = (
                "flowsched serve --nodes 3 --cpu 2 --memory 2Gi"  # what `served` starts, with these options
            )
            assert told in kept.cells[0].source
            folder = tmp_path / path.stem
            folder.mkdir()
            assert shown(executed(path, service, folder)) == shown(kept)
            assert "/tmp" not in path.read_text(), "a path of a machine"
