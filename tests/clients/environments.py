"""Where the real clients are: virtual environments outside the repository, made by `make clients`."""

from __future__ import annotations

import json
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest

REQUIRE = "FLOWSCHED_REQUIRE_CLIENTS"


def home() -> Path:
    """FLOWSCHED_CLIENTS, or the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("FLOWSCHED_CLIENTS") or Path(cache, "flowsched", "clients"))


def environment(name: str) -> Path:
    """The folder of a virtual environment, or the end of this test: a skip on a laptop, a failure in CI."""
    folder = home() / name
    if not (folder / ".made").exists():
        missing = f"no environment {name} in {home()}: make clients"
        if os.environ.get(REQUIRE) == "1":
            pytest.fail(f"{REQUIRE}=1, but {missing}", pytrace=False)
        pytest.skip(missing)
    return folder


@cache
def versions(folder: Path) -> str:
    """The clients of an environment, as pip names them."""
    command = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "list",
        "--format",
        "json",
        "--disable-pip-version-check",
    ]
    told = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    found = {package["name"]: package["version"] for package in json.loads(told)}
    shown = (
        "py-tes",
        "wes-service",
        "snakemake",
        "snakemake-executor-plugin-tes",
        "snakemake-storage-plugin-fs",
    )
    return ", ".join(f"{package} {found[package]}" for package in shown if package in found)
