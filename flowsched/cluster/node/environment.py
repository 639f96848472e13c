"""The environment and command line of a task, and the files that tell a gang's member of the others: pure functions of the pod."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from flowsched.executor.protocol import GangSeat, Member, Pod, Roster
from flowsched.workflow.document.limits import MOST_LISTED

#: Members of this role start the others over the hostfile, so they are not in it themselves.
LAUNCHER: Final = "launcher"
#: Files of a gang's member, in its working folder: MPI's hostfile, and what TF_CONFIG has as its `cluster`.
HOSTFILE: Final = "hostfile"
CLUSTER: Final = "cluster.json"
#: Where the others find a member.
Address = Callable[[Member], str]

_REFERENCE: Final = re.compile(r"\$(\$?)\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_NOT_IN_A_NAME: Final = re.compile(r"[^A-Z0-9]")


class Paths(msgspec.Struct, frozen=True):
    """Paths of an attempt on the pod's node. All absolute."""

    folder: str  #: of the attempt
    work: str  #: the task's working folder
    inputs: Mapping[str, str]  #: input name -> its file, folder or manifest
    path: str  #: PATH


def loopback(member: Member) -> str:
    """Where members are found that run on one machine."""
    number = member.number
    return f"127.{64 + (number >> 16)}.{number >> 8 & 255}.{number & 255}"


def environment(pod: Pod, paths: Paths, address: Address = loopback) -> tuple[dict[str, str], list[str]]:
    """The task's whole environment, and its command with `$(NAME)` expanded from it.

    The order of precedence: what flowsched says about the task, the pod's `env`, the base.

    Args:
        pod: The pod.
        paths: Where its files are.
        address: Where it finds the members of its gang.
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
    for input_file in pod.inputs:
        env[f"FLOWSCHED_INPUT_{folded(input_file.name)}"] = paths.inputs[input_file.name]
    for output in pod.outputs:
        env[f"FLOWSCHED_OUTPUT_{folded(output.name)}"] = f"{paths.work}/{output.path}"
    if pod.gang is not None:
        env |= _gang(pod.gang, address)
        env["FLOWSCHED_HOSTFILE"] = f"{paths.work}/{HOSTFILE}"
        env["FLOWSCHED_CLUSTER_FILE"] = f"{paths.work}/{CLUSTER}"
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


def gang_files(roster: Roster, slots: int, port: int, address: Address) -> dict[str, str]:
    """The texts of the files that tell a member of the others: name in its working folder -> text.

    Args:
        roster: All members.
        slots: Whole cores of the member, which MPI's hostfile says for each host.
        port: MASTER_PORT.
        address: Where members are found.
    """
    hosts = [f"{address(each)} slots={slots}\n" for each in roster.members() if each.role != LAUNCHER]
    return {HOSTFILE: "".join(hosts), CLUSTER: json.dumps(_cluster(roster, port, address))}


def ceil_cores(cpu_millicores: int) -> int:
    """Whole cores, at least one."""
    return max(1, -(-cpu_millicores // 1000))


def _gang(seat: GangSeat, address: Address) -> dict[str, str]:
    roster = seat.roster
    env = {
        "FLOWSCHED_ROLE": seat.role,
        "FLOWSCHED_ROLE_INDEX": str(seat.role_index),
        "FLOWSCHED_ADDRESS": address(seat.member),
        "FLOWSCHED_GANG_TOKEN": seat.token,
        "RANK": str(seat.rank),
        "WORLD_SIZE": str(roster.size),
        "LOCAL_RANK": "0",
        "MASTER_ADDR": address(roster.first),
        "MASTER_PORT": str(seat.master_port),
    }
    return env if roster.size > MOST_LISTED else _lists(seat, address) | env


def _lists(seat: GangSeat, address: Address) -> dict[str, str]:
    """The variables with the addresses of all members."""
    of_role: dict[str, list[str]] = {}
    hosts = []
    for member in seat.roster.members():
        hosts.append(address(member))
        of_role.setdefault(member.role, []).append(hosts[-1])
    cluster = _cluster(seat.roster, seat.master_port, address)
    return {
        "FLOWSCHED_HOSTS": ",".join(hosts),
        **{f"FLOWSCHED_HOSTS_{folded(role)}": ",".join(addresses) for role, addresses in of_role.items()},
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": seat.role, "index": seat.role_index}}),
    }


def _cluster(roster: Roster, port: int, address: Address) -> dict[str, list[str]]:
    """Role -> host and port of each of its members, as TF_CONFIG has it."""
    cluster: dict[str, list[str]] = {}
    for member in roster.members():
        cluster.setdefault(member.role, []).append(f"{address(member)}:{port}")
    return cluster
