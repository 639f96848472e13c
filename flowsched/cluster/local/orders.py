"""Launch orders: the pod, its paths and its environment, as the runner reads them; and the secrets of a root."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from flowsched.cluster.local.runner.secret_values import LARGEST, is_secret_name
from flowsched.cluster.node.cache import Cache, file_name
from flowsched.cluster.node.container_paths import local_path
from flowsched.cluster.node.environment import Paths, environment
from flowsched.errors import InvalidRequest, NotFound, no_such
from flowsched.executor.datasets import uri_of
from flowsched.executor.protocol import InputFile, Pod
from flowsched.tokens import write_whole
from flowsched.workflow.spec import Container

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]")

#: Variables that an image has its own values of.
OF_THE_IMAGE: Final = ("PATH", "LANG", "PWD")
#: How object stores are written to: the options of each scheme, variables of the environment. It holds credentials.
Upload = Callable[[], dict[str, Any]]


def compose(
    folder: Path,
    pod: Pod,
    caches: Mapping[str, Cache],
    images: Mapping[str, Any],
    upload: Upload,
    lost: Collection[str],
) -> dict[str, Any]:
    """The order as a value. `Launch` adds the parts that do not depend on the pod.

    Args:
        folder: Of the attempt.
        pod: The pod that is to run.
        caches: By node.
        images: How it uses its images, and which they are: see `images.Images.order`.
        upload: How to write to object stores; called only if an output goes there.
        lost: Inputs that are read in place, and are another version now.
    """
    work = folder / "work"
    inputs = [_input(file, pod, caches, lost) for file in pod.inputs]
    links = {file.name: f"{work}/{order['link']}" for file, order in zip(pod.inputs, inputs, strict=True)}
    env, argv = environment(pod, Paths(str(folder), str(work), links, search_path()))
    if "image" in images:
        env = {key: value for key, value in env.items() if key not in OF_THE_IMAGE or key in pod.env}
    return {
        "name": pod.name,
        "folder": str(folder),
        "argv": argv,
        "env": env,
        "inputs": inputs,
        "folders": sorted(
            {str(PurePosixPath(output.path).parent) for output in pod.outputs if inside(output.path)}
        ),
        "outputs": _outputs(pod, caches),
        "timeout_ms": pod.timeout_ms or 0,
        "memory_bytes": pod.memory_limit_bytes or pod.memory_bytes,
        "pipeline": pod.pipeline,
        "after": pod.after,
        "secrets": dict(pod.secrets),
        "refused": images.get("refused"),
        "images": images.get("images", ()),
        "image": images.get("image"),
        "engine": images.get("engine"),
        "mounts": images.get("mounts", ()),
        "container": _container(pod, caches, upload, images) if pod.container is not None else None,
    }


def cpu_limit(pod: Pod) -> int:
    """The milli-CPU that a pod may use: those of its limits, else those that it asked for."""
    return max(pod.limits.cpu_millicores if pod.limits else 0, pod.cpu_millicores)


def _outputs(pod: Pod, caches: Mapping[str, Cache]) -> list[dict[str, Any]]:
    """The files that move into the cache of the pod's node."""
    return [
        {
            "name": output.name,
            "path": output.path,
            "uri": output.uri,
            "entry": str(caches[pod.node].home(output.uri)),
            "optional": output.optional,
            "value": output.value,
        }
        for output in pod.outputs
    ]


def _container(
    pod: Pod, caches: Mapping[str, Cache], upload: Upload, images: Mapping[str, Any]
) -> dict[str, Any]:
    """The steps and files of a container task, with paths of this machine beside those of the container."""
    container = pod.container
    assert container is not None
    staged = staged_files(pod, caches)
    used = images.get("steps") or [None] * len(container.steps)
    inputs = []
    for placed in container.inputs:
        uri = source = None if placed.source is None else local_path(placed.source)
        if placed.input is not None:
            name, source = staged[placed.input]
            uri = uri_of(name)
        inputs.append({"path": placed.path, "uri": uri, "source": source, "content": placed.content})
    away = any(not output.uri.startswith("/") for output in container.outputs)
    return {
        **outside(container),
        "steps": [
            {
                "argv": list(step.command),
                "env": dict(step.env),
                "workdir": step.workdir,
                "stdin": step.stdin,
                "stdout": step.stdout,
                "stderr": step.stderr,
                "ignore_error": step.ignore_error,
                "image": image,
            }
            for step, image in zip(container.steps, used, strict=True)
        ],
        "layout": images.get("layout"),
        "inputs": inputs,
        "delivers": container.delivers,
        "last": pod.is_last,
        "fitted": pod.is_fitted,
        "volumes": list(container.volumes),
        "return_code": container.return_code,
        "upload": upload() if away else None,
    }


