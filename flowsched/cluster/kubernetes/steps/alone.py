"""The steps of a pod on a node without an agent: the pod itself fetches its inputs, and only values come out of it.

Outputs of other tasks are never on such a node, and outputs of this pod cannot be kept for others.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from flowsched.cluster.kubernetes import orders
from flowsched.cluster.kubernetes.agent import pods
from flowsched.cluster.kubernetes.agent.pods import Dataset
from flowsched.cluster.kubernetes.agent.sources import SsrfGuard
from flowsched.cluster.kubernetes.exit_codes import BAD_ORDER, DONE, INPUT_LOST, UNREACHABLE
from flowsched.cluster.kubernetes.orders import BadOrder, Order
from flowsched.cluster.local.runner import trees
from flowsched.cluster.local.runner.outputs import Refused, find_outputs
from flowsched.cluster.local.runner.safe_paths import Unsafe
from flowsched.cluster.node.origins import NotFetched, Origins
from flowsched.cluster.node.transfers import OriginSource, finish

_FETCHES: Final = 3
_PAUSE_S: Final = 2.0
_BLOCK: Final = 1 << 20
#: Below the `inputs` volume, while they are being laid out.
_FETCHED: Final = ".fetched"

Env = Mapping[str, str]


def stage_in(env: Env) -> tuple[int, dict[str, Any]]:
    """Fetch the inputs from their origins and lay them out; returns the exit code and the message."""
    try:
        order = orders.read(env["FLOWSCHED_ORDER"])
    except BadOrder as error:
        return BAD_ORDER, {"reason": "OrderRefused", "message": str(error)}
    inputs, work = _folders(env)
    try:
        datasets, lost = _fetch(order, env, inputs / _FETCHED)
        if lost:
            message = "; ".join(lost.values())[:1000]
            return INPUT_LOST, {"reason": "InputLost", "lost": list(lost), "message": message}
        _lay_out(order, datasets, inputs, work)
        moved = sum(_size(Path(one.path)) for one in datasets.values())
    except (OSError, Unsafe) as error:
        return UNREACHABLE, {"reason": "StartFailed", "message": f"cannot lay out the inputs: {error}"}
    finally:
        shutil.rmtree(inputs / _FETCHED, ignore_errors=True)
    return DONE, {"bytes_local": 0, "bytes_moved": moved}


def stage_out(env: Env) -> dict[str, Any]:
    """The values that the task left, as a message; or why not."""
    try:
        order = orders.read(env["FLOWSCHED_ORDER"])
        work = os.open(_folders(env)[1], os.O_RDONLY | os.O_DIRECTORY)
        found = find_outputs(work, order.output_records, (env.get("FLOWSCHED_WORK") or "/flowsched/work",))
    except Refused as refusal:
        reason, message = refusal.args
        return {"outputs": [], "reason": reason, "message": message}
    except (KeyError, BadOrder, OSError) as error:
        return {"outputs": [], "reason": "OutputFailed", "message": str(error)}
    lost = [one.name for one in found if one.value is None]
    if lost:
        message = f"this node has no agent to keep outputs: {', '.join(lost)}; only values come without one"
        return {"outputs": [], "reason": "OutputFailed", "message": message}
    outputs = [
        {"name": one.name, "uri": one.uri, "size_bytes": len((one.value or "").encode()), "value": one.value}
        for one in found
    ]
    return {"outputs": outputs, "reason": "", "message": ""}


def _folders(env: Env) -> tuple[Path, Path]:
    return Path(env.get("FLOWSCHED_INPUTS", "/flowsched/inputs")), Path(
        env.get("FLOWSCHED_WORK", "/flowsched/work")
    )


def _fetch(order: Order, env: Env, into: Path) -> tuple[dict[str, Dataset], dict[str, str]]:
    """Fetch all; returns what was fetched, and of what could not be, why."""
    schemes = frozenset((env.get("FLOWSCHED_SCHEMES") or "http,https,s3").split(","))
    guarded = (("get_client", SsrfGuard(tuple((env.get("FLOWSCHED_NETWORKS") or "").split()))),)
    origins = Origins((), schemes, options=(("http", guarded), ("https", guarded)))
    datasets: dict[str, Dataset] = {}
    lost: dict[str, str] = {}
    for number, uri in enumerate(order.uris):
        try:
            datasets[uri] = _fetch_one(OriginSource(origins, uri), into / str(number))
        except NotFetched as error:
            lost[uri] = str(error)
    return datasets, lost


def _fetch_one(source: OriginSource, into: Path) -> Dataset:
    if source.name.startswith("flowsched:"):
        raise NotFetched(
            f"{source.name} was made by another task, and this node has no agent to have it", lost=True
        )
    for left in range(_FETCHES - 1, -1, -1):
        shutil.rmtree(into, ignore_errors=True)
        into.mkdir(parents=True)
        try:
            path = into / finish(source.copy(into, _BLOCK), lambda _: None).name
            trees.seal(path)
        except Unsafe as error:
            raise NotFetched(f"{source.name} cannot be a dataset: {error}", permanent=True) from error
        except NotFetched as error:
            if error.permanent or not left:
                raise
            time.sleep(_PAUSE_S)
        else:
            return Dataset(str(path))
    raise AssertionError("unreachable")


def _lay_out(order: Order, datasets: Mapping[str, Dataset], inputs: Path, work: Path) -> None:
    work_fd = os.open(work, os.O_RDONLY | os.O_DIRECTORY)
    inputs_fd = os.open(inputs, os.O_RDONLY | os.O_DIRECTORY)
    try:
        pods.furnish(work_fd, order)
        pods.lay_inputs(inputs_fd, order, datasets, str(inputs))
    finally:
        os.close(inputs_fd)
        os.close(work_fd)


def _size(path: Path) -> int:
    if not path.is_dir():
        return path.stat().st_size
    return sum(file.lstat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink())
