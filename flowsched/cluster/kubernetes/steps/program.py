"""The steps that run in a task's pod beside it: `flowsched pod stage-in`, `stage-out` and `ready`. Standard library only.

They ask the node's agent for what they cannot do themselves, and tell how it ended by their exit code and by a line of JSON
in their termination message, which is all that is left of them.

    stage-in   before the task: its inputs are laid out in its volumes
    stage-out  idles beside the task; SIGTERM says that the task has ended: its outputs are published
    ready      waits until stage-out would notice a SIGTERM: the first process of a container is not sent one before, the
               kernel drops it, and outputs of a task that ends at once would never be published

Stage-in without an agent imports its own modules late: each of these processes starts once or twice per task.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from flowsched.cluster.kubernetes.exit_codes import (
    BAD_ORDER,
    DONE,
    INPUT_LOST,
    NOT_LAID,
    NOT_READY,
    UNREACHABLE,
)

#: How long an agent may be silent. A task's outputs are worth a longer wait than its start.
_START_PATIENCE_S: Final = 60.0
_END_PATIENCE_S: Final = 600.0
#: Stage-out waits at most so long for the agent's copies of delivered files, also while the agent works on them.
_COPY_PATIENCE_S: Final = 10.0
#: So many fields of a delivered file are in the termination message; the rest is for the agent.
_REPORTED: Final = 4
_READY_S: Final = 30.0
#: A connection is made within so long, and an answer begins within so long; the agent answers each 20 s, if only to say
#: that it is still at it.
_CONNECT_S: Final = 5.0
_ANSWER_S: Final = 60.0
#: The kernel asks a silent agent for signs of life after 20 s, then each 10 s. After 6 without an answer the connection is lost.
_KEEPALIVE: Final = (
    {socket.TCP_KEEPIDLE: 20, socket.TCP_KEEPINTVL: 10, socket.TCP_KEEPCNT: 6}
    if sys.platform == "linux"
    else {}
)
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
#: The longest termination message that a kubelet accepts, if the pod has no more than three containers.
_MESSAGE_BYTES: Final = 4096
#: The message has the last so many characters of each of a step's files, where there is room.
TAIL_BYTES: Final = 10 << 10
#: Answers after which asking again is no use.
_FINAL: Final = frozenset({200, 400, 401, 403, 409, 413, 501})

Env = Mapping[str, str]
Answer = tuple[int, dict[str, Any]]


def main(arguments: Sequence[str]) -> int:
    """Run one step; returns its exit code."""
    steps: dict[str, Callable[[Env], int]] = {"stage-in": stage_in, "stage-out": stage_out, "ready": ready}
    if len(arguments) != 1 or arguments[0] not in steps:
        print(f"usage: flowsched pod {'|'.join(steps)}", file=sys.stderr)
        return 2
    os.umask(0o002)  # the group of a shared volume may write to the folders that are made there
    return steps[arguments[0]](os.environ)


def stage_in(env: Env) -> int:
    """Have the task's inputs laid out; returns the exit code."""
    if env.get("FLOWSCHED_ORDER") is None or env.get("FLOWSCHED_SIGNATURE") is None:
        return _end_with(
            env, BAD_ORDER, {"reason": "OrderRefused", "message": "there is no order, or no signature"}
        )
    if env.get("FLOWSCHED_CONTAINER"):
        from flowsched.cluster.kubernetes.steps import files

        code, message = files.prepare(env)
        if code == DONE:
            code, message = _stage_in(env)
        if code == DONE:
            code, problem = files.fill(env)
            message = problem or message
        if code == NOT_LAID:
            files.leave(env)
    else:
        code, message = _stage_in(env)
    return _end_with(env, code, message)


def _stage_in(env: Env) -> tuple[int, dict[str, Any]]:
    """Have datasets laid out: the exit code, and the message."""
    if not env.get("FLOWSCHED_AGENT"):
        from flowsched.cluster.kubernetes.steps import alone

        return alone.stage_in(env)
    body = {"inputs_path": env.get("FLOWSCHED_INPUTS", "/flowsched/inputs")}
    status, answer = _persist(env, "inputs", body, _START_PATIENCE_S)
    if status != 200:
        return _refused(status, answer)
    if answer.get("lost"):
        return INPUT_LOST, {"reason": "InputLost", **answer}
    return DONE, {name: answer.get(name, 0) for name in ("bytes_local", "bytes_moved")}


