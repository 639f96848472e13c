"""The identity of a task of another engine's run, and which calls are retries of it. Pure.

docs/engines.md has the table: engine × run, task, attempt. A call with the same *task* as an earlier one of its node is an attempt
of that task. A call that may be a retry, or may be another task, is a task of its own, so that no failure hides behind it.

The command that Cromwell starts for each job reads this module, so it loads nothing: no `re`, no `typing`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Final

#: Scatters inside each other are one number, so far apart: shard 7 of shard 2 is 200007.
APART: Final = 100_000
#: The largest whole number that a JSON number holds exactly.
_MOST: Final = 1 << 53
#: The task that is the process of the run's engine.
HEAD: Final = "head"
#: The longest task that a document may name.
LONGEST: Final = 1024
_HEXADECIMAL: Final = frozenset("0123456789abcdef")
_UUID: Final = (8, 4, 4, 4, 12)  #: characters of its parts


class Place:
    """Where in Cromwell's tree of folders a path lies: `<workflow>/<id>/call-<c>[/shard-n][/<sub>/<id>/call-<d> …][/attempt-k]`.

    Args:
        run: Id of the outermost workflow.
        run_name: Its name.
        node: The run's name and those of the calls from the outside in, with dots: "WGS.VariantCalling.HaplotypeCaller".
        shards: Of all scatters around it, the outermost first.
        attempt: From 1.
        task: The path below the run without the attempt: names of calls, shards, and ids of sub-workflows.
    """

    def __init__(
        self, run: str, run_name: str, node: str, shards: tuple[int, ...], attempt: int, task: str
    ) -> None:
        self.run = run
        self.run_name = run_name
        self.node = node
        self.shards = shards
        self.attempt = attempt
        self.task = task

    @property
    def shard(self) -> int | None:
        """Its shards as one number; None where there is no such number."""
        return shard_number(self.shards)


def cromwell_place(path: str, run: str = "") -> Place | None:
    """Read a path or URL below a run's folder; None if it is not below it, or of no call.

    Args:
        path: Of the host or the container, or a URL.
        run: The id of the root workflow; "" = the first UUID with a call below it.
    """
    parts = [part for part in path.split("/") if part]
    at = next((i for i in range(1, len(parts) - 1) if _is_run(parts, i, run)), None)
    if at is None:
        return None
    names = [parts[at - 1]]
    shards: list[int] = []
    attempt, end, here = 1, at, at + 1
    while here < len(parts) and parts[here].startswith("call-"):
        names.append(parts[here].removeprefix("call-"))
        here += 1
        shard = _suffix(parts, here, "shard-", 9)
        if shard is not None:
            shards.append(shard)
            here += 1
        end = here
        found = _suffix(parts, here, "attempt-", 6)
        here += found is not None
        attempt = found or 1
        if here + 2 < len(parts) and parts[here + 2].startswith("call-"):
            here += 2  # a sub-workflow: its name and its id
    task = "/".join(parts[at + 1 : end])[-LONGEST:]
    return Place(parts[at], parts[at - 1], ".".join(names), tuple(shards), attempt, task)


def _is_run(parts: Sequence[str], at: int, run: str) -> bool:
    return (parts[at] == run if run else _is_uuid(parts[at])) and parts[at + 1].startswith("call-")


def _is_uuid(text: str) -> bool:
    parts = text.split("-")
    return tuple(map(len, parts)) == _UUID and _HEXADECIMAL.issuperset("".join(parts))


def _suffix(parts: Sequence[str], at: int, prefix: str, most: int) -> int | None:
    """The number behind a prefix; `most` digits at most."""
    if at >= len(parts) or not parts[at].startswith(prefix):
        return None
    number = parts[at].removeprefix(prefix)
    return int(number) if number.isascii() and number.isdecimal() and len(number) <= most else None


def shard_number(shards: Sequence[int]) -> int | None:
    """Shards of scatters inside each other, the outermost first, as one number.

    Returns:
        None outside of scatters, and where another path of shards might have the same number.
    """
    if not shards or any(shard >= APART for shard in shards[1:]):
        return None
    number = 0
    for shard in shards:
        number = number * APART + shard
    return number if number < _MOST else None


def shard_path(task: str, shard: int | None, number: int) -> str:
    """How users name a task in scatters inside each other: "5.11" is shard 11 of shard 5.

    Args:
        task: The calls and shards around it, as Cromwell names folders (`call-inner/shard-5/call-t/shard-11`). Where an
            engine names a task otherwise, there is no such name.
        shard: The number that its shards make; None = there is no such number.
        number: Its number in its node.

    Returns:
        "" in less than two scatters, and where another task has the number of these shards: that one has the name, too.
    """
    if shard not in (None, number):
        return ""
    parts = task.split("/")
    known = (
        _suffix(parts, at, "shard-", 9)
        for at in range(1, len(parts))
        if parts[at - 1].startswith(("call-", "shard-"))
    )
    shards = [str(each) for each in known if each is not None]
    return ".".join(shards) if len(shards) > 1 else ""


def item_of(task: str, shard: int | None, number: int) -> str | None:
    """A task's identity beside its number: its shards, or the task itself where no shard makes its number; else None."""
    return shard_path(task, shard, number) or (None if number == (shard or 0) else task)


def numbered(tasks: Iterable[tuple[str, str, int | None]]) -> dict[tuple[str, str], int]:
    """The numbers under which users name the tasks of a run, each unique in its node.

    A task has its shard's number. Where an earlier task has that number, or there is none, it has the next one of its node; so
    a number that was given once stays.

    Args:
        tasks: (node, task, shard) of calls in the order of their submission. An attempt of a known task changes nothing.

    Returns:
        (node, task) -> number.
    """
    found: dict[tuple[str, str], int] = {}
    taken: dict[str, set[int]] = {}
    for node, task, shard in tasks:
        if (node, task) in found:
            continue
        used = taken.setdefault(node, set())
        number = shard or 0
        if number in used:
            number = max(used) + 1
        used.add(number)
        found[node, task] = number
    return found
