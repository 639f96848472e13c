"""Every error flowsched raises on purpose, with the HTTP status it becomes.

FlowschedError                 500
├── InvalidRequest             400  the bytes cannot be understood at all (not JSON, bad parameter)
│   ├── TooLarge               413  a documented limit on size, depth or count is exceeded
│   └── InvalidDocument        422  understood, but wrong: carries every fault with its JSON path
├── Unauthorized               401  no token, or one that is not known
├── Forbidden                  403  known, but not allowed
├── NotFound                   404
├── Conflict                   409  the state does not allow it, or an idempotency key was used for another body
│   └── NotLeader              409  another process leads, on another root: this one never takes over
├── Unsupported                422  asked for something this installation cannot do (says what would)
├── TooMuch                    429  so much lives already that this is not accepted now: cancel some, or come again
├── Unavailable                503  the database or the leader is not there; try again
│   └── StorageBusy            503  the database stayed locked beyond the limit
│       └── OutcomeUnknown     503  ... and whether the last try was committed could not be found out
├── LeadershipLost             500  another process leads with a higher epoch: this one must stop writing
├── StorageCorrupt             500  the database's files are damaged: the service stops, since writing on could lose more
├── StaleWrite                 500  a compare-and-set found another version: memory and SQL disagree
│   └── CancelRequested        500  pods were to be launched for workflows that have been cancelled meanwhile
├── IllegalTransition          500  an event that cannot happen in a state: a bug, never the user's fault
├── RunFailed                  500  in the SDK alone: a workflow that was waited for did not succeed
└── ConfigurationError         500  the service cannot start like this; the message says what to change
    └── InUse                  500  ... since another process has its SQLite file
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

#: How many names a message lists.
_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong with a user's document.

    Args:
        path: Where, as a JSON path: `$.stages[2].inputs[0].from`.
        found: The value there, shortened.
        expected: The values that are allowed there, in words; "" where `found` says all.
    """

    path: str
    found: str
    expected: str

    def __str__(self) -> str:
        """Say it in one line."""
        if not self.expected:
            return f"{self.path}: {self.found}"
        if self.expected.startswith("did you mean"):
            return f"{self.path}: found {self.found}; {self.expected}"
        return f"{self.path}: found {self.found}, expected {self.expected}"


def no_such(kind: str, name: str, known: Iterable[str]) -> str:
    """The message that a name does not exist: with the name that was probably meant, or those that there are.

    Args:
        kind: Of what, in one word.
        name: As it was given.
        known: The names that there are. Of more than a thousand, only those are compared that begin alike.
    """
    import difflib  # only where something is wrong: commands that start thousands of times import this module

    names = list(known)
    like = names if len(names) <= 1000 else [each for each in names if each[:2] == name[:2]][:1000]
    close = difflib.get_close_matches(name, like, n=1, cutoff=0.6)
    if close and _without_numbers(close[0]) != _without_numbers(name):
        return f"there is no {kind} {name!r}; did you mean {close[0]!r}?"
    if not names:
        return f"there is no {kind} {name!r}, nor any other {kind}"
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"there is no {kind} {name!r}; there {'are' if len(names) > 1 else 'is'} {', '.join(names[:_NAMED])}{more}"


def _without_numbers(name: str) -> str:
    """Names that differ in their numbers alone, such as node-2 and node-9, are no typos of each other."""
    import re  # as difflib above

    return re.sub("[0-9]+", "0", name)


class FlowschedError(Exception):
    """The root: whatever flowsched raises on purpose."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def _render_traceback_(self) -> list[str]:
        """A notebook's display: the error and its notes, as IPython asks for it. The client's calls say nothing more."""
        return [f"{type(self).__name__}: {self}", *getattr(self, "__notes__", ())]


class InvalidRequest(FlowschedError):
    """The request cannot be understood."""

    status = 400
    title = "The request cannot be understood"


class TooLarge(InvalidRequest):
    """A documented limit is exceeded; the message names the limit."""

    status = 413
    title = "A limit is exceeded"


class TooMuch(FlowschedError):
    """So much lives already that this is not accepted now; the message has the numbers."""

    status = 429
    title = "Too much at a time"


class InvalidDocument(InvalidRequest):
    """The document was understood and is wrong; `faults` holds everything that is."""

    status = 422
    title = "The workflow document has faults"

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        shown = "; ".join(str(fault) for fault in self.faults[:3])
        more = f"; and {len(self.faults) - 3} more" if len(self.faults) > 3 else ""
        super().__init__(f"{len(self.faults)} fault{'s' * (len(self.faults) != 1)}: {shown}{more}")


class Unauthorized(FlowschedError):
    """No token, or one that is not known."""

    status = 401
    title = "A token is required"


class Forbidden(FlowschedError):
    """The caller is known but may not do this."""

    status = 403
    title = "Not allowed"


class NotFound(FlowschedError):
    """There is no such thing, or it is not the caller's."""

    status = 404
    title = "Not found"


class Conflict(FlowschedError):
    """The present state does not allow the request."""

    status = 409
    title = "The present state does not allow this"


class NotLeader(Conflict):
    """Only the leader can answer, and it runs on another root; the message names it. Asking this process again does not help."""

    title = "Another process leads"


class Unsupported(FlowschedError):
    """The installation cannot do what was asked; the message says which one can."""

    status = 422
    title = "Not supported here"


class Unavailable(FlowschedError):
    """Something flowsched needs is not there now; trying again later is right."""

    status = 503
    title = "Not available now"


class StorageBusy(Unavailable):
    """The database stayed locked, full or unreachable beyond the limit."""


class OutcomeUnknown(StorageBusy):
    """The answer to a COMMIT was lost and the database stayed away: written or not, only a later look can tell.

    A client sends its request again with the same idempotency key; a leader rebuilds its memory from SQL.
    """


class LeadershipLost(FlowschedError):
    """Another process leads with a higher epoch; this one must stop writing at once."""


class StorageCorrupt(FlowschedError):
    """The database says that its files are damaged. The service stops: restore a backup, then start it again."""


class StaleWrite(FlowschedError):
    """A compare-and-set found another version than the one in memory; `keys` names the rows."""

    def __init__(self, message: str, keys: Sequence[object] = ()) -> None:
        self.keys = tuple(keys)
        super().__init__(message)


class CancelRequested(StaleWrite):
    """Nothing was written, since it held launches for cancelled workflows: process their cancel first.

    Args:
        reasons: Id of each of these workflows -> why it was cancelled, in the user's words.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        super().__init__(f"cancel was requested for {', '.join(self.reasons)}", tuple(self.reasons))


class IllegalTransition(FlowschedError):
    """An event that cannot happen in the state a task is in: a bug in flowsched, shown with all its values."""


class ConfigurationError(FlowschedError):
    """The service cannot start like this; the message says what to change."""

    title = "The configuration does not work"


class InUse(ConfigurationError):
    """Another process has the SQLite file; the message names it."""


class RunFailed(FlowschedError):
    """A workflow that a program waited for has ended, and not well: `Run.wait(check=True)`.

    Attributes:
        run: Its id.
        state: How it ended: FAILED or CANCELLED.
    """

    title = "The workflow did not succeed"

    def __init__(self, message: str, *, run: str = "", state: str = "") -> None:
        super().__init__(message)
        self.run = run
        self.state = state


class CannotStart(UserWarning):
    """A workflow that a program waits for asks for what no node has, or its queue may have: `Run.wait` warns, and goes on waiting.

    Nodes may come later, or a cap be raised. `warnings.simplefilter("error", CannotStart)` makes `wait` raise instead.
    """
