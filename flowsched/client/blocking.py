"""`flowsched.SyncClient`: the client for notebooks and programs without an event loop. Its calls return when they are done.

Each method is made from the method of `Client` of that name. `blocking.pyi` has their signatures for type checkers and editors;
`python -m tests.house.blocking` writes it.
"""

from __future__ import annotations

import inspect
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import wraps
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from flowsched.client.building import Workflow
from flowsched.client.calls import Client, Run
from flowsched.client.loop_thread import LoopThread
from flowsched.client.session import START_S
from flowsched.workflow import html
from flowsched.workflow.views import EventView, StageView, Views, WorkflowView

V = TypeVar("V")


class Rows(Iterator[V]):
    """Views that come as they are asked for. A notebook shows the first of them as a table; they still come afterwards."""

    def __init__(self, source: Iterator[V]) -> None:
        self._source = source
        self._read: deque[V] = deque()  #: what was shown and has not been asked for

    def __next__(self) -> V:
        return self._read.popleft() if self._read else next(self._source)

    def __repr__(self) -> str:
        return "<views that come as they are asked for: list(…) reads all of them>"

    def _repr_html_(self) -> str:
        self._read.extend(islice(self._source, max(0, html.ROWS + 1 - len(self._read))))
        views = Views(islice(self._read, html.ROWS))
        more = f"<p>… and more than {html.ROWS}</p>" if len(self._read) > html.ROWS else ""
        return views._repr_html_() + more


@dataclass(frozen=True, slots=True)
class SyncRun:
    """One accepted workflow, as `Run`: it has each method of `Run`."""

    id: str
    created: bool  #: False: the same document had been accepted under the same key before
    client: SyncClient = field(repr=False, compare=False)
    notes: tuple[str, ...] = ()  #: what the service adds to the document, such as the timeout of its queue

    def _repr_html_(self) -> str:
        """A notebook's display: the workflow now, with its stages."""
        view, stages = self.view(), self.stages()
        return html.fields(view, view.SHOWN) + html.table(stages, StageView.SHOWN)


class SyncClient:
    """Talks to one service. A context manager; without `with`, `close` ends its thread, or the program does.

    It has each method of `flowsched.Client`, which does the same and raises the same. An asynchronous iterator there is an
    iterator here; logs are a text, and outputs are bytes. Ctrl-C ends a call.

    Args:
        url: Where the service listens; None = FLOWSCHED_SERVER, else the service on this user's data folder, else
            http://127.0.0.1:8470.
        token: Its token; None = FLOWSCHED_TOKEN, else the one of a service that this user runs on this machine.
        timeout: Seconds for one request.
        start_timeout: Seconds that a call waits while nothing listens or the service is not ready: it may be starting.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        timeout: float = 30.0,
        *,
        start_timeout: float = START_S,
    ) -> None:
        self._thread = LoopThread(self)
        self._client = self._thread.make(
            lambda: Client(url, token, timeout, start_timeout=start_timeout), Client.close
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where the service listens."""
        return self._client.url

    def close(self) -> None:
        """Close all connections. A second time does nothing."""
        self._thread.close()

    def submit(
        self,
        workflow: Workflow | Mapping[str, Any] | bytes | Path,
        *,
        idempotency_key: str | None = None,
        resume: str | None = None,
    ) -> SyncRun:
        """Hand in a workflow. When this returns it is durably accepted. See `Client.submit`."""
        run = self._thread.run(self._client.submit(workflow, idempotency_key=idempotency_key, resume=resume))
        return SyncRun(run.id, run.created, self, run.notes)

    def wait(self, workflow: str, timeout: float | None = None, *, check: bool = False) -> WorkflowView:
        """Wait until a workflow has ended; see `Client.wait`. Ctrl-C ends the wait, and the workflow goes on."""
        try:
            return self._thread.run(self._client.wait(workflow, timeout, check=check))
        except KeyboardInterrupt as interrupt:
            interrupt.add_note(f"{workflow} goes on: wait again, or cancel it")
            raise

    def find(self, name: str) -> SyncRun:
        """The workflow of a name (the newest), of an id, or of the beginning of an id; see `Client.find`."""
        return SyncRun(self._thread.run(self._client.find(name)).id, False, self)

    def logs(
        self,
        workflow: str,
        stage: str,
        index: int = 0,
        *,
        stream: Literal["stdout", "stderr"] = "stdout",
        attempt: int | None = None,
        offset: int = 0,
        tail: int | None = None,
        follow: bool = False,
    ) -> str:
        """The log of a task, as text; with `follow` when it has ended. See `Client.logs`."""
        pieces = self._thread.each(
            self._client.logs(
                workflow,
                stage,
                index,
                stream=stream,
                attempt=attempt,
                offset=offset,
                tail=tail,
                follow=follow,
            )
        )
        return b"".join(pieces).decode("utf-8", "replace")

    def output(self, workflow: str, stage: str, index: int, name: str) -> bytes:
        """The bytes of an output; a folder is a tar file."""
        return b"".join(self._thread.each(self._client.output(workflow, stage, index, name)))

    def events(self, workflow: str, after: int = 0, *, follow: bool = False) -> Rows[EventView]:
        """The events of a workflow after event `after`; with `follow` also those to come, until it has ended."""
        return Rows(self._thread.each(self._client.events(workflow, after, follow=follow)))


#: A result of a method of `Client` -> that of the method here.
_PIECES: Final = re.compile(r"AsyncGenerator\[(\w+), None\]")


def _waiting(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method of `SyncClient` that does what a method of `Client` does, and returns when it is done."""

    @wraps(method)
    def call(self: SyncClient, *args: Any, **options: Any) -> Any:
        found = method(self._client, *args, **options)
        return Rows(self._thread.each(found)) if isinstance(found, AsyncIterator) else self._thread.run(found)

    asked = inspect.signature(method)
    result = _PIECES.sub(r"Rows[\1]", asked.return_annotation)
    call.__signature__ = asked.replace(return_annotation=result)  # type: ignore[attr-defined]
    return call


def _of_one(name: str, doc: str | None) -> Callable[..., Any]:
    """The method of `SyncRun` that asks the client's method of a name about this workflow."""
    method = getattr(SyncClient, name)

    @wraps(method)
    def call(self: SyncRun, *args: Any, **options: Any) -> Any:
        return method(self.client, self.id, *args, **options)

    asked = inspect.signature(method)
    mine = [each for each in asked.parameters.values() if each.name not in ("workflow", "offset")]
    call.__signature__ = asked.replace(parameters=mine)  # type: ignore[attr-defined]
    call.__doc__ = doc
    return call


for _name, _method in vars(Client).items():
    if inspect.isfunction(_method) and not _name.startswith("_") and _name not in vars(SyncClient):
        setattr(SyncClient, _name, _waiting(_method))
for _name, _method in vars(Run).items():
    if inspect.isfunction(_method) and not _name.startswith("_"):
        setattr(SyncRun, _name, _of_one({"view": "get"}.get(_name, _name), _method.__doc__))
