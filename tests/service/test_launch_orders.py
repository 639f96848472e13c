"""What of a document reaches the pods, and what of a secret reaches anything at all."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from flowsched import Client, app
from flowsched.cluster.local.orders import set_secret
from flowsched.cluster.local.settings import LocalSettings
from flowsched.executor.protocol import Pod
from flowsched.store.database import url_for
from tests.cluster.fake import FakeProcesses, Outcome
from tests.service.processes import process

CANARY = "canary-9e1d-not-for-others"


async def test_a_memory_limit_grows_with_the_request(tmp_path: Path) -> None:
    """By the same factor; where none is said, none is given."""
    launched: list[Pod] = []

    def script(pod: Pod) -> Outcome:
        launched.append(pod)
        first = pod.memory_bytes == 100 << 20
        return Outcome(137, "OOMKilled", runtime_ms=5) if first else Outcome(runtime_ms=5)

    stage = {
        "command": ["x"], "resources": {"memory": "100Mi"}, "retry": {"attempts": 2, "memory_factor": 1.5},
        "secrets": {"KEY": "lab-key"},
    }  # fmt: skip
    limited = {"name": "limited", "limits": {"memory": "200Mi"}, **stage}
    plain = {"name": "plain", "limits": {"cpu": 2}, **stage}
    document = json.dumps({"name": "w", "stages": [limited, plain]}).encode()
    async with process(url_for(tmp_path / "db"), tmp_path, FakeProcesses(script)) as one:
        one.lead()
        await one.ready()
        ident = (await one.service.submit(document)).id
        while (await one.service.workflow(ident)).state != "SUCCEEDED":
            await asyncio.sleep(0.01)
    mebi = 1 << 20
    found = sorted((p.stage, p.memory_bytes // mebi, p.memory_limit_bytes) for p in launched)
    assert found[:2] == [("limited", 100, 200 * mebi), ("limited", 150, 300 * mebi)]
    assert found[2:] == [("plain", 100, None), ("plain", 150, None)]
    assert all(pod.secrets == {"KEY": "lab-key"} for pod in launched)


async def test_a_secret_is_in_no_file_row_or_answer(tmp_path: Path) -> None:
    """The whole root, the database, and everything the API tells of a workflow that used it."""
    root = tmp_path / "root"
    set_secret(root, "lab-key", CANARY.encode())
    check = f'test ${{#KEY}} = {len(CANARY)} && echo seen > "$FLOWSCHED_OUTPUT_O"'
    good = {
        "name": "good", "command": ["/bin/sh", "-c", check], "secrets": {"KEY": "lab-key"},
        "outputs": [{"name": "o", "path": "o"}],
    }  # fmt: skip
    bad = {"name": "bad", "command": ["true"], "secrets": {"KEY": "other-key"}}
    answers: list[object] = []
    settings = app.Settings(root=root, port=0, log_level="error", local=LocalSettings(cpu="2"))
    async with app.running(settings) as running, Client(running.url) as client:
        run = await client.submit({"name": "w", "stages": [good, bad]})
        answers.append(await client.wait(run.id, 30))
        answers += [await client.stages(run.id), await client.document(run.id)]
        answers += [event async for event in client.events(run.id)]
        tasks = [await client.task(run.id, stage) for stage in ("good", "bad")]
        answers += tasks
        assert [chunk async for chunk in client.output(run.id, "good", 0, "o")] == [b"seen\n"]
    assert [task.state for task in tasks] == ["SUCCEEDED", "FAILED"]
    assert tasks[1].attempts[0].reason == "SecretMissing"
    assert CANARY not in repr(answers)
    holders = [p for p in root.rglob("*") if p.is_file() and CANARY.encode() in p.read_bytes()]
    assert holders == [root / "secrets" / "lab-key"]
