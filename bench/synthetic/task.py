"""Stands in for a task of a trace: reads all of its inputs, keeps cores busy, touches memory, writes files of given sizes.

`python -m bench.synthetic.task --input i0 --manifest i1 --output f0`, with the amounts in FLOWSCHED_ITEM as JSON:
`{"task": "align_7", "cores": 2, "cpu_s": 1.5, "read": 4096, "memory": 0, "write": [100]}`. Inputs and outputs are named as in the
workflow document. It needs the standard library alone, and ends with 1 if it did not find exactly the bytes it should read.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

_BLOCK: Final = 1 << 20
_PAGE: Final = 4096
_HASHED: Final = b"\0" * (256 << 10)  #: hashing releases the interpreter, so threads keep as many cores busy


def main(arguments: Sequence[str] | None = None) -> int:
    """Do the work and say what was done, as one line of JSON; the exit code."""
    parser = argparse.ArgumentParser(prog="bench.synthetic.task", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sleep", action="store_true", help="sleep instead of computing")
    parser.add_argument("--input", action="append", default=[], help="an input that is one file")
    parser.add_argument("--manifest", action="append", default=[], help="an input that lists files")
    parser.add_argument(
        "--output", action="append", default=[], help="an output; sizes in the order of these"
    )
    given = parser.parse_args(arguments)
    work = json.loads(os.environ["FLOWSCHED_ITEM"])
    done = perform(given, work)
    print(json.dumps(done), flush=True)
    if done["read"] != work["read"]:
        print(f"read {done['read']} bytes in {done['files']} files, expected {work['read']}", file=sys.stderr)
        return 1
    return 0


def perform(given: argparse.Namespace, work: dict[str, Any]) -> dict[str, Any]:
    """Read, compute, write.

    Args:
        given: Which inputs and outputs.
        work: `task`, `cores`, `cpu_s` (core-seconds), `read` (bytes), `memory` (bytes), `write` (bytes per output).
    """
    began = time.monotonic()
    sizes = [count_bytes(path) for path in input_paths(given.input, given.manifest)]
    read = time.monotonic()
    memory = touched(work["memory"])
    cores = work["cores"]
    spent = rest(work["cpu_s"] / cores) if given.sleep else burn(work["cpu_s"], cores)
    computed = time.monotonic()
    for name, size in zip(given.output, work["write"], strict=True):
        write_bytes(Path(os.environ[variable("OUTPUT", name)]), size, f"{work['task']}/{name}")
    return {
        "task": work["task"],
        "files": len(sizes),
        "read": sum(sizes),
        "written": sum(work["write"]),
        "touched": len(memory),
        "cpu_s": round(spent, 3),
        "read_s": round(read - began, 3),
        "compute_s": round(computed - read, 3),
        "write_s": round(time.monotonic() - computed, 3),
    }


def variable(kind: str, name: str) -> str:
    """The variable that holds a path: ("INPUT", "i0") gives FLOWSCHED_INPUT_I0."""
    return f"FLOWSCHED_{kind}_{re.sub('[^A-Z0-9]', '_', name.upper())}"


def input_paths(inputs: Sequence[str], manifests: Sequence[str]) -> Iterator[Path]:
    """Every file this task reads."""
    for name in inputs:
        yield Path(os.environ[variable("INPUT", name)])
    for name in manifests:
        for line in Path(os.environ[variable("INPUT", name)]).read_text().splitlines():
            yield Path(line)


def count_bytes(path: Path) -> int:
    """Read a file to its end; how many bytes there were."""
    total = 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            total += len(block)
    return total


def burn(cpu_s: float, cores: int) -> float:
    """Spend CPU time, not time: on a busy machine it takes longer. Returns core-seconds."""
    spent = [0.0] * cores

    def busy(number: int) -> None:
        begin = time.thread_time()
        while spent[number] < cpu_s / cores:
            hashlib.sha256(_HASHED).digest()
            spent[number] = time.thread_time() - begin

    threads = [threading.Thread(target=busy, args=(number,)) for number in range(1, cores)]
    for thread in threads:
        thread.start()
    busy(0)
    for thread in threads:
        thread.join()
    return sum(spent)


def rest(seconds: float) -> float:
    """Sleep; returns the core-seconds that took: none."""
    time.sleep(seconds)
    return 0.0


def touched(size: int) -> bytearray:
    """Memory of so many bytes, every page of it written to."""
    memory = bytearray(size)
    memory[::_PAGE] = b"\1" * len(range(0, size, _PAGE))
    return memory


def write_bytes(path: Path, size: int, seed: str) -> None:
    """A file of exactly so many bytes. They look random, so that no disk makes them fewer, and are the same every time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    block = hashlib.shake_256(seed.encode()).digest(min(size, _BLOCK))
    with path.open("wb") as file:
        while size > 0:
            size -= file.write(block[:size])


if __name__ == "__main__":
    sys.exit(main())
