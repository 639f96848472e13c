"""What Cromwell's config backend does with one call, written from its source (see draft2): no Cromwell can be had here.

It writes the call's script, evaluates and runs the commands of flowsched.conf, looks for the file `rc`, and when it doubts, asks
check-alive. The script is RECONSTRUCTED: the same steps in the same order (StandardAsyncExecutionActor), in words of our own.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.cromwell import draft2
from tests.cromwell.draft2 import Maybe, Value

#: Return codes that Cromwell takes for an abort: the call is never tried again.
ABORTS = (130, 137, 143)
SCRIPT = """#!{shell}
cd {cwd}
tmpDir=$(mktemp -d "$PWD"/tmp.XXXXXX)
export _JAVA_OPTIONS=-Djava.io.tmpdir="$tmpDir"
export TMPDIR="$tmpDir"
outPipe="$tmpDir/out.$$" errPipe="$tmpDir/err.$$"
mkfifo "$outPipe" "$errPipe"
trap 'rm "$outPipe" "$errPipe"' EXIT
tee '{cwd}/stdout' < "$outPipe" &
tee '{cwd}/stderr' < "$errPipe" >&2 &
(
cd {cwd}
{command}
) > "$outPipe" 2> "$errPipe"
echo $? > {cwd}/rc.tmp
(
cd {cwd}
find . -type d -empty -exec touch '{{}}/.file' \\;
)
(
cd {cwd}
{epilogue}
{globs}
)
mv {cwd}/rc.tmp {cwd}/rc
"""
GLOB = """mkdir glob-0
( ln -L {pattern} glob-0 2> /dev/null ) || ( ln {pattern} glob-0 )
ls -1 glob-0 > glob-0.list"""


def judged(execution: Path, *, done: bool, factor: float | None = None) -> str:
    """How Cromwell 93 takes an end, by the files in the call's folder (StandardAsyncExecutionActor.handleExecutionResult).

    Args:
        execution: The call's folder.
        done: Over TES whether the task is COMPLETE; the config backend knows no other end.
        factor: The workflow's option `memory_retry_multiplier`; None = not given.

    Returns:
        "done", "more memory", "aborted", or "failed", which `maxRetries` tries again as it is.
    """
    try:
        code = int((execution / "rc").read_text().strip())
    except (FileNotFoundError, ValueError):
        return "failed"  # `memory_retry_rc` is not looked for
    flag = execution / "memory_retry_rc"
    if code == 0 and done:
        return "done"
    if code != 0 and factor is not None and flag.exists() and int(flag.read_text().strip()) == 0:
        return "more memory"
    return "aborted" if done and code in ABORTS else "failed"


class SubmitFailed(Exception):
    """Cromwell fails the call for good."""


class Service:
    """`flowsched serve` in a process of its own."""

    def __init__(self, root: Path, port: int, *options: str) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._argv = [
            sys.executable,
            "-m",
            "flowsched",
            "serve",
            "--port",
            str(port),
            "--root",
            str(root),
            "--no-token",
            *options,
        ]
        self._log = root.with_suffix(".log")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        for _ in range(2400):
            if self._process.poll() is not None:
                break
            try:
                with urlopen(f"{self.url}/readyz", timeout=20):
                    return
            except OSError:
                time.sleep(0.05)
        raise AssertionError(f"the service did not start:\n{self._log.read_text()[-3000:]}")

    def kill(self) -> None:
        """As a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def get(self, path: str, method: str = "GET") -> Any:
        with urlopen(Request(self.url + path, method=method), timeout=120) as answer:
            return json.load(answer)

    def state(self, job: str) -> str:
        return str(self.get(f"/api/v1/workflows/{job}")["state"])


class Cromwell:
    """A backend's configuration, with a root of its own and the command on the PATH."""

    def __init__(self, conf: Path, folder: Path, url: str, told: str | None = None) -> None:
        self.config = draft2.config(conf)
        self.root = folder / "cromwell-executions"
        self.told = told or str(
            self.root
        )  # what `root` says: another path where the shared folder lies elsewhere here
        programs = folder.parent / "bin"  # not below it: a PATH cannot hold colons
        programs.mkdir(parents=True, exist_ok=True)
        shim = programs / "flowsched"
        shim.write_text(f'#!/bin/bash\nexec {sys.executable} -m flowsched "$@"\n')
        shim.chmod(0o755)
        self.environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "FLOWSCHED_SERVER": url}