def stage_out(env: Env) -> int:
    """Wait for the task's end, then have its outputs published; returns the exit code.

    Outputs that are missing are told, and are no failure of this step: the task's own exit code decides.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    # Never called, since the signals stay blocked; but /proc/PID/status shows that the process handles them.
    for number in _ENDS:
        signal.signal(number, lambda *_: None)
    with _listening(env):
        signal.sigwait(_ENDS)
    if env.get("FLOWSCHED_CONTAINER"):
        from flowsched.cluster.kubernetes.steps import files

        # An object may take hours: the agent writes it for as long as the connection is there.
        ask = partial(_persist, env, "objects", patience_s=_END_PATIENCE_S, answer_s=None)
        message = files.deliver(env, ask if env.get("FLOWSCHED_AGENT") else None)
        delivered = message["delivered"]
        message["delivered"] = [each[:_REPORTED] for each in delivered]
        # The message comes first: the pod's grace may end while the agent copies files that are delivered already.
        code = _end_with(env, DONE, message)
        if env.get("FLOWSCHED_AGENT"):
            if json.loads(fitted(message, _limit(env))).get("undelivered"):
                _report_delivered(env, delivered, _START_PATIENCE_S)
            elif message["delivered"] != delivered:
                _report_delivered(env, delivered, _COPY_PATIENCE_S)
        return code
    if not env.get("FLOWSCHED_AGENT"):
        from flowsched.cluster.kubernetes.steps import alone

        return _end_with(env, DONE, alone.stage_out(env))
    body = {"work_path": env.get("FLOWSCHED_WORK", "/flowsched/work")}
    status, answer = _persist(env, "outputs", body, _END_PATIENCE_S)
    if status != 200:
        return _end_with(env, *_refused(status, {"outputs": [], **answer}))
    return _end_with(env, DONE, {"outputs": [], "reason": "", "message": "", **answer})


def _report_delivered(env: Env, files: list[Any], patience_s: float) -> None:
    """Report all delivered files to the agent. Its cache takes objects, and it keeps a list that no message holds. An agent that
    does not answer is no failure.
    """
    from flowsched.cluster.kubernetes.packing import packed

    body = {"work_path": env.get("FLOWSCHED_WORK", "/flowsched/work"), "delivered": packed(files)}
    status, answer = _persist(env, "outputs", body, patience_s, in_all=True)
    if status != 200:
        print(f"the agent has not taken the list of {len(files)} files: {status} {answer}", file=sys.stderr)


def ready(env: Env) -> int:
    """Wait until stage-out of the same pod waits for the task's end."""
    end = time.monotonic() + _READY_S
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX) as asking:
            try:
                asking.connect(_meeting_point(env))
            except OSError:
                time.sleep(0.02)
            else:
                return DONE
    return NOT_READY


#: The signals that say that the task has ended.
_ENDS: Final = frozenset({signal.SIGTERM, signal.SIGINT})


def _listening(env: Env) -> socket.socket:
    """A socket for `ready`. Linux gives such a name no file, and no permission to care for."""
    meeting = socket.socket(socket.AF_UNIX)
    if sys.platform == "linux":
        meeting.bind(_meeting_point(env))
        meeting.listen(8)
    return meeting


def _meeting_point(env: Env) -> str:
    return f"\0flowsched.stage-out.{env.get('POD_UID', '')}"


# --- the agent -----------------------------------------------------------------------------------------------


def _persist(
    env: Env,
    what: str,
    body: dict[str, Any],
    patience_s: float,
    answer_s: float | None = _ANSWER_S,
    *,
    in_all: bool = False,
) -> Answer:
    """Ask the agent until it has done it or refuses. Status 0: it was silent for too long, or (`in_all`) is not done by then."""
    patience_s = float(env.get("FLOWSCHED_PATIENCE_S") or patience_s)
    body = {"order": env["FLOWSCHED_ORDER"], "signature": env["FLOWSCHED_SIGNATURE"], **body}
    silent_since, pause = time.monotonic(), _FIRST_PAUSE_S
    while True:
        left_s = patience_s - (time.monotonic() - silent_since)
        status, answer = _ask(env, what, body, max(left_s, _FIRST_PAUSE_S) if in_all else answer_s)
        if status in _FINAL:
            return status, answer
        if status == 202 and not in_all:  # it is at it
            silent_since, pause = time.monotonic(), _FIRST_PAUSE_S
        elif time.monotonic() - silent_since > patience_s:
            return 0, answer
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _ask(env: Env, what: str, body: dict[str, Any], answer_s: float | None) -> Answer:
    """Ask once; status 0 if there was no answer."""
    try:
        status, raw = _post(
            env["FLOWSCHED_AGENT"],
            f"/v1/pods/{env.get('POD_UID', '')}/{what}",
            json.dumps(body).encode(),
            answer_s,
        )
        answer = json.loads(raw)
        return status, answer if isinstance(answer, dict) else {}
    except (OSError, ValueError) as error:
        return 0, {"message": f"no answer from {env['FLOWSCHED_AGENT']}: {type(error).__name__}: {error}"}


