"""Uploads: one process of a runner writes the objects of all its attempts to their stores.

A client of a store takes half a second of CPU time to load and to connect. That is paid once, and not by each attempt. An attempt
asks by the mailbox of its runner: a datagram brings a socket for the request and its answer, and the file itself, opened. No path
travels, so nothing is resolved a second time (`safe_paths`). The mailbox has no name: the processes that the runner forks have it,
and no program that a task runs.

- The runner starts the process when a request waits and no such process lives. It ends when it was idle for a while, and with its
  runner.
- If it dies, the socket of an attempt ends without an answer, and the attempt asks again.

No other process of the runner loads `fsspec`. On Kubernetes a node agent or stage-out in a pod writes with the same `Stores`.
"""

from __future__ import annotations

import errno
import math
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from . import kin
from .outputs import Refused
from .records import Record, receive, send

TYPE_CHECKING = False
if TYPE_CHECKING:
    from concurrent.futures import Future
    from threading import Semaphore
    from typing import Any, NoReturn

S3 = ("s3", "s3a")
#: The command that installs a scheme which fsspec alone does not know.
EXTRAS = dict.fromkeys(S3, "pip install flowsched[objectstore]")
#: A larger file goes in parts, so many at a time. A store takes at most 10,000.
_PART_BYTES = 8 << 20
_PARTS_AT_A_TIME = 4
_MOST_PARTS = 10_000
#: Parts of all files that are in memory.
_PARTS_IN_MEMORY = 8
#: Threads for checks, files of one part, and larger files: none waits for a slower kind.
_THREADS = 4, 16, 8
#: Connections of a client of S3: for each thread but those for larger files, and for each part. botocore keeps ten.
_CONNECTIONS = 28
#: Requests that the process has received; the others wait in the mailbox. Each has two descriptors.
_REQUESTS = 128
_FULL_S = 0.05
#: The process ends after so long without a request: it has 100 MB of memory.
_IDLE_S = 60.0
_TICK_S = 5.0
#: No two are started within this time, so that one that dies at its start is not started in a loop.
_APART_S = 1.0
#: A bucket that was there is not looked for again within this time.
_CHECKED_S = 300.0
#: A task waits at most so long for the check of its buckets: a store that does not answer now may do so at the task's end.
_CHECK_S = 10.0
_PR_SET_DUMPABLE = 4


# ---- an attempt's side ----


