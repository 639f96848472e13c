"""Runs a workflow document's programs for real, in order, with the environment the service gives them.

It knows the contract between a task and the service and nothing of scheduling: plain tasks run a few at a
time in the order of their shards, a gang's members start together (or as a test says). Stages must be
listed in an order in which they can run.
"""

import contextlib
import json
import os
import random
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WORKFLOWS = Path(__file__).parents[2] / "workflows"
REFERENCE = re.compile(r"\$(\$?)\(([A-Za-z_][A-Za-z0-9_]*)\)")


def stages_of(document: str) -> list[dict[str, Any]]:
    """The stages of a document in `workflows/`, in its order."""
    return json.loads((WORKFLOWS / document).read_text())["stages"]


def run_document(document: str, folder: Path, *, only_first: int | None = None) -> dict[str, list[Path]]:
    """Run every stage, or the first few, and say where each `stage.output` of each shard is."""
    made: dict[str, list[Path]] = {}
    items: dict[str, Sequence[str | None]] = {}
    for stage in stages_of(document)[:only_first]:
        shards = shards_of(stage, items)
        items[stage["name"]] = shards
        environments = [
            task_environment(stage, index, shards, made, folder / stage["name"] / str(index))
            for index in range(len(shards))
        ]
        if stage.get("gang"):
            for environment in environments:
                with gang(stage, environment) as members:
                    finish(members)
        else:
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(run_task, [stage] * len(shards), environments))
        for output in stage.get("outputs", ()):
            paths = [Path(environment[variable("OUTPUT", output["name"])]) for environment in environments]
            missing = [path for path in paths if not path.exists()]
            assert not missing or output.get("optional"), f"{stage['name']} did not write {missing}"
            made[f"{stage['name']}.{output['name']}"] = paths
    return made


def shards_of(stage: Mapping[str, Any], items: Mapping[str, Sequence[str | None]]) -> Sequence[str | None]:
    """One entry per shard: its item, or None. An elementwise stage inherits its parent's."""
    scatter = stage.get("scatter", {})
    if "items" in scatter:
        return list(scatter["items"])
    if "count" in scatter:
        return [None] * scatter["count"]
    for given in stage.get("inputs", ()):
        if given.get("match") == "index":
            return items[given["from"].partition(".")[0]]
    return [None]


def task_environment(
    stage: Mapping[str, Any],
    index: int,
    shards: Sequence[str | None],
    made: Mapping[str, list[Path]],
    cwd: Path,
) -> dict[str, str]:
    """The variables every task gets; PWD is its working folder, which is made."""
    cwd.mkdir(parents=True)
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PWD": str(cwd),
        "FLOWSCHED_WORKFLOW": "wf1",
        "FLOWSCHED_STAGE": stage["name"],
        "FLOWSCHED_INDEX": str(index),
        "FLOWSCHED_ATTEMPT": "1",
        **stage.get("env", {}),
    }
    if (item := shards[index]) is not None:
        environment["FLOWSCHED_ITEM"] = item
    for given in stage.get("inputs", ()):
        environment[variable("INPUT", given["name"])] = str(
            input_path(given, index, len(shards), made, cwd / f"{given['name']}.manifest")
        )
    for output in stage.get("outputs", ()):
        environment[variable("OUTPUT", output["name"])] = str(cwd / output["path"])
    return environment