def _post(url: str, path: str, body: bytes, answer_s: float | None) -> tuple[int, bytes]:
    """One request to an agent: status and body of its answer. To import `http.client` takes longer than all the rest of stage-in.

    HTTP/1.0: the answer comes in one piece, and ends with the connection.

    Raises:
        OSError, ValueError: There was no answer, or only a part of one.
    """
    host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S) as connection:
        connection.settimeout(answer_s)
        connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1
        )  # an agent that has gone answers nothing
        for option, value in _KEEPALIVE.items():
            connection.setsockopt(socket.IPPROTO_TCP, option, value)
        head = (
            f"POST {path} HTTP/1.0\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(head.encode() + body)
        answer = bytearray()
        while piece := connection.recv(1 << 16):
            answer += piece
    status, _, rest = bytes(answer).partition(b"\r\n")
    headers, _, content = rest.partition(b"\r\n\r\n")
    sizes = [line[15:] for line in headers.split(b"\r\n") if line[:15].lower() == b"content-length:"]
    if not status.startswith(b"HTTP/1.") or not sizes or int(sizes[0]) != len(content):
        raise ValueError(f"the answer is cut off, or none: {bytes(answer[:100])!r}")
    return int(status.split(b" ")[1]), content


def _refused(status: int, answer: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Exit code and message after the agent could not be reached, or refused the order."""
    if status == 0:
        return UNREACHABLE, {**answer, "reason": "AgentUnreachable"}
    return BAD_ORDER, {**answer, "reason": "OrderRefused"}


# --- the termination message ---------------------------------------------------------------------------------


def _end_with(env: Env, code: int, message: dict[str, Any]) -> int:
    """Write the termination message; returns the exit code."""
    text = fitted(message, _limit(env))
    print(text if code else f"done: {text}", file=sys.stderr, flush=True)
    try:
        # The kubelet has mounted the file itself: it is written to, never replaced.
        with open(env.get("FLOWSCHED_TERMINATION_LOG") or "/dev/termination-log", "w") as file:
            file.write(text)
    except OSError as error:
        print(f"cannot write the termination message: {error}", file=sys.stderr)
    return code


def _limit(env: Env) -> int:
    return int(env.get("FLOWSCHED_MESSAGE_BYTES") or _MESSAGE_BYTES)


def fitted(message: dict[str, Any], limit: int) -> str:
    """A message as JSON that is no longer than allowed. `more` says that something was left out; the agent has it all.

    Values go first, the longest before the others, then the lists, then the end of the sentence. Of a container task the ends of
    the steps' files go first, then the list of files is packed, and then cut: `undelivered` says how many are not in it.
    """
    text = json.dumps(message)
    if len(text) <= limit:
        return text
    if "delivered" in message:
        return _packed(message, limit)
    short = {**message, "more": True}
    if short.get("outputs"):
        outputs = short["outputs"] = [dict(output) for output in short["outputs"]]
        for output in sorted(outputs, key=lambda output: -len(output.get("value") or "")):
            output["value"] = None
            if len(json.dumps(short)) <= limit:
                return json.dumps(short)
    for name in ("outputs", "lost"):
        while short.get(name) and len(json.dumps(short)) > limit:
            short[name] = short[name][: len(short[name]) // 2]
    spare = limit - len(json.dumps({**short, "message": ""}))
    words = str(short.get("message", ""))
    while len(json.dumps(short)) > limit and words:
        words = words[: max(0, min(spare, len(words)) - 8)] if len(words) > spare else words[:-8]
        short["message"] = words
    return json.dumps(short)


def _packed(message: dict[str, Any], limit: int) -> str:
    """The message of a container task, as much of it as there is room for."""
    from flowsched.cluster.kubernetes.packing import packed

    files: list[Any] = message["delivered"]
    for size in (TAIL_BYTES, 1024, 200, 0):
        stdio = [[end[-size:] if size else "" for end in ends] for ends in message.get("stdio", ())]
        text = json.dumps({**message, "stdio": stdio})
        if len(text) <= limit:
            return text
    bare = {**message, "stdio": [], "message": str(message.get("message", ""))[: limit // 4]}
    count = len(files)
    while True:
        shortened = {**bare, "delivered": packed(files[:count]), "undelivered": len(files) - count}
        text = json.dumps(shortened)
        if len(text) <= limit or not count:
            return text
        count = count * 9 // 10


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
