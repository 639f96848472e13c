"""Documents with `steps` and `files`, by the SDK, through the real service, to real processes and back."""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from flowsched import Client, app
from flowsched.cluster.local.settings import LocalSettings

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux' mount namespaces")


def settings(root: Path) -> app.Settings:
    return app.Settings(root=root, port=0, log_level="error", local=LocalSettings(cpu="2", images="ignore"))


def reports(root: Path) -> list[dict[str, Any]]:
    """What was kept of each attempt, as SQL has it."""
    (file,) = root.glob("*.db")
    with sqlite3.connect(file) as database:
        rows = database.execute("SELECT report FROM attempts ORDER BY name").fetchall()
    return [json.loads(report) for (report,) in rows]


async def test_a_document_with_steps_and_files(tmp_path: Path) -> None:
    """It succeeds with its files in place, and what it did is kept."""
    (tmp_path / "reads.txt").write_text("a\nb\nc\n")
    stage = {
        "name": "count",
        "steps": [
            {"command": ["wc", "-l"], "stdin": "/in/reads.txt", "stdout": "/out/lines.txt"},
            {"command": ["sh", "-c", "tr -d ' ' < /out/lines.txt > /out/clean.txt; echo done"]},
        ],
        "files": {
            "inputs": [{"path": "/in/reads.txt", "uri": f"file://{tmp_path}/reads.txt"}],
            "outputs": [{"path": "/out/*.txt", "uri": f"{tmp_path}/results", "path_prefix": "/out"}],
        },
    }
    async with app.running(settings(tmp_path / "root")) as up, Client(up.url) as client:
        run = await client.submit({"name": "w", "stages": [stage]})
        done = await client.wait(run.id, 30)
        log = b"".join([chunk async for chunk in client.logs(run.id, "count", 0)])
    assert (done.state, done.reason) == ("SUCCEEDED", "")
    assert (tmp_path / "results/clean.txt").read_text() == "3\n"
    assert log.decode().split() == ["3", "done"]
    (report,) = reports(tmp_path / "root")
    assert [step["exit_code"] for step in report["steps"]] == [0, 0]
    assert report["steps"][1]["stdout"] == "done\n"
    assert [(file["path"], file["size_bytes"]) for file in report["outputs"]] == [
        ("/out/clean.txt", 2),
        ("/out/lines.txt", 2),
    ]


async def test_a_document_whose_steps_fail(tmp_path: Path) -> None:
    """Each attempt leaves what it must, the stage fails with the step's code, and what is there is delivered."""
    stage = {
        "name": "bad",
        "steps": [{"command": ["sh", "-c", "echo x > /out/x; echo why >&2; exit 7"]}, {"command": ["true"]}],
        "files": {
            "outputs": [{"path": "/out/x", "uri": f"{tmp_path}/x"}],
            "mounts": [{"source": str(tmp_path), "path": "/call"}],
            "leave": [{"path": "/call/rc", "content": "79\n"}],
        },
        "retry": {"attempts": 2},
    }
    async with app.running(settings(tmp_path / "root")) as up, Client(up.url) as client:
        run = await client.submit({"name": "w", "stages": [stage]})
        done = await client.wait(run.id, 30)
        task = await client.task(run.id, "bad", 0)
    assert done.state == "FAILED"
    assert "exit code 7" in done.reason
    assert [attempt.exit_code for attempt in task.attempts] == [7, 7]
    assert (tmp_path / "rc").read_text() == "79\n"
    assert (tmp_path / "x").read_text() == "x\n"
    assert [
        [(s["exit_code"], s["stderr"]) for s in report["steps"]] for report in reports(tmp_path / "root")
    ] == [
        [(7, "why\n")],
        [(7, "why\n")],
    ]


