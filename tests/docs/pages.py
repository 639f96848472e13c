"""Reads the fenced blocks of a page and runs them as a reader would: from an empty folder, in one shell, in their order.

- A block with `title="NAME"` is written to the file NAME. Writing a file again is how a page changes it.
- `sh` blocks are typed into bash, one after the other; the first that fails ends the page.
- A `text` block right after a `sh` block is what the reader sees: each of its lines stands in the output, in this order.
  `…` stands for any text.
- `<!-- not run: REASON -->` above a `sh` block: this block is not run.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests import forks
from tests.programs import free_ports

ROOT: Final = Path(__file__).parents[2]
_FENCE: Final = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_NOT_RUN: Final = re.compile(r"<!-- not run: (.+?) -->\s*\Z", re.DOTALL)
_MARK: Final = "::: block "


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block.

    Attributes:
        line: Where it begins in its page, from 1.
        language: What stands after the fence.
        title: The file that it is; "" = none.
        text: Without the fences.
        not_run: Why it is not run; "" = it is.
        shown: Lines that its output has.
    """

    line: int
    language: str
    title: str
    text: str
    not_run: str = ""
    shown: tuple[str, ...] = ()


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in their order."""
    text = page.read_text(encoding="utf-8")
    found: list[Block] = []
    end = 0
    for match in _FENCE.finditer(text):
        between = text[end : match.start()]
        end = match.end()
        body = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
        if match["language"] == "text" and found and found[-1].language == "sh" and not between.strip():
            last = found.pop()
            shown = tuple(line for line in body.splitlines() if line.strip())
            found.append(Block(last.line, "sh", "", last.text, last.not_run, shown))
            continue
        why = _NOT_RUN.search(between)
        line = text.count("\n", 0, match.start()) + 1
        reason = " ".join(why[1].split()) if why else ""
        found.append(Block(line, match["language"], match["title"] or "", body, reason))
    return found


class PageFailed(AssertionError):
    """A block of a page does not do what the page says; the message names the line."""


class Reader:
    """Somebody at a shell, with flowsched installed, who follows a page.

    Args:
        folder: Where the reader begins; the shell's HOME is in it, too.
        links: Names in that folder -> files or folders of the repository that a clone has there.
        environment: Further variables.
        replaced: Texts of the page -> what is typed instead, such as an image that this machine has.
        programs: Folders of further programs, before all others but `flowsched`.
    """

    def __init__(
        self,
        folder: Path,
        links: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        replaced: Mapping[str, str] | None = None,
        programs: Sequence[Path] = (),
    ) -> None:
        self.folder = folder / "here"
        self.home = folder / "home"
        self.folder.mkdir()
        self.home.mkdir()
        (self.port,) = free_ports(1)
        self.replaced = {"8470:8470": f"{self.port}:8470", ":8470": f":{self.port}", **(replaced or {})}
        longest_first = sorted(self.replaced, key=len, reverse=True)
        self._replaced = re.compile("|".join(map(re.escape, longest_first)))
        for name in links:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).symlink_to(ROOT / name)
        ours = folder / "bin"
        ours.mkdir()
        self._command(ours / "flowsched")
        path = ":".join(map(str, [ours, *programs, Path(sys.executable).parent, os.environ["PATH"]]))
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FLOWSCHED_", "MINIWDL_"))
        }
        self.environment = {
            **kept, "PATH": path, "HOME": str(self.home), "PYTHONPATH": str(ROOT), "COLUMNS": "80",
            "XDG_STATE_HOME": str(self.home / "state"), "XDG_DATA_HOME": str(self.home / "data"),
            "FLOWSCHED_SERVER": f"http://127.0.0.1:{self.port}", **(environment or {}),
        }  # fmt: skip

    def follow(
        self, page: Path, timeout_s: float = 240, chosen: Callable[[Block], bool] | None = None
    ) -> None:
        """Write the files of a page and run its commands.

        Args:
            page: A page of Markdown.
            timeout_s: For all of it.
            chosen: Which blocks; None = all that have a title, and `sh` blocks that are not said to be not run.

        Raises:
            PageFailed: A block failed, or its output is not what the page shows.
        """
        wanted = chosen or (lambda block: bool(block.title) or (block.language == "sh" and not block.not_run))
        todo = [block for block in blocks(page) if wanted(block)]
        assert any(each.language == "sh" for each in todo), f"{page.name} has no command to run"
        done, output = self._typed(self._script(todo), timeout_s)
        said = re.split(rf"^{_MARK}(\d+)\n", output, flags=re.MULTILINE)
        outputs = {int(number): text for number, text in zip(said[1::2], said[2::2], strict=True)}
        at = max(outputs, default=0)
        if done != 0:
            raise PageFailed(
                f"{page.name}:{todo[at].line}: exit code {done}\n{todo[at].text}\n{outputs.get(at, output)[-4000:]}"
            )
        for number, block in enumerate(todo):
            self._compare(page, block, outputs.get(number, ""))

    def _command(self, path: Path) -> None:
        """A `flowsched` that runs this checkout; a service takes the port of this reader, and `run` no service."""
        program = path.with_name("flowsched-of-tests")
        forks.command(program)
        path.write_text(
            f"""#!/bin/bash
