"""What the steps of a pod are told: its inputs, its outputs, and what to lay out beside them.

How it travels, and its signature, are in `agent.orders`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any, Final

from flowsched.cluster.cache import file_name
from flowsched.cluster.environment import hostfile
from flowsched.cluster.orders import inside
from flowsched.executor.protocol import InputFile, Pod

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")
_NO_NAMES: Final[Mapping[str, str]] = {}
#: Made by stage-in beside what outputs need: TMPDIR.
TEMPORARY: Final = "tmp"


def order_of(
    pod: Pod,
    file_names: Mapping[str, str] = _NO_NAMES,
    places: Mapping[str, str] = _NO_NAMES,
    expires_ms: int = 0,
) -> dict[str, Any]:
    """The order of a pod's steps, as a value.

    Args:
        pod: What to run. Its gang's addresses are those the hostfile shall have.
        file_names: uri -> its file's name, where that is not the last part of the uri.
        places: Name of an input -> where it shall lie in the `inputs` volume, where that is not its own folder.
        expires_ms: Wall clock; from then on an agent begins nothing by it.
    """
    parents = {str(PurePosixPath(output.path).parent) for output in pod.outputs if inside(output.path)}
    return {
        "pod": pod.name,
        "inputs": [
            {
                "name": given.name,
                "uris": list(given.uris),
                "manifest": given.manifest,
                "path": places.get(given.name) or input_path(given, file_names),
            }
            for given in pod.inputs
        ],
        "outputs": [
            {
                "name": output.name,
                "path": output.path,
                "uri": output.uri,
                "optional": output.optional,
                "value": output.value,
            }
            for output in pod.outputs
        ],
        "folders": sorted((parents - {"."}) | {TEMPORARY}),
        "hostfile": hostfile(pod.gang, pod.cpu_millicores) if pod.gang else None,
        "expires_ms": expires_ms,
    }


def input_path(given: InputFile, file_names: Mapping[str, str] = _NO_NAMES) -> str:
    """Where an input is in the pod's `inputs` volume: a folder of its own, or its manifest."""
    safe = _UNSAFE.sub("_", given.name) or "_"
    safe = f"_{safe}" if safe.startswith(".") else safe
    if given.manifest:
        return f"{safe}.manifest"
    uri = given.uris[0] if given.uris else ""
    named = PurePosixPath(file_names.get(uri, "")).name
    return f"{safe}/{_short(named if named not in ('', '.', '..') else file_name(uri))}"


def _short(name: str) -> str:
    """The end of a file's name, which holds its extension: at most 200 of the 255 bytes that a name may have."""
    return name.encode(errors="replace")[-200:].decode(errors="ignore")
