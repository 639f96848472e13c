"""Memory that fits, on real runs: their tasks again on eight nodes, with requests that flowsched chooses.

    python bench/memory.py [--data DIR] [--ruler FILE] [--only NAME,…] [--oom end|half] [--json FILE]

DIR holds traces of tasks with their presets and peaks, FILE is the ruler (default: `../shared/data/memory` and
`../shared/tools/memory.py`), which is not part of a clone. Printed for each trace: makespan ÷ that with presets, tries that ran
out of memory, and used ÷ given memory, beside the ruler's own sizers. `FILE --sizer bench/memory.py` runs any other trace.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from flowsched.workflow.estimates import Estimates, Measured

SHARED = Path(__file__).resolve().parents[2] / "shared"
#: Trace -> gigabytes of a node, and the goals: makespan ÷ presets, must and stretch.
TRACES = {"rnaseq": (80, 0.58, 0.50), "rangeland": (64, 0.23, 0.222), "mag": (128, 0.95, 0.88)}
NODES, CORES = 8, 32


class Sizer:
    """Requests as the service makes them: it learns in `Estimates`, and a try that fails gets what its task asked for."""

    def __init__(self) -> None:
        self.estimates = Estimates()

    def request(self, task: Any, now_s: float) -> int:
        """The first request of a task."""
        del now_s
        return self.estimates.memory_request(
            "", task.process, task.preset_bytes, task.waiting, task.input_bytes
        )

    def finished(self, task: Any, peak_bytes: int, runtime_s: float) -> None:
        """A try that ended well."""
        measured = Measured(task.input_bytes, memory_bytes=peak_bytes)
        self.estimates.learn("", task.process, max(1, round(runtime_s * 1000)), measured)

    def failed(self, task: Any, given_bytes: int) -> int:
        """The next request after a try that ran out of memory."""
        del given_bytes
        return int(task.preset_bytes)


def load_ruler(path: Path) -> ModuleType:
    """The ruler, as a module."""
    spec = importlib.util.spec_from_file_location("memory_ruler", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def measured(ruler: ModuleType, trace: Path, gigabytes: int, oom: float) -> dict[str, Any]:
    """Makespan ÷ presets, failed tries and used ÷ given memory of each sizer on one trace."""
    tasks, truth = ruler.read(str(trace))
    sizers = {
        "presets": ruler.Preset(),
        "largest + 10 %": ruler.Largest(),
        "exact": ruler.Exact(truth),
        "flowsched": Sizer(),
    }
    found: dict[str, Any] = {}
    base = 0.0
    for name, sizer in sizers.items():
        makespan, failures, used = ruler.replay(tasks, truth, sizer, NODES, CORES, gigabytes * 1e9, oom)
        base = base or makespan
        found[name] = {
            "ratio": makespan / base,
            "failed": failures,
            "failed_percent": 100 * failures / len(tasks),
            "used_percent": 100 * used,
        }
    return found


def main() -> None:
    """Run the traces and print their figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=SHARED / "data" / "memory")
    parser.add_argument("--ruler", type=Path, default=SHARED / "tools" / "memory.py")
    parser.add_argument("--only", default=",".join(TRACES))
    parser.add_argument(
        "--oom", choices=["end", "half"], default="end", help="when a try that is too small ends"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    missing = [path for path in (options.ruler, options.data) if not path.exists()]
    if missing:
        print(f"skipped: {missing[0]} is missing; --ruler and --data say where the ruler and the traces are")
        return
    ruler = load_ruler(options.ruler)
    figures = {}
    for name in options.only.split(","):
        gigabytes, must, stretch = TRACES[name]
        trace = options.data / f"{name}.csv.gz"
        figures[name] = measured(ruler, trace, gigabytes, 0.5 if options.oom == "half" else 1.0)
        print(f"{name}, nodes of {gigabytes} GB; must {must}, stretch {stretch}, at most 1 % failed")
        for sizer, of in figures[name].items():
            print(
                f"  {sizer:15} ÷ presets {of['ratio']:.3f}  failed {of['failed']:4} ({of['failed_percent']:.1f} %)  "
                f"memory used ÷ given {of['used_percent']:.0f} %",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
