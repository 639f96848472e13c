"""`flowsched cromwell`: what Cromwell's config backend calls for each job, in place of qsub, qstat and qdel.

Cromwell starts one of these for every job, so next to nothing is loaded before it is needed: no typer, no aiohttp, no asyncio, and
of the standard library no argparse, json or re, which together take twice as long as Python takes to start.
Exit codes of `submit` and `kill`: 0 done, 2 what was asked is wrong, 3 the service could not be reached in time. `alive` says
1 only where the job is known to be over, since Cromwell takes anything but 0 for a dead job.
"""

from __future__ import annotations

import os
import sys
import time

from flowsched import tokens
from flowsched.cli import cromwell_job as jobs
from flowsched.client.plain import Answer, Unreachable, ask, wrong_url

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence
    from typing import Any, Final

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
_HEXADECIMAL: Final = frozenset(b"0123456789abcdefABCDEF")
#: Of an id and a key.
_PLAIN: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.~")
#: Options that take a text, by the name in `Arguments`: (default, metavar, help). A default in a list: the option is repeatable.
_SERVER: Final[dict[str, tuple[Any, str | None, str]]] = {
    "server": (None, "URL", f"[FLOWSCHED_SERVER, else {tokens.DEFAULT_URL}]"),
    "token": (None, None, "[FLOWSCHED_TOKEN]"),
}
_SUBMIT: Final[dict[str, tuple[Any, str | None, str]]] = {
    "name": (None, None, "Its name for people."),
    "cwd": (None, "DIR", "The call's folder; says of which run and call the job is."),
    "script": (None, "FILE", "The script, as the container sees it."),
    "shell": ("/bin/bash", "FILE", "[%(default)s]"),
    "docker_cwd": (None, "PATH", "Where the container sees --cwd. [the same path]"),
    "mount": ([], "DIR:PATH", "A further folder. Repeatable."),
    "image": (None, None, "[the cluster's default]"),
    "cpu": (None, "N", ""),
    "memory_mb": (None, "N", "In MiB, as Cromwell counts."),
    "disk_gb": (None, "N", ""),
    "gpu": (None, "N", ""),
    "gpu_type": (None, "TEXT", "The node's label nvidia.com/gpu.product."),
    "queue": (None, None, ""),
    "priority": (None, "N", ""),
    "timeout_minutes": (None, "N", "End it after so long."),
    "runtime_minutes": (None, "N", "How long it will take; helps to plan."),
    "rc_file": (None, "FILE", "Gets 79 if the job ends and no program wrote it."),
    "stdout": (None, "FILE", "Append what the script says to it. [the task's log]"),
    "stderr": (None, "FILE", ""),
    "env": ([], "NAME=VALUE", "Repeatable."),
    "idempotency_key": (None, "KEY", "[of the folder and the script]"),
}
_ALIVE: Final[dict[str, tuple[Any, str | None, str]]] = {
    "rc_file": (None, "FILE", "Gets 143 (cancelled) or 79 if the job is over and no program wrote it.")
}
_REQUIRED: Final = ("name", "cwd", "script")
_RETRY_FOR_S: Final = {"submit": 600.0, "kill": 60.0}


def main(argv: Sequence[str], server: str | None = None, token: str | None = None) -> int:
    """Run `flowsched cromwell …` with what stands behind these two words; returns the exit code.

    Args:
        argv: The command and its options.
        server: Its URL, unless `argv` names one.
        token: The server's token, unless `argv` has one.
    """
    arguments = _parsed(argv) or _parser().parse_args(argv, Arguments())
    try:
        if arguments.encoded:
            _decode(arguments)
        server = arguments.server or server or tokens.default_url()
        wrong = wrong_url(server)
        if wrong is not None:
            raise jobs.Wrong(f"--server: {wrong}")
        headers = _Headers(arguments.token or token or os.environ.get("FLOWSCHED_TOKEN"), server)
        commands: dict[str, Callable[[Arguments, str, _Headers], int]] = {
            "submit": _submit,
            "alive": _alive,
            "kill": _kill,
        }
        return commands[arguments.command](arguments, server.rstrip("/"), headers)
    except jobs.Wrong as wrong_option:
        echo(f"error: {wrong_option}")
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED


def _submit(arguments: Arguments, server: str, headers: _Headers) -> int:
    """Hand in a job, as often as it takes: Cromwell never tries a submission that failed again."""
    job = _job(arguments)
    key = arguments.idempotency_key or jobs.idempotency_key(job)
    if not (key.isascii() and key.isprintable() and key == key.strip() and 1 <= len(key) <= 255):
        raise jobs.Wrong(f"--idempotency-key: found {key!r}, expected 1 to 255 printable ASCII characters")
    body = _json_text(jobs.document(job)).encode()
    sent = {"Content-Type": "application/json", "Idempotency-Key": key}
    answer = _persist(
        lambda: ask("POST", server + _WORKFLOWS, body=body, headers={**headers.now(), **sent}),
        arguments.retry_for,
        "submit",
    )
    if answer is None:
        return UNREACHABLE
    if answer.status >= 300:
        echo(f"error: the job was refused: {_problem(answer)}")
        return WRONG
    found = _id_of(answer)
    if not isinstance(found, str) or not found:
        echo(f"error: {server} is no flowsched: found {answer.content[:80]!r}, expected an id")
        return WRONG
    print(f"flowsched-job {found}", flush=True)
    return DONE