case "$1" in
serve) shift; exec {program} serve --port {self.port} "$@" ;;
run|demo|simulate|plan) unset FLOWSCHED_SERVER ;;
esac
exec {program} "$@"
"""
        )
        path.chmod(0o755)

    def _script(self, todo: Sequence[Block]) -> str:
        """One script; a service that it starts is ready before the next line."""
        lines = ["set -eo pipefail", "exec 2>&1"]
        ready = f"until curl -sf -o /dev/null http://127.0.0.1:{self.port}/readyz; do sleep 0.2; done"
        for number, block in enumerate(todo):
            lines.append(f"echo; echo '{_MARK}{number}'")
            text = self._replaced.sub(lambda found: self.replaced[found[0]], block.text)
            if block.title:
                mark = f"END_OF_FILE_{number}"
                lines += [f"cat > '{block.title}' <<'{mark}'", text.rstrip("\n"), mark]
                continue
            lines.append(
                re.sub(r"^(flowsched serve.*&[ \t]*(?:#.*)?)$", rf"\1\n{ready}", text, flags=re.MULTILINE)
            )
        return "\n".join(lines) + "\n"

    def _typed(self, script: str, timeout_s: float) -> tuple[int, str]:
        """Exit code and output of the script; whatever it left running ends."""
        log = self.home / "output"
        with log.open("wb") as out:
            shell = subprocess.Popen(
                ["/bin/bash", "-c", script], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
            try:
                code = shell.wait(timeout_s)
            except subprocess.TimeoutExpired:
                code = 124
            finally:
                _end(shell)
        return code, log.read_text(encoding="utf-8", errors="replace")

    def _compare(self, page: Path, block: Block, output: str) -> None:
        """The lines that the page shows stand in the output, in their order."""
        rest = [re.sub(r"\s+", " ", line).strip() for line in output.splitlines()]
        for line in block.shown:
            parts = re.sub(r"\s+", " ", line).strip().split("…")
            pattern = re.compile(".*".join(re.escape(part) for part in parts))
            for at, seen in enumerate(rest):
                if pattern.fullmatch(seen):
                    rest = rest[at + 1 :]
                    break
            else:
                raise PageFailed(f"{page.name}:{block.line}: no line {line!r} in\n{output}")


def _end(shell: subprocess.Popen[bytes]) -> None:
    """End the shell and all that it left running: SIGTERM, and SIGKILL after ten seconds."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(shell.pid, signal.SIGTERM)
        end = time.monotonic() + 10
        while time.monotonic() < end:
            shell.poll()
            os.killpg(shell.pid, 0)
            time.sleep(0.05)
        os.killpg(shell.pid, signal.SIGKILL)
    shell.wait()
