"""Where the real clients are: folders outside the repository, made by `make clients`, and by `make engines` what takes long."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

REQUIRE = "FLOWSCHED_REQUIRE_CLIENTS"
#: What `make engines` installs, in too long a time for CI.
BY_HAND = ("nextflow", "sprocket")


def home() -> Path:
    """FLOWSCHED_CLIENTS, or the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(os.environ.get("FLOWSCHED_CLIENTS") or Path(cache, "flowsched", "clients"))


def environment(name: str) -> Path:
    """The folder of a client, or the end of this test: a skip on a laptop, a failure in CI for what `make clients` installs."""
    folder = home() / name
    if not installed(name):
        missing = f"no {name} in {home()}: make {'engines' if name in BY_HAND else 'clients'}"
        if os.environ.get(REQUIRE) == "1" and name not in BY_HAND:
            pytest.fail(f"{REQUIRE}=1, but {missing}", pytrace=False)
        pytest.skip(missing)
    return folder


def installed(name: str) -> bool:
    """Whether its installation came to its end. Snakemake's storage plugin calls rsync."""
    return (home() / name / ".made").exists() and (name != "snakemake-9" or shutil.which("rsync") is not None)


@cache
def versions(folder: Path) -> str:
    """The clients of an environment, as pip or `make engines` names them."""
    if folder.name in BY_HAND:
        return (folder / ".made").read_text().strip()
    command = [
        folder / "bin" / "python",
        "-m",
        "pip",
        "list",
        "--format",
        "json",
        "--disable-pip-version-check",
    ]
    told = subprocess.run(command, capture_output=True, check=True, timeout=300).stdout
    found = {package["name"]: package["version"] for package in json.loads(told)}
    shown = re.compile(r"snakemake(-(executor|storage)-plugin-.+)?|wes-service|toil.*|.+[-_]tes")
    return ", ".join(f"{name} {version}" for name, version in found.items() if shown.fullmatch(name))