def _alive(arguments: Arguments, server: str, headers: _Headers) -> int:
    """0 unless the job is known to have ended, or known to be unknown: a dead answer costs Cromwell the call."""
    url = f"{server}{_WORKFLOWS}/{_quoted(arguments.id)}"
    why = ""
    for attempt in range(1, ALIVE_TRIES + 1):
        try:
            answer = ask("GET", url, headers=headers.now(), timeout_s=ALIVE_TIMEOUT_S)
        except Unreachable as error:
            why = str(error)
        else:
            body = _read(answer)
            state = body.get("state")
            if answer.status == 200 and isinstance(state, str):
                echo(f"{state}: {body['reason']}" if body.get("reason") else state)
                return _over(arguments, state) if state in _ENDED else DONE
            if answer.status == 404 and _read(answer).get("status") == 404:
                echo("there is no such job")
                return _over(arguments, "")
            why = _problem(answer)
            if answer.status < 500:
                break
        if attempt < ALIVE_TRIES:
            time.sleep(FIRST_WAIT_S)
    echo(f"taken for alive, since nothing is known: {why}")
    return DONE


def _over(arguments: Arguments, state: str) -> int:
    """Write the return code of a job that is over, unless there is one: Cromwell would wait for it as long again.

    A name is linked to it once it is whole. Where that cannot be, Cromwell writes 79 itself.
    """
    if arguments.rc_file:
        from contextlib import suppress

        draft = f"{arguments.rc_file}.{os.urandom(8).hex()}"  # other accounts may write to the folder
        with suppress(OSError):
            with open(draft, "x") as file:
                file.write(jobs.ABORTED if state == "CANCELLED" else jobs.ABANDONED)
            with suppress(FileExistsError):
                os.link(draft, arguments.rc_file)
            os.unlink(draft)
    return OVER


def _kill(arguments: Arguments, server: str, headers: _Headers) -> int:
    """Cancel a job. One that has ended, or was never there, needs no killing."""
    url = f"{server}{_WORKFLOWS}/{_quoted(arguments.id)}/cancel"
    answer = _persist(lambda: ask("POST", url, headers=headers.now()), arguments.retry_for, "kill")
    if answer is None:
        return UNREACHABLE
    if answer.status < 300 or answer.status in (404, 409):
        return DONE
    echo(f"error: {_problem(answer)}")
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
        import random

        pause = max(min(asked_wait_s, LONGEST_WAIT_S), random.uniform(wait_s / 2, wait_s))
        if time.monotonic() - started + pause > retry_for_s:
            echo(
                f"error: gave up to {what} after {time.monotonic() - started:.0f} s: {why}; is `flowsched serve` running?"
            )
            return None
        echo(f"will try again in {pause:.1f} s: {why}")
        time.sleep(pause)
        wait_s = min(LONGEST_WAIT_S, wait_s * 2)


def _job(arguments: Arguments) -> jobs.Job:
    mounts = (
        [jobs.Mounted(arguments.cwd, arguments.docker_cwd or arguments.cwd)]
        if arguments.docker_cwd or not arguments.mount
        else []
    )
    mounts += [_mount(text) for text in arguments.mount]
    asked = {name: value for name, value in vars(arguments).items() if name in jobs.Job.__annotations__}
    asked |= {"mounts": mounts, "env": [_variable(text) for text in arguments.env]}
    return jobs.Job(**asked | {"priority": _whole("--priority", arguments.priority)})


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
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 10):
        raise jobs.Wrong(f"{option}: found {text!r}, expected a whole number")
    return int(text)


def _decode(arguments: Arguments) -> None:
    """Replace each %XX by its byte, in everything that was given as text."""
    for name, value in vars(arguments).items():
        if isinstance(value, str) and name != "command":
            setattr(arguments, name, _decoded(name, value))
        elif isinstance(value, list):
            setattr(arguments, name, [_decoded(name, text) for text in value])


def _decoded(name: str, text: str) -> str:
    first, *rest = os.fsencode(text).split(b"%")
    for piece in rest:
        if len(piece) < 2 or not _HEXADECIMAL.issuperset(piece[:2]) or piece[:2] == b"00":
            option = "--" + name.replace("_", "-")
            raise jobs.Wrong(f"{option}: found {text!r}, expected %XX behind every %, and no %00")
    return os.fsdecode(first + b"".join(bytes.fromhex(piece[:2].decode()) + piece[2:] for piece in rest))


