"""The web page over a run of 10,000 tasks: time to open, frames while scrolling, time from an event to its paint.

    python bench/ui.py [--tasks 10000] [--seconds 5]

A real `flowsched serve` has the run: its first stage ends (200 tasks), the second goes on meanwhile (tasks of 0.3 s, as
many at a time as the virtual nodes have room for), and all others wait: QUEUED or PENDING. Chromium has no window and renders
with the processor (no GPU). Printed: medians over five times of opening in a new tab without a cache, frames per second over the
seconds of scrolling (400 pixels a frame) with the longest gap between two frames, and the times from events to the frame after the
Gantt was drawn anew, from the arrival of the event in the page and from the moment that the service wrote into it.
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.serving.processes import Served, served
from tests.web.browser import browser, missing

SMALL = {"cpu": "500m", "memory": "16Mi"}

#: Runs in the page before it: notes when the Gantt has its rows, when events arrive, and when it was painted after that.
WATCH = """
window.bench = {opened: null, arrived: [], written: []};
const painted = (then) => requestAnimationFrame(() => {
  const channel = new MessageChannel();
  channel.port1.onmessage = then;
  channel.port2.postMessage(0);
});
let waiting = [];
const clear = CanvasRenderingContext2D.prototype.clearRect;
CanvasRenderingContext2D.prototype.clearRect = function (...where) {
  const label = document.querySelector('.gantt-rows')?.getAttribute('aria-label') ?? '';
  const whole = label.includes(`of ${window.benchTasks} tasks`);
  if (bench.opened === null && whole) painted(() => { bench.opened ??= performance.now(); });
  const events = waiting;
  waiting = [];
  if (events.length) painted(() => {
    for (const [arrived, written] of events) {
      bench.arrived.push(performance.now() - arrived);
      bench.written.push(Date.now() - written);
    }
  });
  return clear.apply(this, where);
};
const read = ReadableStreamDefaultReader.prototype.read;
ReadableStreamDefaultReader.prototype.read = function (...args) {
  const result = read.apply(this, args);
  result.then(({value}) => {
    if (typeof value !== 'string') return;
    for (const [, at, kind] of value.matchAll(/"at":"([^"]+)","kind":"([^"]+)"/g)) {
      if (kind === 'task.running' || kind === 'task.succeeded') waiting.push([performance.now(), Date.parse(at)]);
    }
  }, () => {});
  return result;
};
"""

#: Scrolls for so many ms; the gaps between frames.
SCROLL = """
(ms) => new Promise((done) => {
  const box = document.querySelector('.gantt-rows');
  const gaps = [];
  const began = performance.now();
  let last = began, step = 400;
  const frame = (now) => {
    gaps.push(now - last);
    last = now;
    if (box.scrollTop + box.clientHeight >= box.scrollHeight - 1) step = -400;
    if (box.scrollTop <= 0) step = 400;
    box.scrollTop += step;
    if (now - began < ms) requestAnimationFrame(frame);
    else done(gaps.slice(1));
  };
  requestAnimationFrame(frame);
})
"""


def document(tasks: int) -> dict[str, Any]:
    done, rest = 200, tasks - 200
    live = rest * 6 // 10

    def stage(name: str, count: int, command: str, *needs: str) -> dict[str, Any]:
        shell = ["sh", "-c", command]
        return {
            "name": name,
            "command": shell,
            "scatter": {"count": count},
            "needs": list(needs),
            "resources": SMALL,
        }

    stages = [
        stage("prepare", done, "true"),
        stage("align", live, "sleep 0.3", "prepare"),
        stage("call", rest - live, "true", "align"),
    ]
    return {"name": "ten-thousand", "stages": stages}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    if why := missing():
        sys.exit(why)
    with tempfile.TemporaryDirectory() as folder, served(Path(folder, "root"), "--nodes", "2") as service:
        service.ready()
        run = service.get("/api/v1/workflows", document(given.tasks))["id"]
        path = f"/api/v1/workflows/{run}"
        while service.get(path)["counts"].get("SUCCEEDED", 0) < 200:
            time.sleep(0.5)
        counts = service.get(path)["counts"]
        print("tasks:", ", ".join(f"{count:,} {state}" for state, count in counts.items()))
        timeline(service, path)
        page(service, run, given.tasks, given.seconds)
        service.get(f"{path}/cancel", {})
        print(f"load of the machine (1 min): {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def timeline(service: Served, path: str) -> None:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        with urllib.request.urlopen(f"{service.url}{path}/timeline?limit=20000") as answer:
            raw = answer.read()
        times.append(time.perf_counter() - began)
    packed = len(gzip.compress(raw, 6))
    print(
        f"timeline: {len(raw) / 1e3:.0f} kB, packed {packed / 1e3:.0f} kB, {1e3 * statistics.median(times):.0f} ms"
    )


def page(service: Served, run: str, tasks: int, seconds: float) -> None:
    with browser() as chromium:
        opened, counts = [], {}
        for last in (False, False, False, False, True):
            context = chromium.new_context(viewport={"width": 1400, "height": 1000})
            tab = context.new_page()
            tab.add_init_script(f"window.benchTasks = {tasks};{WATCH}")
            tab.goto(f"{service.url}/ui#/runs/{run}")
            while (
                found := tab.evaluate("bench.opened")
            ) is None:  # the page's policy forbids wait_for_function
                time.sleep(0.2)
            opened.append(found)
            if last:
                tab.locator(".gantt-rows").scroll_into_view_if_needed()
                gaps = tab.evaluate(SCROLL, 1000 * seconds)
                tab.wait_for_timeout(1000 * seconds)
                counts = tab.evaluate("bench")
            context.close()
    print(
        f"opened after: {statistics.median(opened):.0f} ms (all: {', '.join(f'{each:.0f}' for each in opened)})"
    )
    rate = 1000 * len(gaps) / sum(gaps)
    late = sum(gap > 20 for gap in gaps) / len(gaps)
    print(
        f"scrolling: {rate:.1f} frames/s, longest gap {max(gaps):.0f} ms, {100 * late:.0f} % of gaps over 20 ms"
    )
    for name, what in (
        ("arrived", "event in the page to paint"),
        ("written", "event in the service to paint"),
    ):
        found = sorted(counts[name])
        if found:
            middle, most = statistics.median(found), found[int(0.95 * len(found))]
            told = f"median {middle:.0f} ms, 95 % {most:.0f} ms, longest {found[-1]:.0f} ms"
            print(f"{what}: {told} ({len(found)} events)")


if __name__ == "__main__":
    main()
