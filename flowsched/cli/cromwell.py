"""`flowsched cromwell`: what Cromwell's config backend calls for each job, in place of qsub, qstat and qdel.

Cromwell starts one of these for every job, so nothing heavy is imported: no typer, no aiohttp, no asyncio.
Exit codes of `submit` and `kill`: 0 done, 2 what was asked is wrong, 3 the service could not be reached in time. `alive` says
1 only where the job is known to be over, since Cromwell takes anything but 0 for a dead job.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

from flowsched import tokens
from flowsched.cli import cromwell_job as jobs
from flowsched.cli.printing import terminal_text
from flowsched.client.plain import Answer, Unreachable, ask, wrong_url

DEFAULT_URL: Final = "http://127.0.0.1:8470"
DONE: Final = 0
OVER: Final = 1
WRONG: Final = 2
UNREACHABLE: Final = 3
INTERRUPTED: Final = 130

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 15.0
#: `alive` asks so often and so long: Cromwell waits for the answer, and asks again after its own timeout.
ALIVE_TRIES: Final = 2
ALIVE_TIMEOUT_S: Final = 10.0

_ENDED: Final = ("SUCCEEDED", "FAILED", "CANCELLED", "SKIPPED")
_WORKFLOWS: Final = "/api/v1/workflows"
_ENCODED: Final = re.compile(rb"%([0-9A-Fa-f]{2})?")


def main(argv: Sequence[str], server: str | None = None, token: str | None = None) -> int:
    """Run `flowsched cromwell …` with what stands behind these two words; returns the exit code.

    Args:
        argv: The command and its options.
        server: Its URL, unless `argv` names one.
        token: The server's token, unless `argv` has one.
    """
    given = _parser().parse_args(argv)
    try:
        if given.encoded:
            _decode(given)
        server = given.server or server or os.environ.get("FLOWSCHED_SERVER") or DEFAULT_URL
        wrong = wrong_url(server)
        if wrong is not None:
            raise jobs.Wrong(f"--server: {wrong}")
        headers = _Headers(given.token or token or os.environ.get("FLOWSCHED_TOKEN"), server)
        commands: dict[str, Callable[[argparse.Namespace, str, _Headers], int]] = {
            "submit": _submit,
            "alive": _alive,
            "kill": _kill,
        }
        return commands[given.command](given, server.rstrip("/"), headers)
    except jobs.Wrong as wrong_option:
        say(f"error: {wrong_option}")
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED


def _submit(given: argparse.Namespace, server: str, headers: _Headers) -> int:
    """Hand in a job, as often as it takes: Cromwell never tries a submission that failed again."""
    job = _job(given)
    key = given.idempotency_key or jobs.idempotency_key(job)
    if not re.fullmatch(r"[!-~]([ -~]{0,253}[!-~])?", key):
        raise jobs.Wrong(f"--idempotency-key: found {key!r}, expected 1 to 255 printable ASCII characters")
    body = json.dumps(jobs.document(job)).encode()
    sent = {"Content-Type": "application/json", "Idempotency-Key": key}
    answer = _persist(
        lambda: ask("POST", server + _WORKFLOWS, body=body, headers={**headers.now(), **sent}),
        given.retry_for,
        "submit",
    )
    if answer is None:
        return UNREACHABLE
    if answer.status >= 300:
        say(f"error: the job was refused: {_problem(answer)}")
        return WRONG
    found = _read(answer).get("id")
    if not isinstance(found, str) or not found:
        say(f"error: {server} is no flowsched: found {answer.content[:80]!r}, expected an id")
        return WRONG
    print(f"flowsched-job {found}", flush=True)
    return DONE


def _alive(given: argparse.Namespace, server: str, headers: _Headers) -> int:
    """0 unless the job is known to have ended, or known to be unknown: a dead answer costs Cromwell the call."""
    url = f"{server}{_WORKFLOWS}/{quote(given.id, safe='')}"
    why = ""
    for attempt in range(1, ALIVE_TRIES + 1):
        try:
            answer = ask("GET", url, headers=headers.now(), timeout_s=ALIVE_TIMEOUT_S)
        except Unreachable as error:
            why = str(error)
        else:
            state = _read(answer).get("state")
            if answer.status == 200 and isinstance(state, str):
                say(state)
                return OVER if state in _ENDED else DONE
            if answer.status == 404 and _read(answer).get("status") == 404:
                say("there is no such job")
                return OVER
            why = _problem(answer)
            if answer.status < 500:
                break
        if attempt < ALIVE_TRIES:
            time.sleep(FIRST_WAIT_S)
    say(f"taken for alive, since nothing is known: {why}")
    return DONE


def _kill(given: argparse.Namespace, server: str, headers: _Headers) -> int:
    """Cancel a job. One that has ended, or was never there, needs no killing."""
    url = f"{server}{_WORKFLOWS}/{quote(given.id, safe='')}/cancel"
    answer = _persist(lambda: ask("POST", url, headers=headers.now()), given.retry_for, "kill")
    if answer is None:
        return UNREACHABLE
    if answer.status < 300 or answer.status in (404, 409):
        return DONE
    say(f"error: {_problem(answer)}")
    return WRONG


def _persist(request: Callable[[], Answer], retry_for_s: float, what: str) -> Answer | None:
    """Ask until the server gives a final answer: 5xx, 429 and silence are tried again. None once the time is up."""
    started = time.monotonic()
    wait_s = FIRST_WAIT_S
    while True:
        asked_wait_s = 0.0
        try:
            answer = request()
            if answer.status < 500 and answer.status != 429:
                return answer
            why, asked_wait_s = _problem(answer), answer.retry_after_s
        except Unreachable as error:
            why = str(error)
        pause = max(min(asked_wait_s, LONGEST_WAIT_S), random.uniform(wait_s / 2, wait_s))
        if time.monotonic() - started + pause > retry_for_s:
            say(
                f"error: gave up to {what} after {time.monotonic() - started:.0f} s: {why}; is `flowsched serve` running?"
            )
            return None
        say(f"will try again in {pause:.1f} s: {why}")
        time.sleep(pause)
        wait_s = min(LONGEST_WAIT_S, wait_s * 2)


def _job(given: argparse.Namespace) -> jobs.Job:
    mounts = (
        [jobs.Mounted(given.cwd, given.docker_cwd or given.cwd)]
        if given.docker_cwd or not given.mount
        else []
    )
    mounts += [_mount(text) for text in given.mount]
    return jobs.Job(
        name=given.name,
        cwd=given.cwd,
        script=given.script,
        mounts=mounts,
        shell=given.shell,
        image=given.image,
        cpu=given.cpu,
        memory_mb=given.memory_mb,
        disk_gb=given.disk_gb,
        gpu=given.gpu,
        gpu_type=given.gpu_type,
        queue=given.queue,
        priority=_whole("--priority", given.priority),
        timeout_minutes=given.timeout_minutes,
        runtime_minutes=given.runtime_minutes,
        stdout=given.stdout,
        stderr=given.stderr,
        rc_file=given.rc_file,
        env=[_variable(text) for text in given.env],
    )


def _mount(text: str) -> jobs.Mounted:
    """`SOURCE:PATH`, divided at the last colon before a slash: a source may hold colons."""
    source, colon, path = text.rpartition(":/")
    if not colon or not source.startswith("/"):
        raise jobs.Wrong(f"--mount: found {text!r}, expected /FOLDER:/PATH")
    return jobs.Mounted(source, "/" + path)


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise jobs.Wrong(f"--env: found {text!r}, expected NAME=VALUE")
    return name, value


def _whole(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,10}", text):
        raise jobs.Wrong(f"{option}: found {text!r}, expected a whole number")
    return int(text)


def _decode(given: argparse.Namespace) -> None:
    """Replace each %XX by its byte, in everything that was given as text."""
    for name, value in vars(given).items():
        if isinstance(value, str) and name != "command":
            setattr(given, name, _decoded(name, value))
        elif isinstance(value, list):
            setattr(given, name, [_decoded(name, text) for text in value])


def _decoded(name: str, text: str) -> str:
    def byte(found: re.Match[bytes]) -> bytes:
        if found[1] is None or found[1] == b"00":
            option = "--" + name.replace("_", "-")
            raise jobs.Wrong(f"{option}: found {text!r}, expected %XX behind every %, and no %00")
        return bytes([int(found[1], 16)])

    return os.fsdecode(_ENCODED.sub(byte, os.fsencode(text)))


class _Headers:
    """What is sent with each request. A token that is not given is looked for each time: the service may come up meanwhile."""

    def __init__(self, token: str | None, server: str) -> None:
        if token and not (token.isascii() and token.isprintable()):
            raise jobs.Wrong("--token (or FLOWSCHED_TOKEN): expected printable ASCII")
        self._token, self._server = token, server

    def now(self) -> dict[str, str]:
        """The headers of the next request."""
        from flowsched.version import VERSION

        token = self._token or tokens.found(self._server)
        sent = {"User-Agent": f"flowsched/{VERSION} cromwell"}
        return sent | ({"Authorization": f"Bearer {token}"} if token else {})


def _read(answer: Answer) -> dict[str, Any]:
    try:
        found = json.loads(answer.content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _problem(answer: Answer) -> str:
    """What the server says is wrong, with every fault of the document."""
    found = _read(answer)
    text = f"{answer.status} {found.get('detail') or found.get('title') or answer.content[:200].decode('utf-8', 'replace')}"
    faults = found.get("faults")
    for fault in faults[:20] if isinstance(faults, list) else ():
        if isinstance(fault, dict):
            text += f"\n  {fault.get('path')}: found {fault.get('found')}, expected {fault.get('expected')}"
    return text


def say(text: str) -> None:
    """A line on stderr, harmless for terminals: standard output is for the id alone."""
    print(terminal_text.block(text), file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flowsched cromwell",
        allow_abbrev=False,
        description="What Cromwell's config backend calls for each job; see docs/cromwell.md.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="submit|alive|kill")
    submit = commands.add_parser(
        "submit", allow_abbrev=False, help="Hand in a script; prints `flowsched-job ID`."
    )
    _submit_options(submit)
    alive = commands.add_parser("alive", allow_abbrev=False, help="Exit code 1 only if the job is over.")
    kill = commands.add_parser(
        "kill", allow_abbrev=False, help="Cancel a job; one that is over is well, too."
    )
    for command in (alive, kill):
        command.add_argument("id", metavar="ID")
    for command, retry_for in ((submit, 600.0), (kill, 60.0)):
        command.add_argument(
            "--retry-for",
            type=float,
            default=retry_for,
            metavar="S",
            help="Seconds to wait for the service. [%(default)g]",
        )
    for command in (submit, alive, kill):
        command.add_argument(
            "--encoded", action="store_true", help="Options hold %%XX for bytes, as flowsched.conf writes."
        )
        command.add_argument("--server", metavar="URL", help=f"[FLOWSCHED_SERVER, else {DEFAULT_URL}]")
        command.add_argument("--token", help="[FLOWSCHED_TOKEN]")
    return parser


def _submit_options(submit: argparse.ArgumentParser) -> None:
    add = submit.add_argument
    add("--name", required=True, help="What people call it.")
    add(
        "--cwd",
        required=True,
        metavar="DIR",
        help="The call's folder; says of which run and call the job is.",
    )
    add("--script", required=True, metavar="FILE", help="The script, as the container sees it.")
    add("--shell", default="/bin/bash", metavar="FILE", help="[%(default)s]")
    add("--docker-cwd", metavar="PATH", help="Where the container sees --cwd. [the same path]")
    add("--mount", action="append", default=[], metavar="DIR:PATH", help="A further folder. Repeatable.")
    add("--image", help="[the cluster's default]")
    add("--cpu", metavar="N")
    add("--memory-mb", metavar="N", help="In MiB, as Cromwell counts.")
    add("--disk-gb", metavar="N")
    add("--gpu", metavar="N")
    add("--gpu-type", metavar="TEXT", help="The node's label nvidia.com/gpu.product.")
    add("--queue")
    add("--priority", metavar="N")
    add("--timeout-minutes", metavar="N", help="End it after so long.")
    add("--runtime-minutes", metavar="N", help="How long it will take; helps to plan.")
    add("--rc-file", metavar="FILE", help="Gets 79 if the job ends and nobody wrote it.")
    add("--stdout", metavar="FILE", help="Append what the script says to it. [the task's log]")
    add("--stderr", metavar="FILE")
    add("--env", action="append", default=[], metavar="NAME=VALUE", help="Repeatable.")
    add("--idempotency-key", metavar="KEY", help="[of the folder and the script]")
