"""A gang of real processes that begins small, grows while it goes on, across a restart of the service, and shrinks again."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from flowsched.app import Settings, running
from flowsched.client import Client
from flowsched.cluster.local.settings import LocalSettings

#: As torchrun's agents do: members come to a meeting at rank 0, at any time, and learn each round how many they are. Rank 0 says
#: whether the work is done, and writes down every size that the gang has had.
PROGRAM = """
import hmac, json, os, pathlib, socket, time

rank, token = int(os.environ["RANK"]), os.environ["FLOWSCHED_GANG_TOKEN"].encode()
meeting = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
done = pathlib.Path(os.environ["DONE"])

def lead():
    members, sizes, ranks = {}, [1], [0]
    with socket.create_server(meeting) as listener:
        listener.settimeout(0.05)
        while True:
            try:
                peer, _ = listener.accept()
                peer.settimeout(10)
                file = peer.makefile("rwb", buffering=0)
                told = json.loads(file.readline())
                assert hmac.compare_digest(told["token"].encode(), token)
                members[told["rank"]] = file
                ranks.append(told["rank"])
            except TimeoutError:
                pass
            over = done.exists()
            for name, file in list(members.items()):
                try:
                    file.write(json.dumps({"size": 1 + len(members), "over": over}).encode() + b"\\n")
                    assert file.readline()
                except (OSError, AssertionError):
                    del members[name]
            if 1 + len(members) != sizes[-1]:
                sizes.append(1 + len(members))
                print("members", sizes[-1], flush=True)
            if over:
                pathlib.Path("sizes.json").write_text(json.dumps({"sizes": sizes, "ranks": ranks}))
                return

def follow():
    with socket.create_connection(meeting, source_address=(os.environ["FLOWSCHED_ADDRESS"], 0)) as peer:
        file = peer.makefile("rwb", buffering=0)
        file.write(json.dumps({"rank": rank, "token": token.decode()}).encode() + b"\\n")
        while not (told := json.loads(file.readline()))["over"]:
            file.write(b"yes\\n")
        file.write(b"yes\\n")

lead() if rank == 0 else follow()
"""


async def counts(client: Client, ident: str, **wanted: int) -> None:
    """Wait until so many of a workflow's tasks are in these states."""
    while True:
        have = (await client.get(ident)).counts
        if {state: have.get(state, 0) for state in wanted} == wanted:
            return
        await asyncio.sleep(0.05)


async def saw(client: Client, ident: str, sizes: str) -> None:
    """Wait until rank 0 has seen its gang at these sizes, one after the other."""
    while True:
        said = await client.log_tail(ident, "train", 0, stream="stdout")
        if [line.removeprefix("members ") for line in said][-len(sizes.split()) :] == sizes.split():
            return
        await asyncio.sleep(0.1)


def waiting_for(path: Path, count: int = 1, **more: Any) -> bytes:
    """Tasks of a core that end when a file appears."""
    command = ["sh", "-c", f"while ! test -e {path}; do sleep 0.05; done"]
    stage = {
        "name": "t",
        "scatter": {"count": count},
        "command": command,
        "resources": {"cpu": 1, "memory": "16Mi"},
    }
    return json.dumps({"name": "other", "stages": [stage], **more}).encode()


async def test_real_members_join_leave_and_join_again(tmp_path: Path) -> None:
    """One of three finds room at first; the others join after a restart; one makes way and comes back with its rank."""
    program, done, go, high = (tmp_path / name for name in ("elastic.py", "done", "go", "high"))
    program.write_text(PROGRAM)
    role = {
        "replicas": 3, "min": 1, "command": [sys.executable, "$(FLOWSCHED_INPUT_PROGRAM)"], "env": {"DONE": str(done)},
        "resources": {"cpu": 1, "memory": "64Mi"},
    }  # fmt: skip
    stage = {
        "name": "train", "gang": True, "cache": True, "roles": {"worker": role},
        "inputs": [{"name": "program", "uri": str(program)}],
        "outputs": [{"name": "sizes", "path": "sizes.json"}],
    }  # fmt: skip
    settings = Settings(
        port=0, root=tmp_path / "root", log_level="error", local=LocalSettings(cpu="3", memory="1Gi")
    )
    async with asyncio.timeout(120):
        async with running(settings) as up, Client(up.url) as client:
            await counts(client, (await client.submit(waiting_for(go, 2))).id, RUNNING=2)
            gang = (await client.submit(json.dumps({"name": "g", "stages": [stage]}).encode())).id
            await counts(client, gang, RUNNING=1, QUEUED=2)
            (told,) = await client.explain(gang)
            assert told.code == "GangGoesOn"
            assert "its gang goes on with 1 of 3 members; it joins when room comes" in told.message
        async with running(settings) as up, Client(up.url) as client:
            await counts(client, gang, RUNNING=1)
            go.touch()
            await saw(client, gang, "3")
            taker = (await client.submit(waiting_for(high, priority=5))).id
            await counts(client, taker, RUNNING=1)
            await counts(client, gang, RUNNING=2, QUEUED=1)
            high.touch()
            await saw(client, gang, "3 2 3")
            done.touch()
            view = await client.wait(gang, timeout=100)
            assert (view.state, view.counts) == ("SUCCEEDED", {"SUCCEEDED": 3})
            saved = await client.download(gang, "train", 0, "sizes", tmp_path / "out")
    found = json.loads(Path(saved).read_text())
    assert found["sizes"][-3:] == [3, 2, 3]
    assert sorted(found["ranks"][:3]) == [0, 1, 2]
    assert found["ranks"][3:] in ([1], [2])
