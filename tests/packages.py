"""Packages that tests install: a folder on `sys.path` with what an installer leaves of a package."""

from __future__ import annotations

import tomllib
from pathlib import Path


def install(folder: Path, module: str, code: str, project: str) -> Path:
    """What `pip install` leaves of a package: its module, and a dist-info with its entry points."""
    about = tomllib.loads(project)["project"]
    (folder / f"{module}.py").write_text(code)
    info = folder / f"{about['name'].replace('-', '_')}-{about['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {about['name']}\nVersion: {about['version']}\n"
    )
    lines = [
        f"[{group}]\n" + "\n".join(f"{name} = {where}" for name, where in points.items())
        for group, points in about["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder
