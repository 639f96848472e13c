"""What notebooks show of workflows, runs and views: tables, with everything that comes from elsewhere escaped."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from fake_service import task_view
from far_server import Far

from flowsched import SyncClient, Workflow
from flowsched.client import Views
from flowsched.errors import InvalidRequest, NotFound, Unavailable
from flowsched.workflow.html import table
from flowsched.workflow.views import QueueView, StageView, WaitingView, WorkflowView

HOSTILE = "<script>alert('x')</script>&\""


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.text += data + "|"


def read(html: str) -> _Tags:
    found = _Tags()
    found.feed(html)
    return found


@pytest.fixture
def far() -> Iterator[Far]:
    with Far() as running:
        yield running


def test_a_workflow_shows_its_stages() -> None:
    """How wide they are, what they run, read and write."""
    workflow = Workflow("germline")
    align = workflow.stage(
        "align", command=["bwa", "mem"], scatter=["a", "b"], cpu=4, outputs={"bam": "x.bam"}
    )
    workflow.stage("call", command=["call"], inputs={"bams": align["bam"].all()})
    workflow.gang("train", roles={"worker": {"replicas": 4, "command": ["python", "t.py"]}})
    shown = read(workflow._repr_html_())
    assert shown.text.startswith(
        "workflow germline: 3 stages|stage|tasks|runs|reads|writes|resources|align|2|bwa mem|"
    )
    assert "call|1|call|align.bam|" in shown.text
    assert "1 × gang of worker × 4" in shown.text
    assert repr(workflow) == "Workflow('germline', stages=[align, call, train])"


def test_all_text_is_escaped() -> None:
    """Names, labels, reasons: no tag of theirs is one."""
    why = WaitingView(stage=HOSTILE, tasks=1, state="QUEUED", code=HOSTILE, message=HOSTILE)
    run = WorkflowView(
        id=HOSTILE, name=HOSTILE, queue=HOSTILE, priority=0, labels={HOSTILE: HOSTILE}, state=HOSTILE, reason=HOSTILE,
        waiting=why, created_at=datetime(2026, 1, 1, tzinfo=UTC), stages=1, tasks=1, counts={HOSTILE: 1},
    )  # fmt: skip
    workflow = Workflow(HOSTILE)
    workflow.stage(HOSTILE, command=[HOSTILE])
    queue = QueueView(name=HOSTILE, weight=1, used={HOSTILE: 1}, warnings=[HOSTILE])
    for value in (
        run,
        Views([run]),
        workflow,
        queue,
        StageView(name=HOSTILE, number=0, state=HOSTILE, width=1, members=1),
    ):
        shown = read(value._repr_html_())
        assert shown.tags <= {"table", "thead", "tbody", "tr", "th", "td", "b", "p"}
        assert "<script>alert('x')</script>&\"" in shown.text


def test_numbers_have_their_units() -> None:
    """Bytes, seconds, cores; what says nothing has no column."""
    stage = StageView(name="s", number=0, state="RUNNING", width=2, members=1, counts={"RUNNING": 2},
                      running_seconds=61.5, bytes_moved=3 << 20)  # fmt: skip
    shown = read(Views([stage])._repr_html_()).text
    assert shown == "name|state|counts|running|bytes moved|s|RUNNING|2 RUNNING|1m 1s|3 MiB|"
    queue = QueueView(name="q", weight=1, used={"cpu": 1500, "memory": 1 << 30})
    assert "cpu 1.5, memory 1 GiB" in read(queue._repr_html_()).text


def test_a_long_list_is_cut() -> None:
    """A notebook keeps what it shows."""
    queues = [QueueView(name=f"q{at}", weight=1) for at in range(600)]
    assert "and 100 more" in table(queues, ("name",))
    assert "none" in Views([])._repr_html_()


def test_a_run_shows_how_it_goes(far: Far) -> None:
    """Its state and its stages, as they are when it is shown."""
    with SyncClient(far.url) as client:
        workflow = Workflow("hello")
        workflow.stage("a", command=["true"])
        run = client.submit(workflow)
        shown = read(run._repr_html_()).text
        assert run.id in shown
        assert "align|" in shown  # a stage of the service in memory
        assert "name|state|" in read(client.stages(run.id)._repr_html_()).text  # type: ignore[attr-defined]


def test_what_comes_bit_by_bit_is_a_table_too(far: Far) -> None:
    """To show it takes nothing away; of very many rows the first are shown."""
    with SyncClient(far.url) as client:
        run = client.submit({"name": "hello", "stages": []})
        tasks = run.tasks(stage="align")
        assert next(tasks).index == 0
        assert read(tasks._repr_html_()).text.startswith("stage|index|role|state|")
        assert read(tasks._repr_html_()).text.count("align|") == 2
        assert [task.index for task in tasks] == [1, 2]
        assert "list(…)" in repr(tasks)
        assert "hello" in read(client.list()._repr_html_()).text
        far.service.task_views = [task_view("align", index) for index in range(1_200)]
        many = run.tasks()
        assert "and more than 500" in read(many._repr_html_()).text
        assert len(list(many)) == 1_200


def test_ignored_failures_and_cached_tasks_have_columns() -> None:
    """Where there are any."""
    stage = StageView(name="s", number=0, state="SUCCEEDED", width=2, members=1, returned={"1": 2}, cached=3)
    assert read(Views([stage])._repr_html_()).text == "name|state|returned|cached|s|SUCCEEDED|2× exit 1|3|"


def test_an_error_is_one_line_in_a_notebook() -> None:
    """IPython asks the exception itself."""
    with SyncClient("http://127.0.0.1:9", start_timeout=0) as client, pytest.raises(Unavailable) as raised:
        client.nodes()
    assert raised.value._render_traceback_() == [
        "Unavailable: no answer from http://127.0.0.1:9 (connection refused); is `flowsched serve` running there?"
    ]
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_a_script_ends_with_a_short_traceback_and_nothing_more() -> None:
    """The line of the script, the call, and the sentence; no complaint about connections that stayed open."""
    program = "import flowsched\nflowsched.SyncClient('http://127.0.0.1:9', start_timeout=0).nodes()\n"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    lines = done.stderr.splitlines()
    assert lines[-1].startswith(
        "flowsched.errors.Unavailable: no answer from http://127.0.0.1:9 (connection refused)"
    )
    assert len(lines) <= 10, done.stderr


def test_a_client_that_is_forgotten_ends_its_thread(far: Far) -> None:
    """Notebooks make clients again and again."""
    before = {*threading.enumerate()}
    client = SyncClient(far.url)
    with pytest.raises(NotFound):
        client.get("nothing")
    (own,) = [
        each for each in threading.enumerate() if each.name == "flowsched-client" and each not in before
    ]
    del client
    gc.collect()
    own.join(timeout=60)
    assert not own.is_alive()


def test_a_client_of_the_process_before_a_fork_says_so() -> None:
    """It would wait for ever: the thread that asks is not in the child."""
    program = (
        "import os, flowsched\n"
        "client = flowsched.SyncClient('http://127.0.0.1:9', start_timeout=0)\n"
        "child = os.fork()\n"
        "if child:\n"
        "    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
        "try:\n"
        "    client.nodes()\n"
        "except RuntimeError as error:\n"
        "    os._exit(7 if 'make a client in each process' in str(error) else 1)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 7


def test_a_run_in_place_of_its_id_is_told() -> None:
    expected = pytest.raises(InvalidRequest, match=r"found int as the id of a workflow.*run\.id")
    with SyncClient("http://127.0.0.1:9", start_timeout=0) as client, expected:
        client.get(5)  # type: ignore[arg-type]