def _quoted(ident: str) -> str:
    """An id as one part of a path."""
    if _PLAIN.issuperset(ident):
        return ident
    from urllib.parse import quote

    return quote(ident, safe="")


def _json_text(value: Any) -> str:
    """The JSON of texts, numbers, lists and dicts, as `json.dumps` writes it."""
    if isinstance(value, str):
        try:
            from _json import encode_basestring_ascii as encoded
        except ImportError:  # another Python than CPython
            from json.encoder import py_encode_basestring_ascii as encoded
        return str(encoded(value))
    if isinstance(value, dict):
        return (
            "{" + ", ".join([f"{_json_text(key)}: {_json_text(each)}" for key, each in value.items()]) + "}"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_json_text, value)) + "]"
    return repr(value)


def _id_of(answer: Answer) -> Any:
    """The id in the answer to a submission, with which the service begins it."""
    ident = answer.content.removeprefix(b'{"id":"').partition(b'"')[0].decode("utf-8", "replace")
    if answer.content.startswith(b'{"id":"') and ident and _PLAIN.issuperset(ident):
        return ident
    return _read(answer).get("id")


class _Headers:
    """The headers of each request. Without a token in the options it looks for one each time: the service may come up meanwhile."""

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
    import json

    try:
        found = json.loads(answer.content)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _problem(answer: Answer) -> str:
    """The server's error, with every fault of the document."""
    found = _read(answer)
    text = f"{answer.status} {found.get('detail') or found.get('title') or answer.content[:200].decode('utf-8', 'replace')}"
    faults = found.get("faults")
    for fault in faults[:20] if isinstance(faults, list) else ():
        if isinstance(fault, dict):
            text += f"\n  {fault.get('path')}: found {fault.get('found')}, expected {fault.get('expected')}"
    return text


def echo(text: str) -> None:
    """A line on stderr, harmless for terminals: standard output is for the id alone."""
    from flowsched.cli.printing import terminal_text

    print(terminal_text.block(text), file=sys.stderr, flush=True)


class Arguments:
    """The options by their names, with _ for -."""

    command: str
    id: str
    encoded: bool
    retry_for: float

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def _options(command: str) -> dict[str, tuple[Any, str | None, str]]:
    return {**{"submit": _SUBMIT, "alive": _ALIVE}.get(command, {}), **_SERVER}


def _parsed(argv: Sequence[str]) -> Arguments | None:
    """The options, where they are given as `flowsched.conf` gives them. For all else, such as --help, there is `_parser`."""
    command, words = argv[0] if argv else "", list(argv[1:])
    if command not in ("submit", "alive", "kill"):
        return None
    options = _options(command)
    found: dict[str, Any] = {name: default for name, (default, _, _) in options.items()}
    found |= {"command": command, "encoded": False, "retry_for": str(_RETRY_FOR_S.get(command, 0))}
    while words:
        word = words.pop(0)
        option, equals, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if word == "--encoded":
            found["encoded"] = True
            continue
        if not word.startswith("-") and command != "submit" and "id" not in found:
            found["id"] = word
            continue
        if not option.startswith("--") or "_" in option or not (name in options or name in found):
            return None
        if name in ("command", "encoded", "id") or (name == "retry_for" and command not in _RETRY_FOR_S):
            return None
        if not equals:
            if not words or words[0].startswith("-"):
                return None
            value = words.pop(0)
        found[name] = [*found[name], value] if isinstance(found[name], list) else value
    if any(found[name] is None for name in _REQUIRED if command == "submit") or (
        command != "submit" and "id" not in found
    ):
        return None
    try:
        found["retry_for"] = float(found["retry_for"])
    except ValueError:
        return None
    arguments = Arguments()
    vars(arguments).update(found)
    return arguments


def _parser() -> argparse.ArgumentParser:
    import argparse

    parser = argparse.ArgumentParser(
        prog="flowsched cromwell",
        allow_abbrev=False,
        description="The commands that Cromwell's config backend calls for each job; see docs/cromwell.md.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="submit|alive|kill")
    for command, what in (
        ("submit", "Hand in a script; prints `flowsched-job ID`."),
        ("alive", "Exit code 1 only if the job is over."),
        ("kill", "Cancel a job; one that is over is well, too."),
    ):
        added = commands.add_parser(command, allow_abbrev=False, help=what)
        if command != "submit":
            added.add_argument("id", metavar="ID")
        for name, (default, metavar, about) in _options(command).items():
            added.add_argument(
                "--" + name.replace("_", "-"),
                default=default,
                metavar=metavar,
                help=about or None,
                required=name in _REQUIRED,
                action="append" if isinstance(default, list) else "store",
            )
        if command in _RETRY_FOR_S:
            added.add_argument(
                "--retry-for",
                type=float,
                default=_RETRY_FOR_S[command],
                metavar="S",
                help="Seconds to wait for the service. [%(default)g]",
            )
        added.add_argument(
            "--encoded", action="store_true", help="Options hold %%XX for bytes, as flowsched.conf writes."
        )
    return parser
