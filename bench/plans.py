"""What a plan of a WDL run is worth: the makespan of three pipelines under miniwdl on a full machine, with and without.

    python bench/plans.py [--runs 4] [germline rnaseq imputation]      (some 25 minutes; the tasks sleep)

Each pipeline (bench/wdl) has side branches that nothing waits for, beside a long way to its end, and more work than a node of
8 cores can do at once. A first run without a plan teaches flowsched how long each call takes. Then runs with and without a plan
alternate. A makespan is from the first start of a task to the last end of one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ["FLOWSCHED_IMAGES"] = "ignore"

from tests.wdl.engine import Engine, Service  # noqa: E402

PIPELINES = ("germline", "rnaseq", "imputation")


def makespan_s(service: Service, engine: Engine, pipeline: str, name: str, *, planned: bool) -> float:
    engine.settings = {
        "MINIWDL__FLOWSCHED__PLAN": "true" if planned else "false",
        "MINIWDL__SCHEDULER__TASK_CONCURRENCY": "100",
    }
    run = engine.run(ROOT / "bench/wdl" / f"{pipeline}.wdl", name=name)
    if run.end(900):
        raise SystemExit(run.said)
    attempts = [attempt for task in service.tasks(run) for attempt in task.attempts]
    started = [attempt.started_at for attempt in attempts if attempt.started_at is not None]
    ended = [attempt.ended_at for attempt in attempts if attempt.ended_at is not None]
    return (max(ended) - min(started)).total_seconds()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("pipelines", nargs="*", default=PIPELINES)
    parser.add_argument("--runs", type=int, default=4, help="runs with, and as many without")
    options = parser.parse_args()
    print(f"{'pipeline':12}{'without, s':>12}{'with, s':>10}{'with / without':>16}")
    for pipeline in options.pipelines:
        with tempfile.TemporaryDirectory(prefix="flowsched-plans-") as folder:
            service = Service(Path(folder, "root"), nodes=("--nodes", "1", "--cpu", "8", "--memory", "16Gi"))
            service.start()
            engine = Engine(service, Path(folder))
            try:
                makespan_s(service, engine, pipeline, "first", planned=False)
                spans: dict[bool, list[float]] = {False: [], True: []}
                for number in range(options.runs):
                    for planned in (number % 2 == 1, number % 2 == 0):
                        spans[planned].append(
                            makespan_s(service, engine, pipeline, f"{number}-{planned}", planned=planned)
                        )
            finally:
                engine.close()
                service.stop()
        without, with_plan = statistics.median(spans[False]), statistics.median(spans[True])
        print(f"{pipeline:12}{without:12.1f}{with_plan:10.1f}{with_plan / without:16.3f}", flush=True)


if __name__ == "__main__":
    main()