def input_path(
    given: Mapping[str, Any], index: int, width: int, made: Mapping[str, list[Path]], manifest: Path
) -> Path:
    """A file, or the manifest of many."""
    if "uri" in given:
        path = (WORKFLOWS / given["uri"]).resolve()
        assert path.stat().st_size == given.get("size", path.stat().st_size), (
            f"wrong size declared for {path}"
        )
        return path
    parents = made[given["from"]]
    match given.get("match", "all"):
        case "index":
            return parents[index]
        case "chunk":
            parents = parents[index * len(parents) // width : (index + 1) * len(parents) // width]
        case "all" if len(parents) == 1 and not given.get("manifest"):
            return parents[0]
    manifest.write_text("".join(f"{path}\n" for path in parents))
    return manifest


def variable(kind: str, name: str) -> str:
    """FLOWSCHED_INPUT_<NAME> or FLOWSCHED_OUTPUT_<NAME>."""
    return f"FLOWSCHED_{kind}_{re.sub('[^A-Z0-9]', '_', name.upper())}"


def expand(argument: str, environment: Mapping[str, str]) -> str:
    """Replace $(NAME) as Kubernetes does: $$(NAME) escapes, and an unknown name stays as it is."""

    def value(found: re.Match[str]) -> str:
        escaped, name = found.groups()
        return f"$({name})" if escaped else environment.get(name, found[0])

    return REFERENCE.sub(value, argument)


def run_task(stage: Mapping[str, Any], environment: Mapping[str, str]) -> None:
    """Run a plain task to its end."""
    done = subprocess.run(
        [expand(argument, environment) for argument in stage["command"]],
        env=environment,
        cwd=environment["PWD"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    where = f"{environment['FLOWSCHED_STAGE']}[{environment['FLOWSCHED_INDEX']}]"
    assert done.returncode == 0, f"{where} exited {done.returncode}\n{done.stderr}"


@dataclass
class Member:
    """One running task of a gang, alone in its process group."""

    role: str
    index: int
    completes: bool
    process: subprocess.Popen[str]
    environment: Mapping[str, str] = field(repr=False)
    log: Path = field(repr=False)

    @property
    def name(self) -> str:
        return f"{self.role}/{self.index}"


@contextlib.contextmanager
def gang(
    stage: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    absent: Sequence[str] = (),
    seed: int = 0,
    extra: Mapping[str, str] | None = None,
) -> Iterator[list[Member]]:
    """Start a gang's members in a shuffled order, 50 ms apart, and leave none behind.

    Args:
        stage: The gang's stage.
        environment: What every task gets, see `task_environment`. Outputs lie in its PWD.
        absent: Members (`worker/3`) which are never started.
        seed: Of the order of starts.
        extra: Variables set over those of the document.
    """
    order = [(role, index) for role in stage["roles"] for index in range(stage["roles"][role]["replicas"])]
    addresses = loopback_addresses(len(order))
    token = secrets.token_hex(16)
    plan = list(enumerate(order))
    random.Random(seed).shuffle(plan)
    members: list[Member] = []
    try:
        for rank, (role, index) in plan:
            if f"{role}/{index}" in absent:
                continue
            spec = stage["roles"][role]
            cwd = Path(environment["PWD"], f"{role}-{index}")
            cwd.mkdir()
            own = {
                **environment,
                **spec.get("env", {}),
                **gang_environment(order, addresses, rank, token, cwd),
                **(extra or {}),
                "PWD": str(cwd),
            }
            log = cwd / "log"
            with log.open("w") as file:
                process = subprocess.Popen(
                    [expand(argument, own) for argument in spec["command"]],
                    env=own,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    text=True,
                )
            members.append(Member(role, index, spec.get("completes", True), process, own, log))
            time.sleep(0.05)
        yield members
    finally:
        for member in members:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(member.process.pid, signal.SIGKILL)
            member.process.wait(60)


def finish(members: Sequence[Member], timeout_s: float = 300) -> None:
    """Wait until the completing members have succeeded, then release the others as the service does."""
    deadline = time.monotonic() + timeout_s
    for member in members:
        if member.completes:
            code = member.process.wait(max(0.1, deadline - time.monotonic()))
            logs = "".join(f"--- {other.name}\n{other.log.read_text()}" for other in members)
            assert code == 0, f"{member.name} exited {code}\n{logs}"
    for member in members:
        if not member.completes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(member.process.pid, signal.SIGTERM)
    for member in members:
        member.process.wait(60)


def loopback_addresses(count: int) -> list[str]:
    """Addresses of this process and call alone, so that parallel tests do not meet."""
    third, fourth = random.Random().randrange(254), random.Random().randrange(200)
    second = 64 + os.getpid() % 60
    return [f"127.{second}.{third}.{fourth + 1 + rank}" for rank in range(count)]


def gang_environment(
    order: Sequence[tuple[str, int]], addresses: Sequence[str], rank: int, token: str, cwd: Path
) -> dict[str, str]:
    """What a member learns about its gang."""
    role, index = order[rank]
    port = "29500"
    of_role: dict[str, list[str]] = {}
    for (name, _), address in zip(order, addresses, strict=True):
        of_role.setdefault(name, []).append(address)
    hostfile = cwd / "hostfile"
    hostfile.write_text(
        "".join(
            f"{address} slots=1\n"
            for (name, _), address in zip(order, addresses, strict=True)
            if name != "launcher"
        )
    )
    cluster = {name: [f"{address}:{port}" for address in held] for name, held in of_role.items()}
    return {
        "FLOWSCHED_HOSTS": ",".join(addresses),
        **{f"FLOWSCHED_HOSTS_{name.upper()}": ",".join(held) for name, held in of_role.items()},
        "FLOWSCHED_ROLE": role,
        "FLOWSCHED_ROLE_INDEX": str(index),
        "FLOWSCHED_ADDRESS": addresses[rank],
        "FLOWSCHED_HOSTFILE": str(hostfile),
        "FLOWSCHED_GANG_TOKEN": token,
        "RANK": str(rank),
        "WORLD_SIZE": str(len(order)),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": addresses[0],
        "MASTER_PORT": port,
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": role, "index": index}}),
    }
