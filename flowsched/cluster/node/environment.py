"""The environment and command line of a task: one pure function of the pod and its paths."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

import msgspec

from flowsched.executor.protocol import GangSeat, Pod

#: Members of this role start the others over the hostfile, so they are not in it themselves.
LAUNCHER: Final = "launcher"

_REFERENCE: Final = re.compile(r"\$(\$?)\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Z0-9]")


class Paths(msgspec.Struct, frozen=True):
    """Paths of an attempt on the pod's node. All absolute."""

    folder: str  #: of the attempt
    work: str  #: the task's working folder
    inputs: Mapping[str, str]  #: input name -> its file, folder or manifest
    path: str  #: PATH


def environment(pod: Pod, paths: Paths) -> tuple[dict[str, str], list[str]]:
    """The task's whole environment, and its command with `$(NAME)` expanded from it.

    The order of precedence: what flowsched says about the task, the pod's `env`, the base.
    """
    cores = ceil_cores(pod.cpu_millicores)
    env = {
        "PATH": paths.path,
        "HOME": paths.work,
        "PWD": paths.work,
        "TMPDIR": f"{paths.work}/tmp",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(cores),
        **pod.env,
        "FLOWSCHED_FOLDER": paths.folder,
        "FLOWSCHED_WORKFLOW": pod.workflow,
        "FLOWSCHED_STAGE": pod.stage,
        "FLOWSCHED_INDEX": str(pod.shard),
        "FLOWSCHED_ATTEMPT": str(pod.attempt),
        "FLOWSCHED_CPU": str(cores),
    }
    if pod.memory_bytes:
        env["FLOWSCHED_MEMORY"] = str(pod.memory_bytes)
    if pod.item is not None:
        env["FLOWSCHED_ITEM"] = pod.item
    if pod.gpu_ids:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, pod.gpu_ids))
    elif pod.gpu_millis == 0:
        env.setdefault("CUDA_VISIBLE_DEVICES", "")
    for given in pod.inputs:
        env[f"FLOWSCHED_INPUT_{folded(given.name)}"] = paths.inputs[given.name]
    for output in pod.outputs:
        env[f"FLOWSCHED_OUTPUT_{folded(output.name)}"] = f"{paths.work}/{output.path}"
    if pod.gang is not None:
        env |= _gang(pod.gang)
        env["FLOWSCHED_HOSTFILE"] = f"{paths.work}/hostfile"
    return env, [expand(argument, env) for argument in pod.command]


def folded(name: str) -> str:
    """A name as a part of a variable's: upper-case, everything but letters and digits becomes `_`."""
    return _NOT_IN_A_NAME.sub("_", name.upper())


def expand(argument: str, env: Mapping[str, str]) -> str:
    """Replace `$(NAME)` as Kubernetes does: `$$(NAME)` escapes, an unknown name stays as it is, no shell."""

    def value(found: re.Match[str]) -> str:
        escaped, name = found.groups()
        return f"$({name})" if escaped else env.get(name, found[0])

    return _REFERENCE.sub(value, argument)


def hostfile(seat: GangSeat, cpu_millicores: int) -> str:
    """MPI's hostfile: every member but launchers, with this pod's whole cores as slots."""
    slots = ceil_cores(cpu_millicores)
    hosts = zip(seat.addresses, seat.roles, strict=True)
    return "".join(f"{address} slots={slots}\n" for address, role in hosts if role != LAUNCHER)


def ceil_cores(cpu_millicores: int) -> int:
    """Whole cores, at least one."""
    return max(1, -(-cpu_millicores // 1000))


def _gang(seat: GangSeat) -> dict[str, str]:
    of_role: dict[str, list[str]] = {}
    for address, role in zip(seat.addresses, seat.roles, strict=True):
        of_role.setdefault(role, []).append(address)
    port = seat.master_port
    cluster = {role: [f"{address}:{port}" for address in held] for role, held in of_role.items()}
    task = {"type": seat.role, "index": seat.role_index}
    return {
        "FLOWSCHED_HOSTS": ",".join(seat.addresses),
        **{f"FLOWSCHED_HOSTS_{folded(role)}": ",".join(held) for role, held in of_role.items()},
        "FLOWSCHED_ROLE": seat.role,
        "FLOWSCHED_ROLE_INDEX": str(seat.role_index),
        "FLOWSCHED_ADDRESS": seat.addresses[seat.rank],
        "FLOWSCHED_GANG_TOKEN": seat.token,
        "RANK": str(seat.rank),
        "WORLD_SIZE": str(len(seat.addresses)),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": seat.addresses[0],
        "MASTER_PORT": str(port),
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": task}),
    }
