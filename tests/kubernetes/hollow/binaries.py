"""Where the binaries of a control plane are, in the order of envtest; `controlplane` runs them."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

ETCD: Final = "etcd"
APISERVER: Final = "kube-apiserver"

#: An older one answers `sendInitialEvents` by an ERROR event: it lacks watch progress.
_OLDEST_ETCD: Final = (3, 5, 13)


def assets() -> Path:
    """Where `make kube-assets` puts what it builds."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(cache) / "flowsched" / "kube" / "bin"


def find(name: str) -> Path | None:
    """A binary by its name: TEST_ASSET_<NAME>, KUBEBUILDER_ASSETS, what `make kube-assets` built, then PATH.

    A variable that is set decides: what it names is taken, or nothing. What was built has the version that the tests are made for:
    with Docker, a machine also has a containerd of another one in its PATH.
    """
    given = os.environ.get("TEST_ASSET_" + re.sub(r"\W", "_", name).upper())
    if given:
        return _program(Path(given))
    folder = os.environ.get("KUBEBUILDER_ASSETS")
    if folder and _program(Path(folder) / name):
        return Path(folder) / name
    on_path = shutil.which(name)
    return _program(assets() / name) or (Path(on_path) if on_path is not None else None)


def missing(*names: str) -> str | None:
    """Why there can be no control plane on this machine, in words; None if there can be.

    Args:
        names: Other binaries that are needed, too.
    """
    absent = [name for name in (ETCD, APISERVER, *names) if find(name) is None]
    if absent:
        return (
            f"no {', '.join(absent)}: run `make kube-assets`, or let KUBEBUILDER_ASSETS name a folder with them "
            "(`setup-envtest use -p path`)"
        )
    etcd = find(ETCD)
    version = _etcd_version(etcd) if etcd is not None else ()
    if version < _OLDEST_ETCD:
        return (
            f"{etcd} is etcd {'.'.join(map(str, version)) or '?'}, 3.5.13 is needed: run `make kube-assets`"
        )
    return None


def _program(path: Path) -> Path | None:
    return path if path.is_file() and os.access(path, os.X_OK) else None


@functools.lru_cache
def _etcd_version(path: Path) -> tuple[int, ...]:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=False).stdout
    found = re.search(r"etcd Version: (\d+)\.(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else ()