async def test_the_shards_of_a_container_task_have_files_of_their_own(tmp_path: Path) -> None:
    """{item} and {index} stand in the places of this machine, as in those of plain inputs."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(name)
    stage = {
        "name": "each",
        "scatter": {"items": ["a", "b"]},
        "steps": [{"command": ["cp", "/in/x", "/out/x"]}],
        "files": {
            "inputs": [{"path": "/in/x", "uri": f"{tmp_path}/{{item}}.txt"}],
            "outputs": [{"path": "/out/x", "uri": f"{tmp_path}/{{index}}-{{item}}"}],
        },
    }
    async with app.running(settings(tmp_path / "root")) as up, Client(up.url) as client:
        run = await client.submit({"name": "w", "stages": [stage]})
        done = await client.wait(run.id, 30)
    assert done.state == "SUCCEEDED"
    assert ((tmp_path / "0-a").read_text(), (tmp_path / "1-b").read_text()) == ("a", "b")


@pytest.mark.parametrize("name", ["a b", "ü", "c#d?e", "p%41", "p%20q", "100%"])
async def test_a_file_uri_names_one_file_wherever_it_stands(tmp_path: Path, name: str) -> None:
    """Escaped and not, in a document and over TES, of an input and of an output: clients of both habits read and write the file."""
    (tmp_path / name).write_text("right")
    (tmp_path / "out").mkdir()
    for uri in (f"file://{tmp_path}/{name}", (tmp_path / name).as_uri()):
        target = uri.replace(tmp_path.as_uri(), f"{tmp_path.as_uri()}/out")
        plain = {
            "name": "plain",
            "command": ["sh", "-c", 'cat "$FLOWSCHED_INPUT_R" > o'],
            "inputs": [{"name": "r", "uri": uri}],
            "outputs": [{"name": "o", "path": "o", "value": True}],
        }
        task = {
            "executors": [{"image": "ubuntu", "command": ["cp", "/in", f"/o/{name}"]}],
            "inputs": [{"path": "/in", "url": uri}],
            "outputs": [{"path": f"/o/{name}", "url": target}],
            "resources": {"cpu_cores": 1, "ram_gb": 0.1},
        }
        root = settings(tmp_path / "root")
        async with app.running(root) as up, aiohttp.ClientSession(up.url) as http, Client(up.url) as client:
            run = await client.submit({"name": "w", "stages": [plain]})
            done = await client.wait(run.id, 30)
            assert (done.state, done.reason) == ("SUCCEEDED", "")
            assert (await client.task(run.id, "plain", 0)).outputs[0].value == "right"
            async with http.post("/ga4gh/tes/v1/tasks", json=task) as answer:
                ident = (await answer.json())["id"]
            done = await client.wait(ident, 30)
            async with http.get(f"/ga4gh/tes/v1/tasks/{ident}", params={"view": "FULL"}) as answer:
                told = await answer.json()
        assert (done.state, done.reason) == ("SUCCEEDED", "")
        assert [file["url"] for file in told["logs"][0]["outputs"]] == [target]
        (made,) = (tmp_path / "out").iterdir()
        assert (made.name, made.read_text()) == (name, "right")
        made.unlink()


async def test_a_gang_of_container_tasks_that_a_tes_client_asks_for(tmp_path: Path) -> None:
    """`gang` in its parameters: members start together and know each other; one of them delivers, and is the one that is shown."""
    say = 'echo "$RANK of $WORLD_SIZE" > /out/rank; cp /out/rank "$SHARED/$RANK"; cat /out/rank'
    task = {
        "name": "train",
        "executors": [
            {
                "image": "ubuntu",
                "command": ["sh", "-c", say],
                "stdout": "/out/log",
                "env": {"SHARED": f"{tmp_path}/shared"},
            }
        ],
        "outputs": [
            {"path": "/out/rank", "url": f"file://{tmp_path}/rank"},
            {"path": "/out/log", "url": f"file://{tmp_path}/log"},
        ],
        "resources": {"cpu_cores": 1, "ram_gb": 0.1, "backend_parameters": {"gang": "3"}},
    }
    (tmp_path / "shared").mkdir()
    three = app.Settings(
        root=tmp_path / "root", port=0, log_level="error", local=LocalSettings(cpu="4", images="ignore")
    )
    async with app.running(three) as up, aiohttp.ClientSession(up.url) as http, Client(up.url) as client:
        async with http.post("/ga4gh/tes/v1/tasks", json=task) as answer:
            ident = (await answer.json())["id"]
        done = await client.wait(ident, 30)
        async with http.get(f"/ga4gh/tes/v1/tasks/{ident}", params={"view": "FULL"}) as answer:
            told = await answer.json()
    assert (done.state, done.tasks, done.counts) == ("SUCCEEDED", 3, {"SUCCEEDED": 3})
    assert {path.name: path.read_text() for path in (tmp_path / "shared").iterdir()} == {
        "0": "0 of 3\n",
        "1": "1 of 3\n",
        "2": "2 of 3\n",
    }
    assert (tmp_path / "rank").read_text() == (tmp_path / "log").read_text() == "0 of 3\n"
    assert (told["state"], len(told["logs"]), told["logs"][0]["logs"][0]["stdout"]) == (
        "COMPLETE",
        1,
        "0 of 3\n",
    )
    assert [output["path"] for output in told["logs"][0]["outputs"]] == ["/out/rank", "/out/log"]


async def test_files_that_are_read_where_they_lie_have_sizes(tmp_path: Path) -> None:
    """A task's input bytes are those of its files, each once, though one has two places. A file that is made later has
    no size when the workflow comes: then nothing is known of the task's input.
    """
    (tmp_path / "a").write_text("123")
    (tmp_path / "b").write_text("4567")

    def stage(name: str, *files: str) -> dict[str, Any]:
        inputs = [{"path": f"/in/{at}", "uri": f"{tmp_path}/{file}"} for at, file in enumerate(files)]
        return {"name": name, "steps": [{"command": ["true"]}], "files": {"inputs": inputs}}

    make = {"name": "make", "steps": [{"command": ["sh", "-c", "echo > /out/c"]}]}
    make["files"] = {"outputs": [{"path": "/out/c", "uri": f"{tmp_path}/c"}]}
    stages = [make, stage("known", "a", "b", "a"), {**stage("later", "a", "c"), "needs": ["make"]}]
    async with app.running(settings(tmp_path / "root")) as up, Client(up.url) as client:
        run = await client.submit({"name": "w", "stages": stages})
        done = await client.wait(run.id, 30)
        assert (done.state, done.reason) == ("SUCCEEDED", "")
        read = [(await up.service.task(run.id, name, 0)).bytes_local for name in ("known", "later")]
    assert read == [7, 0]
