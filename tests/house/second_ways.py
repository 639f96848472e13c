"""The table of second ways: where the product has a faster way beside a general one, and what a user gains by it.

`leave_out` takes the ways that FLOWSCHED_WITHOUT names (by commas) out of this process and out of each Python process that it
starts. The tests pass without each of them, but for those that are about the way itself (`needs`).

It imports the standard library alone: `without/sitecustomize.py` runs it at the start of a process.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    import pytest

VARIABLE: Final = "FLOWSCHED_WITHOUT"


class SecondWay(NamedTuple):
    """A faster way beside a general one.

    Args:
        name: In FLOWSCHED_WITHOUT.
        way: What it does, and the module where it does it.
        instead_of: The general way.
        gain: End to end: with it, and without it.
        command: Measures it, with and without FLOWSCHED_WITHOUT.
        module: The module that `leave` changes.
        leave: Replaces attributes of that module by the general way.
    """

    name: str
    way: str
    instead_of: str
    gain: str
    command: str
    module: str
    leave: Callable[[Any], None]


def _score_cache(module: Any) -> None:
    def place(self: Any, axes: Any, table: Any, packing: Any, *, spare: bool) -> Any:
        room = self._room
        rows = [room.least(axis) if spare and room.reserved else room.hard(axis) for axis in axes]
        whole = [room.allocatable(axis) for axis in axes]
        return module.place_role(rows, whole, table, table.count, packing, module.NEVER)

    module.ScoreCache.place = place


def _nearest(module: Any) -> None:
    module.nearest = lambda dearness, count: slice(None)


def _filling(module: Any) -> None:
    fill = module.fill

    def general(room: Any, whole: Any, table: Any, *rest: Any) -> Any:
        if table.step is None:  # no cost, but the general way
            step = module.np.zeros(len(table.allowed), dtype=module.np.int64)
            table = module.msgspec.structs.replace(table, step=step)
        return fill(room, whole, table, *rest)

    module.fill = general


def _one_move(module: Any) -> None:
    def move_one(self: Any, stage: Any, task: int, event: Any) -> None:
        old = stage.task_state[[task]]
        new = module.after(old, event)
        if new != old:
            self.statement.set(stage.task_state, [task], new)
            size = len(stage.counts)
            shift = module.np.bincount(new, minlength=size) - module.np.bincount(old, minlength=size)
            self.statement.add(stage.counts, slice(None), shift)
            self.changes.tasks.setdefault(stage.number, []).append(module.np.array([task]))
            self.changes.touch(stage.number)

    module.Moves.move_one = move_one


def _json_pieces(module: Any) -> None:
    module.parse = lambda structure, loads, piece=0: loads(structure.raw, 0)


def _small_bodies(module: Any) -> None:
    module.THREAD_BYTES = -1


def _remembered_documents(module: Any) -> None:
    module.Documents.keep = lambda self, workflow, spec, size_bytes: None


def _remembered_answers(module: Any) -> None:
    module.Known.get = lambda self, ident: None


def _sqlite_cursor(module: Any) -> None:
    def write_group(self: Any, work: Any, before_commit: Any) -> bool:
        with self._writing() as connection:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            if good := work(connection):
                module.completed(before_commit())
                connection.commit()
            else:
                connection.rollback()
            return bool(good)

    module._Threads._write_group = write_group


def _new_schema(module: Any) -> None:
    module._make = lambda connection, statements: False


def _own_http(module: Any) -> None:
    module.Connections = lambda *given, **more: None


def _bare_socket(module: Any) -> None:
    module.plain_url = lambda url: None


def _quick_exit(module: Any) -> None:
    module._end = lambda code: None


_SCALE: Final = "python bench/scale.py ways"
_TES: Final = "python bench/tes.py --no-postgresql"
_RUN: Final = "python bench/peers.py --only flowsched --tasks 500"

WAYS: Final[Sequence[SecondWay]] = (
    SecondWay(
        "score_cache",
        "a cycle remembers the costs of a shape on all nodes",
        "costs on all nodes, for each pod group",
        "1,024 single pods on 10,000 nodes: a cycle takes 80 ms instead of 344",
        _SCALE,
        "flowsched.scheduling.placement.score_cache",
        _score_cache,
    ),
    SecondWay(
        "nearest",
        "of the nodes with room, only as many as the gang has pods are candidates",
        "a table of all nodes with room × copies",
        "20 gangs of 512 pods on 10,000 nodes, spread: a cycle takes 30 ms instead of 375",
        _SCALE,
        "flowsched.scheduling.placement.gang",
        _nearest,
    ),
    SecondWay(
        "filling",
        "binpack fills the cheapest nodes in their order",
        "a table of nodes × copies, and its smallest entries",
        "20 gangs of 512 small pods on 10,000 nodes, binpack: a cycle takes 6 ms instead of 107",
        _SCALE,
        "flowsched.scheduling.placement.gang",
        _filling,
    ),
    SecondWay(
        "one_move",
        "one task moves in the state table by plain numbers",
        "arrays, as for many tasks",
        "4,640 instead of 4,210 pods a CPU second through the engine",
        "python bench/scale.py simulated --quick",
        "flowsched.workflow.run.moves",
        _one_move,
    ),
    SecondWay(
        "json_pieces",
        "a large body is parsed in pieces",
        "one call of the parser, which holds the interpreter lock",
        "while a client posts a million unknown keys (13.9 MB), the longest answer of `/livez` takes 85 ms instead of 1.0 to 1.6 s",
        "python bench/poison.py --kinds keys --count 2 --no-kill",
        "flowsched.workflow.json_pieces",
        _json_pieces,
    ),
    SecondWay(
        "small_bodies",
        "a body of at most 32 KiB is parsed on the event loop",
        "one of two threads, as for larger bodies",
        "a TES create beside four clients that post documents of 0.9 MB: 0.3 s instead of 0.7 to 2.4",
        f"{_TES} --beside 4",
        "flowsched.aside",
        _small_bodies,
    ),
    SecondWay(
        "remembered_documents",
        "the leader takes the document that its process has just decoded",
        "the document is read back and decoded again",
        "CPU of a TES create: 2.1 instead of 3.4 ms; 16 connections: 1.1 instead of 1.3 ms",
        _TES,
        "flowsched.control.documents",
        _remembered_documents,
    ),
    SecondWay(
        "remembered_answers",
        "a poll of a TES task is answered from memory",
        "rows, unpacked for each poll",
        "CPU of a poll: 0.18 instead of 0.99 ms",
        _TES,
        "flowsched.control.tes",
        _remembered_answers,
    ),
    SecondWay(
        "sqlite_cursor",
        "the group writer uses SQLite's own connection",
        "SQLAlchemy's",
        "CPU of a TES create over one connection: 2.2 instead of 2.6 ms; of a run of 500 tasks: 3.6 instead of 4.2 s",
        f"{_TES}; {_RUN}",
        "flowsched.store.database",
        _sqlite_cursor,
    ),
    SecondWay(
        "new_schema",
        "a new SQLite file gets its schema by one script",
        "Alembic and its revisions",
        "CPU of the first run on a root: 1.56 instead of 1.69 s",
        _RUN,
        "flowsched.store.database",
        _new_schema,
    ),
    SecondWay(
        "own_http",
        "calls to the API server go over our own connections",
        "aiohttp, as behind a proxy",
        "CPU of a pod: 410 instead of 690 µs; of a binding of a foreign pod: 195 instead of 340 µs",
        "python bench/kube/backlog.py --nodes 500 --stages 20 --width 100 --pods 2000 --rounds 1",
        "flowsched.cluster.kubernetes.api.client",
        _own_http,
    ),
    SecondWay(
        "bare_socket",
        "commands that Cromwell starts ask over a bare socket",
        "http.client, as for HTTPS",
        "CPU of `flowsched cromwell alive`: 51 instead of 69 ms",
        "perf stat -r 15 flowsched cromwell alive ID",
        "flowsched.client.plain",
        _bare_socket,
    ),
    SecondWay(
        "quick_exit",
        "a command ends without taking down what is loaded",
        "Python's exit",
        "CPU of `flowsched ls`: 1.15 instead of 1.47 s; none of a `run`, which has threads",
        "perf stat -r 15 flowsched ls",
        "flowsched.__main__",
        _quick_exit,
    ),
)


def table() -> str:
    """The table of docs/architecture.md."""
    rows = [
        f"| `{way.name}`: {way.way} (`{way.module.removeprefix('flowsched.')}`) | {way.instead_of} | {way.gain} | `{way.command}` |"
        for way in WAYS
    ]
    return "\n".join(["| way | instead of | gain end to end | command |", "|---|---|---|---|", *rows])


class _Leaving(MetaPathFinder):
    """Changes modules right after they are loaded, before another module copies names from them."""

    def __init__(self, ways: Sequence[SecondWay]) -> None:
        self._left = {way.module: [each for each in ways if each.module == way.module] for way in ways}

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        ways = self._left.pop(name, None)
        spec = importlib.util.find_spec(name) if ways else None
        if ways is None or spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def changed(module: ModuleType) -> None:
            run(module)
            for way in ways:
                way.leave(module)

        spec.loader.exec_module = changed  # type: ignore[method-assign]
        return spec


@functools.cache
def left_out() -> Sequence[SecondWay]:
    """The ways that FLOWSCHED_WITHOUT names."""
    names = [name for name in os.environ.get(VARIABLE, "").split(",") if name]
    unknown = set(names) - {way.name for way in WAYS}
    if unknown:
        raise SystemExit(
            f"{VARIABLE}: {', '.join(sorted(unknown))}: one of {', '.join(way.name for way in WAYS)} was expected"
        )
    return [way for way in WAYS if way.name in names]


def needs(name: str) -> pytest.MarkDecorator:
    """Marks a test that is about a way itself."""
    import pytest

    return pytest.mark.skipif(any(way.name == name for way in left_out()), reason=f"without {name}")


def leave_out() -> None:
    """Take them out of this process, before it imports flowsched, and of its children."""
    if not left_out():
        return
    sys.meta_path.insert(0, _Leaving(left_out()))
    folder = str(Path(__file__).with_name("without"))
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if folder not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, paths)])