class Call:
    """One attempt of one call."""

    def __init__(
        self,
        cromwell: Cromwell,
        command: str,
        *,
        docker: str | None = "ubuntu:24.04",
        path: str = "call-hello",
        glob: str | None = None,
        run: str = "",
        **attributes: Value,
    ) -> None:
        self._cromwell = cromwell
        self.run = run or str(uuid.uuid4())
        below = f"hello/{self.run}/{path}"
        self.cwd = cromwell.root / below
        self.execution = self.cwd / "execution"
        self.execution.mkdir(parents=True)
        told = f"{cromwell.told}/{below}"
        seen = f"{cromwell.config['dockerRoot']}/{below}" if docker else told
        text = SCRIPT.format(
            shell="/bin/bash",
            cwd=f"{seen}/execution",
            command=command,
            epilogue=cromwell.config.get("script-epilogue", "sync"),
            globs=GLOB.format(pattern=glob) if glob else "",
        )
        (self.execution / "script").write_text(text)
        self.values: dict[str, Value] = dict(draft2.declared(cromwell.config["runtime-attributes"]))
        self.values |= {"job_name": f"cromwell_{self.run[:8]}_hello", "cwd": told, "job_shell": "/bin/bash"}
        names = (("script", "script"), ("out", "stdout"), ("err", "stderr"))
        self.values |= {name: f"{told}/execution/{file}" for name, file in names}
        if docker:
            self.values |= {f"docker_{name}": f"{seen}/execution/{file}" for name, file in names}
            self.values |= {"docker": Maybe(docker), "docker_cwd": seen}
            self.values |= {"docker_cid": f"{told}/execution/docker_cid"}
        self.values |= attributes
        self._docker = docker is not None
        self.job = ""

    def submit(self) -> str:
        """Run submit or submit-docker, and take the id out of what it says.

        Raises:
            SubmitFailed: Its exit code was not 0.
        """
        code = self._run("submit-docker" if self._docker else "submit", "submit", self.values)
        if code != 0:
            raise SubmitFailed((self.execution / "stderr.submit").read_text())
        said = (self.execution / "stdout.submit").read_text()
        self.job = draft2.job_id(self._cromwell.config["job-id-regex"], said)
        return self.job

    def alive(self) -> bool:
        """Run check-alive."""
        return self._run("check-alive", "check", {"job_id": self.job, "job_shell": "/bin/bash"}) == 0

    def abort(self) -> None:
        """Write 143 as the return code unless there is one, then run kill or kill-docker."""
        self._write_return_code(143)
        self._run(
            "kill-docker" if self._docker else "kill", "kill", {"job_id": self.job, "job_shell": "/bin/bash"}
        )

    def return_code(self) -> int | None:
        """What the file `rc` holds; None while there is none."""
        try:
            return int((self.execution / "rc").read_text().strip())
        except FileNotFoundError:
            return None

    def wait(self) -> int:
        """Look for `rc` until it is there, as Cromwell does, only more often."""
        for _ in range(4800):
            code = self.return_code()
            if code is not None:
                return code
            time.sleep(0.05)
        raise AssertionError(f"no rc; {sorted(path.name for path in self.execution.iterdir())}")

    def wait_and_ask(self) -> int:
        """As `wait`, with exit-code-timeout-seconds of nearly 0: dead and without `rc` for one more such time means 79."""
        for _ in range(1200):
            if self.return_code() is None and not self.alive():
                time.sleep(0.5)
                self._write_return_code(79)
            code = self.return_code()
            if code is not None:
                return code
            time.sleep(0.1)
        raise AssertionError("no rc, and alive for ever")

    def file(self, name: str) -> str:
        """What a file of the call holds."""
        return (self.execution / name).read_text()

    def _write_return_code(self, code: int) -> None:
        draft = self.execution / "rc.kill"
        draft.write_text(f"{code}\n")
        with contextlib.suppress(FileExistsError):
            os.link(draft, self.execution / "rc")  # as a move that replaces nothing
        draft.unlink()

    def _run(self, key: str, suffix: str, values: Mapping[str, Value]) -> int:
        script = self.execution / f"script.{suffix}"
        script.write_text(draft2.script(self._cromwell.config[key], values), encoding="utf-8")
        with (
            (self.execution / f"stdout.{suffix}").open("wb") as out,
            (self.execution / f"stderr.{suffix}").open("wb") as err,
        ):
            return subprocess.run(
                ["/bin/bash", str(script)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self._cromwell.environment,
                timeout=400,
                check=False,
            ).returncode