def outside(container: Container) -> dict[str, Any]:
    """The part of a container's order that says where what it writes is found on this machine."""
    return {
        "outputs": [
            {
                "path": output.path,
                "uri": output.uri,
                "local": output.uri if output.uri.startswith("/") else None,
                "directory": output.directory,
                "prefix": output.path_prefix,
            }
            for output in container.outputs
        ],
        "mounts": [{"source": m.source, "path": m.path, "read_only": m.read_only} for m in container.mounts],
        "leave": [
            {"path": left.path, "content": left.content, "reason": left.reason and left.reason.value}
            for left in container.leave
        ],
    }


def staged_files(pod: Pod, caches: Mapping[str, Cache]) -> dict[str, tuple[str, str]]:
    """Name of an input -> (uri, its file or folder, in a cache or where it lies), of those that are one dataset each."""
    staged = {}
    for file in pod.inputs:
        if file.uris:
            uri = file.uris[0]
            cache = caches[pod.remote.get(uri, pod.node)]
            entry = cache.entries.get(uri)
            staged[file.name] = uri, cache.place(entry) if entry else str(cache.home(uri) / file_name(uri))
    return staged


def search_path() -> str:
    """PATH of a task: this interpreter first, so that `python` is the one flowsched runs on."""
    usual = os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")
    return os.pathsep.join(dict.fromkeys((os.path.dirname(sys.executable), *usual.split(os.pathsep))))


def inside(path: str) -> bool:
    """Whether a path stays, by its text, below the folder it is relative to."""
    return not path.startswith("/") and ".." not in PurePosixPath(path).parts


def _input(
    file: InputFile, pod: Pod, caches: Mapping[str, Cache], lost: Collection[str] = ()
) -> dict[str, Any]:
    """One input: its files in the cache of the node that it is read from, also those that are not there (the runner will say
    so), and its link.
    """
    files = []
    for uri in file.uris:
        cache = caches[pod.remote.get(uri, pod.node)]
        entry = cache.entries.get(uri)
        name = entry.name if entry else file_name(uri)
        files.append((uri, "" if uri in lost else str(cache.home(uri) / name)))
    safe = _UNSAFE.sub("_", file.name) or "_"
    safe = f"_{safe}" if safe.startswith(".") else safe
    name = os.path.basename(files[0][1]) if files else ""
    link = f"inputs/{safe}.manifest" if file.manifest else f"inputs/{safe}/{name}"
    return {"name": file.name, "files": files, "manifest": file.manifest, "link": link}


# ---- the secrets of a root ----
#
# Files that only their owner can read. Runners read them; see `runner.secret_values`.


def set_secret(root: Path, name: str, value: bytes) -> None:
    """Write a secret, wholly or not at all; one that is there is replaced. Tasks that start from now on get it.

    Raises:
        InvalidRequest: Of this name or value there can be none.
    """
    path = _path(root, name)
    if len(value) > LARGEST or b"\0" in value:
        raise InvalidRequest(f"a secret has at most {LARGEST} bytes and no zero byte")
    root.mkdir(parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    write_whole(path, value)


def list_secrets(root: Path) -> list[str]:
    """Their names."""
    try:
        return sorted(name for name in os.listdir(root / "secrets") if is_secret_name(name))
    except FileNotFoundError:
        return []


def remove_secret(root: Path, name: str) -> None:
    """Remove one.

    Raises:
        NotFound: There is none of the name.
    """
    try:
        _path(root, name).unlink()
    except FileNotFoundError:
        raise NotFound(f"{no_such('secret', name, list_secrets(root))} ({root / 'secrets'})") from None


def _path(root: Path, name: str) -> Path:
    if not is_secret_name(name):
        raise InvalidRequest(
            f"{name!r} is no name of a secret: 1-128 letters, digits, '.', '_' and '-', the first no '.'"
        )
    return root / "secrets" / name
