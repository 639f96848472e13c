"""The programs of other engines on this machine, and the files that flowsched has for them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from flowsched.errors import InvalidRequest
from flowsched.workflow.formats.heads import ENGINES, Engine, Start, head

#: An engine on a Java machine takes some seconds to say its version.
_VERSION_S: Final = 60.0
_NUMBER: Final = re.compile(r"\d+\.[\w.+-]*\d")


def search_path() -> str:
    """The folders in which flowsched looks for engines: those of PATH, and the one of the Python that runs flowsched."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), _own_folder()))


def _own_folder() -> str:
    return os.path.dirname(sys.executable)


def find(language: str, program: str | None = None) -> tuple[Engine, str]:
    """An engine for a language, and the path of its program: of several the first of `ENGINES`.

    Args:
        language: As GA4GH WES calls it.
        program: The engine that the user wants; None = any.

    Raises:
        InvalidRequest: None is installed, or the one that the user wants runs another language.
    """
    able = [each for each in ENGINES if each.language == language]
    wanted = [each for each in able if program in (None, each.program)]
    if not wanted:
        known = ", ".join(each.program for each in able)
        raise InvalidRequest(f"{program!r} is no engine for {language}: expected one of {known}")
    for engine in wanted:
        # Another miniwdl may lack flowsched's backend, which is installed beside flowsched.
        own = shutil.which(engine.program, path=_own_folder()) if engine.program == "miniwdl" else None
        path = own or shutil.which(engine.program, path=search_path())
        if path is not None:
            return engine, os.path.abspath(path)
    cures = "; or ".join(f"{each.program}: {each.install}" for each in wanted)
    names = " and no ".join(each.program for each in wanted)
    raise InvalidRequest(f"there is no {names} on the PATH, to run the workflow. Get {cures}")


def document(
    engine: Engine,
    program: str,
    source: str,
    folder: str,
    arguments: Sequence[str],
    *,
    url: str,
    ident: str,
    name: str,
    labels: Mapping[str, str] | None = None,
    token: bool,
    again: bool,
) -> bytes:
    """The document that begins a run: its head, which gets what it needs of this process's environment.

    Args:
        engine: The engine.
        program: The path of its program.
        source: The workflow, as a path or as what the engine fetches.
        folder: Where the engine works.
        arguments: Of the engine.
        url: The service, as the engine reaches it.
        ident: The id of the run.
        name: Its name.
        labels: Of the run.
        token: Whether the service wants one.
        again: Whether an engine that is lost starts again, if it can resume.
    """
    settings = str(share("deploy", "cromwell", "flowsched-tes.conf"))
    start = Start(program, source, folder, arguments, url, ident, settings)
    env = {**os.environ, "PATH": search_path()}
    made = head(engine, start, name=name, env=env, labels=labels or {}, token=token, again=again)
    return msgspec.json.encode(made)


def version(engine: Engine, path: str) -> str:
    """The version that an engine prints; "" if it prints none."""
    try:
        done = subprocess.run(
            [path, engine.version], capture_output=True, text=True, errors="replace", timeout=_VERSION_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = _NUMBER.search(done.stdout) or _NUMBER.search(done.stderr)
    return "" if found is None else found[0]


def share(*parts: str) -> Path:
    """A file that comes with flowsched: in a checkout beside the package, in a wheel inside it."""
    package = Path(__file__).parent
    found = [base.joinpath(*parts) for base in (package.parent, package / "_share")]
    return next((path for path in found if path.exists()), found[0])