class Uploads:
    """The object stores, as an attempt reaches them.

    Args:
        mailbox: Of its runner.
        upload: How the service reaches them, see `cluster.orders`.
    """

    def __init__(self, mailbox: socket.socket, upload: Record) -> None:
        self._mailbox, self._upload = mailbox, upload

    def write(self, fd: int, uri: str) -> str:
        """See `Stores.write`. Called in threads."""
        return str(self._ask(uri, math.inf, fd)["version"])

    def check(self, uri: str) -> None:
        """See `Stores.check`; no answer in time is none."""
        with suppress(OSError):
            self._ask(uri, time.monotonic() + _CHECK_S)

    def _ask(self, uri: str, until: float, *files: int) -> Record:
        """One request; another one, if the process dies meanwhile. Raises Refused, OSError."""
        answer = None
        for pause_s in (0.0, _APART_S):
            time.sleep(pause_s)
            try:
                answer = self._exchange(until, {"uri": uri, "upload": self._upload}, files)
            except ConnectionError:
                continue
            except OSError as error:
                raise OSError(error.errno, f"cannot write {uri}: {error.strerror or error}") from error
            if answer is not None:
                break
        if answer is None:
            raise OSError(errno.ECONNRESET, f"cannot write {uri}: the process that writes has died")
        if "refused" in answer:
            raise Refused(*answer["refused"])  # type: ignore[misc]
        if "error" in answer:
            raise OSError(errno.EIO, answer["error"])
        return answer

    def _exchange(self, until: float, request: Record, files: tuple[int, ...]) -> Record | None:
        """Send a request. Returns its answer; None: the process has died."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                while True:
                    try:
                        socket.send_fds(self._mailbox, [b"!"], [theirs.fileno(), *files])
                        break
                    except BlockingIOError:  # the mailbox is full
                        if time.monotonic() >= until:
                            raise
                        time.sleep(_FULL_S)
            send(ours.fileno(), request | {"files": len(files)})
            left_s = None if until == math.inf else max(0.0, until - time.monotonic())
            if not select.select([ours], [], [], left_s)[0]:
                raise TimeoutError(errno.ETIMEDOUT, "no answer in time")
            return receive(ours.fileno())


# ---- the runner's side ----


class Uploader:
    """The process, from the side of the runner that starts it."""

    def __init__(self) -> None:
        self.mailbox, self._requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        for each in (self.mailbox, self._requests):
            each.setblocking(False)  # `recv_fds` and `send_fds` ignore their flags
        self.pid = 0
        self._started = -_APART_S

    def fileno(self) -> int:
        """Readable when a request waits."""
        return self._requests.fileno()

    def start(self, inherited: list[int]) -> bool:
        """Start the process for the request that waits. If there can be none now, the attempt hears that, and asks again.

        Args:
            inherited: Descriptors that it must not keep.

        Returns:
            Whether it lives, and hears of further requests itself.
        """
        import concurrent.futures.thread  # noqa: F401 - 8 ms that no attempt pays which the runner forks from now on

        now, runner = time.monotonic(), os.getpid()
        try:
            if now - self._started < _APART_S:
                raise OSError(errno.EAGAIN, "the last one died at its start")
            self._started = now
            self.pid = os.fork()
        except OSError as error:
            sys.stderr.write(f"no process for uploads: {error}\n")
            with suppress(OSError):
                for fd in socket.recv_fds(self._requests, 1, 2)[1]:
                    os.close(fd)
            return False
        if self.pid == 0:
            self.mailbox.close()
            _become(self._requests, runner, inherited)
        return True

    def go_on(self) -> None:
        """Let the process go on, if another process of this user has stopped it. The runner hears of that by SIGCHLD."""
        if self.pid:
            os.kill(self.pid, signal.SIGCONT)


# ---- the process ----


def _become(requests: socket.socket, runner: int, inherited: list[int]) -> NoReturn:
    """Be the process."""
    try:
        os.setsid()
        kin.set_name(kin.SHIM)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        kin.die_with_parent()
        kin.prctl(
            _PR_SET_DUMPABLE, 0
        )  # for its credentials; the runner and its shims have them too, readable by this user
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1):
            os.dup2(null, fd)
        for fd in inherited:
            os.close(fd)
        _Process(requests, runner).serve()
    except BaseException:  # noqa: BLE001 - written down where people look, then the process ends
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(0)


class _Process:
    """The process: it receives requests, and its threads serve them, until there are none for a while."""

    def __init__(self, requests: socket.socket, runner: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._requests, self._runner = requests, runner
        self._stores = Stores({"options": {}})
        self._pools = [ThreadPoolExecutor(threads) for threads in _THREADS]
        self._out: set[Future[None]] = set()  #: requests that were received and not answered

    def serve(self) -> None:
        """Returns when it was idle for long, or its runner has died where the kernel does not tell it.

        A request that comes just then stays in the mailbox, and the runner starts the next process for it.
        """
        end = time.monotonic() + _IDLE_S
        while os.getppid() == self._runner and time.monotonic() < end:
            if len(self._out) >= _REQUESTS:
                time.sleep(_FULL_S)
            elif select.select([self._requests], [], [], _TICK_S)[0]:
                self._receive()
            if self._out:
                end = time.monotonic() + _IDLE_S

    def _receive(self) -> None:
        """Receive a request, and let a thread serve it."""
        fds = socket.recv_fds(self._requests, 1, 2)[1]
        kind = 0 if not fds[1:] else 1 if os.fstat(fds[1]).st_size <= _PART_BYTES else 2
        request = self._pools[kind].submit(self._serve, fds)
        self._out.add(request)
        request.add_done_callback(self._out.discard)

    def _serve(self, fds: list[int]) -> None:
        """In a thread."""
        try:
            if fds:  # no descriptor was left
                self._answer(*fds)
        except Exception:  # noqa: BLE001 - the attempt hears the end of its socket, and asks again
            sys.excepthook(*sys.exc_info())
        finally:
            for fd in fds:
                os.close(fd)

    def _answer(self, answering: int, *files: int) -> None:
        """Carry out one request: a file is written; without one, its bucket is looked for."""
        request = receive(answering)
        if request is None or request["files"] != len(files):  # no second descriptor was left
            return
        if request["upload"] != self._stores.upload:
            self._stores = Stores(request["upload"])  # type: ignore[arg-type]
        uri, stores, answer = str(request["uri"]), self._stores, Record()
        try:
            if files:
                answer["version"] = stores.write(files[0], uri, lambda: _waits(answering))
            else:
                stores.check(uri)
        except Refused as refusal:
            answer["refused"] = list(refusal.args)
        except OSError as error:
            answer["error"] = str(error.strerror or error)
        with suppress(OSError):  # the attempt has ended meanwhile
            send(answering, answer)


class Stores:
    """The object stores that a service reaches, in this process.

    Args:
        upload: How, see `cluster.orders`: options of `fsspec` by scheme, variables of the environment, folders of packages.
    """

    def __init__(self, upload: Record) -> None:
        from threading import Semaphore

        self.upload = upload
        self._parts = Semaphore(_PARTS_IN_MEMORY)
        self._known: dict[str, Any] = {}  #: file systems of fsspec by scheme
        self._checked: dict[str, float] = {}  #: a bucket's uri -> until when (monotonic) it counts as there

    def write(self, fd: int, uri: str, wanted: Callable[[], bool] = lambda: True) -> str:
        """Write an object with the bytes of an open file. Blocks.

        Args:
            fd: Of the file.
            uri: Of the object.
            wanted: Whether the attempt still waits for it. Another one may have written the object otherwise, which must stay.

        Returns:
            The object's version, as `object_version` has it; "" where the store names none.

        Raises:
            Refused: The store does not take it; to try again is no use.
            OSError: It cannot be written now.
        """
        files, key = self._store(uri)
        try:
            if is_s3(uri):
                return object_version(_put(files.call_s3, fd, *key.partition("/")[::2], wanted, self._parts))
            os.lseek(fd, 0, os.SEEK_SET)  # it may be the second try
            _copy(fd, files.open(key, "wb"), wanted)
        except Exception as error:  # each store has errors of its own
            raise _failure(uri, error, files) from error
        return ""

    def check(self, uri: str) -> None:
        """Look for the bucket of an S3 uri, which must be there before a task's work; and for the client of any store.

        Raises:
            Refused: There is none.
            OSError: That cannot be told now.
        """
        files, key = self._store(uri)
        bucket = key.partition("/")[0]
        if not is_s3(uri) or self._checked.get(bucket, 0.0) > time.monotonic():
            return
        try:
            files.call_s3("head_bucket", Bucket=bucket)
        except PermissionError:
            return  # it may be written to all the same: to list it is another right
        except Exception as error:
            raise _failure(uri, error, files) from error
        self._checked[bucket] = time.monotonic() + _CHECKED_S

    def _store(self, uri: str) -> tuple[Any, str]:
        """The file system of a uri, and the uri's path there. Raises Refused."""
        scheme, _, key = uri.partition("://")
        if scheme not in self._known:
            os.environ.update(self.upload.get("env", {}))  # type: ignore[call-overload]
            sys.path += [path for path in self.upload.get("path", ()) if path not in sys.path]  # type: ignore[attr-defined]
            options: dict[str, Any] = dict(self.upload["options"].get(scheme, {}))  # type: ignore[attr-defined]
            if scheme in S3:
                kept = {"max_pool_connections": _CONNECTIONS}
                options["config_kwargs"] = kept | options.get("config_kwargs", {})
            try:
                import fsspec

                self._known[scheme] = fsspec.filesystem(scheme, **options)
            except (ImportError, ValueError) as error:
                hint = EXTRAS.get(scheme, "fsspec knows no such scheme, or its package is missing")
                raise Refused("OutputFailed", f"cannot write {uri}: {hint} ({error})") from None
        return self._known[scheme], key


def is_s3(uri: str) -> bool:
    """Whether a uri names an object of S3."""
    return uri.partition("://")[0] in S3


def _waits(answering: int) -> bool:
    """Whether an attempt still waits for its answer: its end of the socket is open."""
    ended = select.poll()
    ended.register(answering, 0)  # the end is reported in any case
    return not ended.poll(0)


def _copy(fd: int, writing: Any, wanted: Callable[[], bool]) -> None:
    """Write a file of fsspec, which makes an object of it when it is closed."""
    try:
        while block := os.read(fd, _PART_BYTES):
            _ensure(wanted)
            writing.write(block)
        _ensure(wanted)
    except BaseException:
        with suppress(AttributeError):
            writing.closed = True  # otherwise fsspec makes an object of the part that it has
        raise
    writing.close()


def _ensure(wanted: Callable[[], bool]) -> None:
    if not wanted():
        raise OSError(errno.ECANCELED, "its attempt has ended")


def _put(
    call: Callable[..., Mapping[str, Any]],
    fd: int,
    bucket: str,
    key: str,
    wanted: Callable[[], bool],
    turns: Semaphore,
) -> Mapping[str, Any]:
    """Write an object of S3, a large one in parts, each in its turn. Returns the store's answer."""
    import mimetypes

    where, size = {"Bucket": bucket, "Key": key}, os.fstat(fd).st_size
    kind = mimetypes.guess_type(key)[0]
    more = {"ContentType": kind} if kind else {}
    part = max(_PART_BYTES, -(-size // _MOST_PARTS))
    _ensure(wanted)
    if size <= part:
        return call("put_object", Body=os.pread(fd, size, 0), **where, **more)
    where["UploadId"] = call("create_multipart_upload", **where, **more)["UploadId"]

    def put_part(number: int) -> dict[str, Any]:
        with turns:
            _ensure(wanted)
            body = os.pread(fd, part, (number - 1) * part)
            tag = call("upload_part", PartNumber=number, Body=body, **where)["ETag"]
        return {"PartNumber": number, "ETag": tag}

    from concurrent.futures import ThreadPoolExecutor

    try:
        with ThreadPoolExecutor(_PARTS_AT_A_TIME) as pool:
            parts = list(pool.map(put_part, range(1, -(-size // part) + 1)))
        _ensure(wanted)
        return call("complete_multipart_upload", MultipartUpload={"Parts": parts}, **where)
    except BaseException:
        with suppress(Exception):
            call("abort_multipart_upload", **where)
        raise


def object_version(details: Mapping[str, Any]) -> str:
    """The version of an object in a store: its ETag, and its version id if there is one."""
    tag = str(details.get("ETag") or details.get("etag") or "").strip('"')
    version_id = str(details.get("VersionId") or details.get("version_id") or "")
    return f"{tag} {version_id}" if tag and version_id not in ("", "null") else tag


def _failure(uri: str, error: Exception, files: Any) -> Refused | OSError:
    """The error of a store as that of a write: what was found where, and what to do."""
    what = f"cannot write {uri}: "
    refuses = isinstance(error, PermissionError) or type(error).__name__ == "NoCredentialsError"
    if not is_s3(uri):
        text = f"{what}{type(error).__name__}: {error}"
        return Refused("OutputFailed", text) if refuses else OSError(errno.EIO, text)
    try:
        at = files.s3.meta.endpoint_url
    except Exception:  # noqa: BLE001 - there is no client yet
        at = os.environ.get("AWS_ENDPOINT_URL") or "the store"
    answer: Mapping[str, Any] = getattr(error.__cause__, "response", None) or {}
    if answer.get("Error", {}).get("Code") in ("NoSuchBucket", "404"):  # a HEAD has no other code
        bucket = uri.split("/")[2]
        return Refused(
            "OutputFailed",
            f"{what}there is no bucket {bucket!r} at {at}. Create it, or correct the URL or the service's AWS_ENDPOINT_URL",
        )
    if refuses:
        return Refused(
            "OutputFailed",
            f"{what}{at} refuses it ({error}). Give the service credentials that may write there (AWS_ACCESS_KEY_ID …)",
        )
    return OSError(errno.EIO, f"{what}{at}: {type(error).__name__}: {error}")
