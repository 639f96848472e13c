"""Views in, rich renderables out. Pure: nothing is printed, asked or timed here.

All text from elsewhere goes through `terminal_text.line` and into `Text`, which knows no markup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from flowsched.cli.printing import terminal_text
from flowsched.cli.printing.columns import Column, Columns
from flowsched.workflow.memory import fitted_text
from flowsched.workflow.resources import format_span
from flowsched.workflow.views import (
    CacheView,
    ExplanationView,
    NodeView,
    QueueView,
    StageView,
    TaskView,
    WorkflowView,
)

#: The groups of states in a bar and a line of progress, in the order of a task's life backwards.
GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "done": ("SUCCEEDED",),
    "failed": ("FAILED",),
    "running": ("RUNNING", "RELEASING"),
    "starting": ("ALLOCATED", "BINDING"),
    "staging": ("STAGING",),
    "queued": ("QUEUED",),
    "dropped": ("CANCELLED", "SKIPPED"),
}
_BARS: Final = {
    "done": ("█", "green"),
    "failed": ("█", "red"),
    "running": ("▓", "cyan"),
    "starting": ("▒", "cyan"),
    "staging": ("▒", "yellow"),
    "queued": ("░", "default"),
    "dropped": ("·", "dim"),
}
_STATE_STYLES: Final = {
    "SUCCEEDED": "green",
    "FAILED": "bold red",
    "RUNNING": "cyan",
    "STARTING": "cyan",
    "STAGING": "yellow",
    "QUEUED": "yellow",
    "CANCELLED": "magenta",
    "CANCELLING": "magenta",
    "PAUSED": "yellow",
    "ENGINE": "blue",
    "SKIPPED": "dim",
    "PENDING": "dim",
}
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
BAR_WIDTH: Final = 24
#: The groups that have not ended.
_MOVING: Final = ("running", "starting", "staging", "queued")
#: An id begins with the millisecond of its submission: so many characters of it.
_SHORTEST_ID: Final = 10
#: The cells of a whole id and its slash: other commands are given it.
_WHOLE_ID: Final = 23
#: Engines submit calls within one millisecond, and begin the ids of their runs with a date, or with their own name.
_SHORTEST_OF_ENGINES: Final = 16
#: Of more different return codes only the number of tasks is shown.
MOST_CODES: Final = 2
#: How an estimate says that a runtime is unknown, before the time that the task counts as.
_COUNTED_AS: Final = "runtime unknown, counted as "


def size(number: int) -> str:
    """Bytes for people: `1.5 GiB`."""
    amount, unit = float(number), 0
    while amount >= 1023.95 and unit < len(_UNITS) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f} {_UNITS[unit]}" if unit else f"{number} B"


def rate(number: int) -> str:
    """Bytes a second for people: `500.0 MiB/s`."""
    return f"{size(number)}/s"


def seconds(number: float) -> str:
    """A span for people: `0.4s`, `12s`, `3m05s`, `2h07m`, `3d04h`."""
    if number < 10:
        return f"{number:.1f}s"
    whole = round(number)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def hours(amount: float) -> str:
    """Two decimal places, four where there is little."""
    return "0" if not amount else f"{amount:,.2f}" if abs(amount) >= 1 else f"{amount:.4f}"


def cores(millicores: int) -> str:
    """Millicores as cores: `2`, `0.5`."""
    return f"{millicores / 1000:g}"


def state(name: str) -> Text:
    """A state in its colour."""
    return Text(terminal_text.line(name), _STATE_STYLES.get(name, ""))


def state_of(view: WorkflowView | StageView) -> Text:
    """A state, and the exit codes beside 0 of tasks that succeeded: `SUCCEEDED (1× exit 3)`."""
    made = state(view.state)
    if view.returned:
        codes = [f"{number}× exit {code}" for code, number in view.returned.items()]
        if len(codes) > MOST_CODES:
            codes = [f"{sum(view.returned.values())}× exit not 0"]
        made = Text.assemble(made, " ", ("(" + ", ".join(map(terminal_text.line, codes)) + ")", "yellow"))
    return made


def text(value: object, style: str = "") -> Text:
    """Anything from elsewhere, harmless, on one line."""
    return Text(terminal_text.line(str(value)), style)


def grouped(counts: Mapping[str, int]) -> dict[str, int]:
    """Counts by task state as counts by group; what is in no group waits for other stages."""
    return {group: sum(counts.get(name, 0) for name in names) for group, names in GROUPS.items()}


def bar(counts: Mapping[str, int], total: int, width: int = BAR_WIDTH) -> Text:
    """A bar of `width` cells; each group that has a task has a cell while there are cells."""
    made = Text()
    left = width
    for group, number in grouped(counts).items():
        if number and left and total:
            cells = min(left, max(1, number * width // total))
            made.append(_BARS[group][0] * cells, _BARS[group][1])
            left -= cells
    return made.append(" " * left)


def progress(stages: Sequence[StageView], *, rows: int = 40, head: RenderableType | None = None) -> Group:
    """A line for each stage while a workflow runs, of many stages for those where something happens; why the first one waits.

    Args:
        stages: In the document's order.
        rows: At most so many lines; the rest is summed up in one.
        head: A line above.
    """
    chosen = stages if len(stages) <= rows else sorted(stages, key=_interest)[: max(1, rows - 1)]
    numbers = {stage.number for stage in chosen}
    waiting = (each.number for each in stages if each.waiting and each.state not in ("PENDING", "RUNNING"))
    first = next(waiting, None)
    table = Columns(
        [stage for stage in stages if stage.number in numbers],
        Column("STAGE", lambda view: text(view.name, "bold"), cut=True, whole=True),
        Column("", lambda view: bar(view.counts, view.width * view.members), rank=3, whole=True),
        Column("DONE", done, right=True, whole=True),
        Column("NOW", lambda view: moving(view.counts, (*_MOVING, "failed", "dropped")), rank=1),
        Column("LOCAL", lambda view: size(view.bytes_local), rank=4, right=True),
        Column("MOVED", lambda view: size(view.bytes_moved), rank=5, right=True),
        note=lambda view: why(view) if view.number == first else None,
    )
    ended = sum(stage.state in ("SUCCEEDED", "SKIPPED") for stage in stages)
    more = Text(f"… {len(stages)} stages in all, {ended} of them done", "dim")
    return Group(*([] if head is None else [head]), table, *([more] if len(stages) > len(numbers) else []))


def _interest(stage: StageView) -> int:
    """Failed and running first, then what is ready, then what waits for others, then what is done."""
    order = (
        "FAILED",
        "RUNNING",
        "STARTING",
        "STAGING",
        "QUEUED",
        "PENDING",
        "CANCELLED",
        "SUCCEEDED",
        "SKIPPED",
    )
    return order.index(stage.state) if stage.state in order else 2


def done(stage: StageView) -> str:
    """Its tasks that have succeeded, of all."""
    return f"{grouped(stage.counts)['done']}/{stage.width * stage.members}"


def workflow_head(view: WorkflowView, now: datetime | None = None) -> Text:
    """A workflow in one line."""
    made = Text.assemble(text(view.name, "bold"), " ", text(view.id, "dim"), " ", state_of(view))
    if view.user:
        made.append(" of user ", "dim").append_text(text(view.user, "dim"))
    began, end = view.started_at or view.created_at, view.ended_at or now
    if end is not None:
        made.append(f" after {seconds(max(0.0, (end - began).total_seconds()))}", "dim")
    if view.paused and view.state != "PAUSED":
        made.append(" (paused)", "yellow")
    if view.reason:
        made.append(" ").append_text(text(view.reason))
    return made


def short_ids(idents: Sequence[str], least: int = _SHORTEST_ID) -> dict[str, str]:
    """The beginning of each id: as many characters of all as tell them apart, and no fewer than `least`."""
    for length in range(least, 100):
        if len({ident[:length] for ident in idents}) == len(set(idents)):
            return {ident: ident[:length] for ident in idents}
    return {ident: ident for ident in idents}


def moving(counts: Mapping[str, int], groups: Sequence[str] = _MOVING) -> Text:
    """Counts of the tasks that have not ended, or of other groups: `2 running, 4 queued`."""
    found = grouped(counts)
    parts = [Text(f"{found[group]} {group}", _BARS[group][1]) for group in groups if found[group]]
    return Text(", ").join(parts)


def why(view: WorkflowView | StageView, now: datetime | None = None) -> Text | None:
    """Why it waits, or ended as it did; None where there is nothing to say. `now`: say in how long its first task starts, too."""
    waiting = view.waiting
    if waiting is None:
        return text(view.reason, "red" if view.state == "FAILED" else "dim") if view.reason else None
    stage = "" if isinstance(view, StageView) else f"{waiting.stage}: "
    start, low, high = "", waiting.start_low_at, waiting.start_high_at
    if now is not None and low is not None and high is not None:
        low_ms, high_ms = (round(1000 * (at - now).total_seconds()) for at in (low, high))
        start = f"starts in {format_span(low_ms, high_ms)}; "
    return text(f"{stage}{start}{waiting.message}", "yellow")


def _first_sentence(reason: Text | None) -> Text | None:
    """The first sentence of a reason, for lists: `show` and `explain` have all of it."""
    end = -1 if reason is None else reason.plain.find(". ")
    return reason if reason is None or end < 0 else reason[: end + 1].append(" …")


def workflow_table(workflows: Sequence[WorkflowView], now: datetime, *, brief: bool = True) -> Columns:
    """A list of workflows. `brief`: ids are cut: any command takes the beginning of one."""
    # A list may be a part of what is there: ids in it are longer than it alone demands.
    shown = short_ids([view.id for view in workflows])
    of_engines = [view.id for view in workflows if view.source or view.run]
    shown |= short_ids(of_engines, max([_SHORTEST_OF_ENGINES, *map(len, shown.values())]))

    def took(view: WorkflowView) -> str:
        span = (view.ended_at or now) - (view.started_at or view.created_at)
        return seconds(max(0.0, span.total_seconds()))

    several = len({view.user for view in workflows}) > 1
    return Columns(
        workflows,
        Column("NAME", lambda view: text(view.name, "bold"), cut=True, whole=True),
        Column("ID", lambda view: text(shown[view.id] if brief else view.id), whole=True),
        Column("STATE", state_of, whole=True),
        Column("DONE", lambda view: f"{grouped(view.counts)['done']}/{view.tasks}", right=True, whole=True),
        Column("FAILED", lambda view: str(grouped(view.counts)["failed"]), rank=3, right=True),
        Column("NOW", lambda view: moving(view.counts), rank=2),
        Column("TIME", took, rank=1, right=True),
        Column("QUEUE", lambda view: text(view.queue), rank=5, cut=True),
        *([Column("USER", lambda view: text(view.user), rank=3, cut=True)] if several else ()),
        Column("CREATED", lambda view: moment(view.created_at), rank=4),
        note=lambda view: _first_sentence(why(view, now)),
    )


def stage_table(stages: Iterable[StageView]) -> Columns:
    """Waits and moved bytes of each stage's tasks; seconds are sums over its tasks. Below: why, and saved memory."""

    def notes(view: StageView) -> Text | None:
        memory = fitted_memory(view)
        return Text("\n").join(filter(None, [why(view), text(memory, "dim")])) if memory else why(view)

    return Columns(
        stages,
        Column("STAGE", lambda view: text(view.name, "bold"), cut=True, whole=True),
        Column("STATE", state_of, whole=True),
        Column("DONE", done, right=True, whole=True),
        Column("FAILED", lambda view: str(grouped(view.counts)["failed"]), rank=4, right=True),
        Column("CACHED", lambda view: str(view.cached or ""), rank=2, right=True),
        Column("NOW", lambda view: moving(view.counts) or _not_started(view), rank=1),
        Column("QUEUED", lambda view: seconds(view.queued_seconds), rank=5, right=True),
        Column("STAGING", lambda view: seconds(view.staging_seconds), rank=6, right=True),
        Column("RAN", _ran, right=True),
        Column("LOCAL", lambda view: size(view.bytes_local), rank=3, right=True),
        Column("MOVED", lambda view: size(view.bytes_moved), rank=2, right=True),
        note=notes,
    )


def fitted_memory(view: StageView) -> str:
    """The memory that attempts of a stage asked for and were given, and what that saved; "" where none was given less."""
    found = view.fitted_memory
    if found is None:
        return ""
    attempts = f"{found.attempts} attempt{'s' * (found.attempts != 1)}"
    saved = (
        f"{hours(abs(found.saved_gib_hours))} GiB-hours {'lost' if found.saved_gib_hours < 0 else 'saved'}"
    )
    return f"{fitted_text(found.asked_bytes, found.given_bytes, attempts)}; {saved}"


def _ran(view: StageView) -> str:
    return "<0.1s" if 0 < view.running_seconds < 0.05 else seconds(view.running_seconds)


def _not_started(view: StageView) -> Text:
    """Of a stage that failed, how many tasks were cancelled for that."""
    left = view.counts.get("CANCELLED", 0) if view.state == "FAILED" else 0
    return text(f"{left} cancelled" if left else "", _STATE_STYLES["CANCELLED"])


def cache_table(found: Iterable[CacheView]) -> Columns:
    """The results of look-ups in the cache of results."""
    views = list(found)
    parts = Counter(view.stage for view in views)

    def which(view: CacheView) -> Text:
        more = ["…"] if view.shards > len(view.which) else []
        return text(", ".join([*view.which, *more]) if parts[view.stage] > 1 else "")

    def result(view: CacheView) -> Text:
        return Text(
            *(("CACHED", "green") if view.source else ("RAN", "") if view.ran else ("NOT RUN", "dim"))
        )

    return Columns(
        views,
        Column("STAGE", lambda view: text(view.stage, "bold"), cut=True, whole=True),
        Column("TASKS", lambda view: str(view.shards), right=True, whole=True),
        Column("WHICH", which, rank=1, cut=True),
        Column("RESULT", result, whole=True),
        Column("FROM", lambda view: text(view.source), cut=True, least=_WHOLE_ID + 1),
        note=lambda view: text(view.why),
        noted="WHY",
    )


def task_table(tasks: Sequence[TaskView]) -> Columns:
    """A list of tasks. Their QoS classes are told where they differ."""
    classes = len({view.qos for view in tasks})

    def ran(view: TaskView) -> str:
        begin, end = view.started_at, view.ended_at
        return "" if begin is None or end is None else seconds((end - begin).total_seconds())

    return Columns(
        tasks,
        Column("STAGE", lambda view: text(view.stage, "bold"), cut=True, whole=True),
        Column("INDEX", lambda view: str(view.index), right=True, whole=True),
        Column("ROLE", lambda view: text(view.role), rank=5, cut=True),
        Column("ITEM", lambda view: text(view.item or ""), rank=1, cut=True, least=20, end=True),
        Column("STATE", lambda view: state(view.state), whole=True),
        Column("QOS", lambda view: view.qos if classes > 1 else "", rank=9),
        Column("ATTEMPT", lambda view: str(view.attempt), rank=3, right=True),
        Column("NODE", lambda view: text(view.node or ""), rank=2, cut=True),
        Column(
            "EXIT", lambda view: "" if view.exit_code is None else str(view.exit_code), rank=2, right=True
        ),
        Column("RAN", ran, rank=2, right=True),
        Column("LOCAL", lambda view: size(view.bytes_local), rank=7, right=True),
        Column("MOVED", lambda view: size(view.bytes_moved), rank=6, right=True),
        note=lambda view: text(view.reason, "dim") if view.reason else None,
    )


#: The amounts of a queue: a line for each below it.
_AMOUNTS: Final = ("used", "deserved", "pending", "recent", "guarantee", "cap")


def queue_panel(queues: Sequence[QueueView]) -> Group:
    """A list of queues, with their users, and what of their settings cannot be kept."""

    def flags(view: QueueView) -> Text:
        found = {
            "paused": view.paused, "fifo": view.order == "fifo", "keeps": not view.reclaimable,
            f"priority {view.priority}": view.priority != 0,
        }  # fmt: skip
        return text(", ".join(note for note, holds in found.items() if holds))

    def below(view: QueueView) -> Text:
        rows = [(name, getattr(view, name)) for name in _AMOUNTS]
        return Text("\n").join(
            Text.assemble((f"{name:<11}", "dim"), amounts(each)) for name, each in rows if each
        )

    users = [(view, user) for view in queues for user in view.users]
    table_of_users = Columns(
        users,
        Column("QUEUE", lambda row: text(row[0].name), cut=True, whole=True),
        Column("USER", lambda row: text(row[1].user or "-"), cut=True, whole=True),
        Column("USED", lambda row: amounts(row[1].used), whole=True),
        Column("RECENT", lambda row: amounts(row[1].recent), whole=True),
    )
    warnings = [text(f"queue {view.name}: {warning}") for view in queues for warning in view.warnings]
    table = queue_table(queues, Column("NOTES", flags), note=below)
    return Group(table, *([Text(), table_of_users] if users else ()), *warnings)


def queue_table(queues: Sequence[QueueView], *more: Column, note: Callable[[Any], Text | None]) -> Columns:
    """The amounts of queues, and their waiting work."""
    return Columns(
        queues,
        Column("QUEUE", lambda view: text(view.name), cut=True, whole=True),
        Column("PARENT", lambda view: text(view.parent or ""), rank=4, cut=True),
        Column("WEIGHT", lambda view: str(view.weight), rank=5, right=True, whole=True),
        Column("SHARE", lambda view: f"{view.dominant_share:.0%}", right=True, whole=True),
        Column("WAITING", lambda view: str(view.waiting), right=True, whole=True),
        Column("STARTING", lambda view: str(view.starting), rank=3, right=True, whole=True),
        Column("RUNNING", lambda view: str(view.running), right=True, whole=True),
        *more,
        note=note,
        noted="AMOUNTS",
    )


#: The words for the states of a node, as the page has them.
_NODE_STATES: Final = {
    "READY": ("ready", "green"),
    "DRAINING": ("draining", "yellow"),
    "DRAINED": ("drained", "yellow"),
    "CORDONED": ("cordoned", "yellow"),
    "NOT_READY": ("not ready", "bold red"),
}


def node_state(view: NodeView) -> Text:
    """Whether tasks may start on a node."""
    return Text(*_NODE_STATES.get(view.state, (view.state.lower(), "")))


def node_panel(nodes: Sequence[NodeView]) -> RenderableType:
    """A list of nodes, and below it what is to be known of those that take no tasks, or soon none."""
    notes = [text(f"{view.name}: {note}", "yellow") for view in nodes for note in _node_notes(view)]
    return Group(node_table(nodes), *([Text(), *notes] if notes else ()))


def _node_notes(view: NodeView) -> Iterator[str]:
    drain = view.drain
    if view.state == "NOT_READY":
        yield "not ready" + (f": {view.message}" if view.message else "")
    if drain is None:
        return
    words = "drained" if view.state != "READY" else "will be drained"
    by = (f" by {drain.by}" if drain.by else "") + (f": {drain.reason}" if drain.reason else "")
    until = "" if drain.until_at is None else f"; what runs at {moment(drain.until_at)} is moved"
    yield f"{words} from {moment(drain.from_at)} on{by}{until}"


def node_table(nodes: Iterable[NodeView]) -> Columns:
    """A list of nodes: used of allocatable, and what their caches hold and moved."""
    return Columns(
        nodes,
        Column("NODE", lambda view: text(view.name), cut=True, whole=True),
        Column("STATE", node_state, whole=True),
        Column("RACK", lambda view: text(view.rack), rank=6, cut=True),
        *node_amounts(),
        Column("CACHE", _cached, rank=1, right=True),
        Column("DATASETS", lambda view: str(view.datasets), rank=4, right=True),
        Column("IN", lambda view: size(view.bytes_in), rank=2, right=True),
        Column("OUT", lambda view: size(view.bytes_out), rank=3, right=True),
    )


def _cached(view: NodeView) -> str:
    limit = f"/{size(view.cache_limit_bytes)}" if view.cache_limit_bytes else ""
    return size(view.cache_bytes) + limit


def node_amounts(bar: Callable[[int, int], Text] | None = None) -> Iterator[Column]:
    """How many tasks a node has, and used of allocatable. `bar`: draws used of allocatable, too."""

    def part(name: str, form: Callable[[int], str]) -> Callable[[NodeView], str]:
        return lambda view: (
            f"{form(view.used.get(name, 0))}/{form(view.allocatable.get(name, 0))}"
            if view.allocatable.get(name) or name != "gpu"
            else ""
        )

    def drawn(name: str) -> Callable[[NodeView], Text | str]:
        return lambda view: "" if bar is None else bar(view.used.get(name, 0), view.allocatable.get(name, 0))

    yield Column("TASKS", lambda view: str(view.starting + view.running), right=True, whole=True)
    yield Column("CPU", part("cpu", cores), right=True, whole=True)
    if bar is not None:
        yield Column("", drawn("cpu"), rank=3)
    yield Column("MEMORY", part("memory", size), right=True, whole=True)
    if bar is not None:
        yield Column("", drawn("memory"), rank=4)
    yield Column("GPU", part("gpu", cores), right=True)


def explain_panel(explanations: Sequence[ExplanationView], now: datetime | None = None) -> RenderableType:
    """Why something does not run, one paragraph per reason."""
    if not explanations:
        return Text("Nothing waits. Why a task went to its node: flowsched explain ID STAGE INDEX.", "green")
    parts: list[RenderableType] = []
    for view in explanations:
        tasks = f"{view.tasks} task{'s' * (view.tasks != 1)} " if view.tasks else ""
        head = Text.assemble(text(view.stage, "bold"), f"  {tasks}", state(view.state), "  ")
        parts.append(head.append_text(text(view.code, "yellow")))
        if view.message:
            parts.append(_below(text(view.message)))
        if len(view.shards) > 1:
            shards = ", ".join(view.items or map(str, view.shards))
            others = f" and {view.others} other{'s' * (view.others != 1)}" if view.others else ""
            parts.append(_below(text(f"{'' if view.items else 'shards '}{shards}{others}", "dim")))
        if view.start_at is not None:
            left = 1.0 if now is None else (view.start_at - now).total_seconds()
            wait = "" if now is None else f", in {seconds(left)}" if left >= 0.05 else ": any moment"
            counted = view.estimate.partition(_COUNTED_AS)[2].partition(";")[0]
            guess = f"; tasks of unknown runtime count as {counted}" if counted else ""
            by = "by " if guess else ""
            parts.append(_below(Text(f"expected to start {by}{moment(view.start_at)}{wait}{guess}")))
        if view.start_low_at is not None and view.start_high_at is not None:
            low, high = moment(view.start_low_at), moment(view.start_high_at)
            if low != high:
                parts.append(_below(Text(f"eight of ten such starts come between {low} and {high}", "dim")))
        if view.last_low_at is not None and view.last_high_at is not None:
            low, high = moment(view.last_low_at), moment(view.last_high_at)
            parts.append(_below(Text(f"the last of them starts between {low} and {high}", "dim")))
        if view.estimate:
            parts.append(_below(Text(view.estimate, "dim")))
        if view.binds:
            parts.append(_below(Text("binds: ").append_text(text(", ".join(view.binds)))))
        for at, suggestion in enumerate(view.suggestions):
            lead = "to start it: " if at == 0 else "or: "
            parts.append(
                _below(Text(lead, "dim").append_text(text(suggestion.message, "green" if at == 0 else "")))
            )
    return Group(*parts)


def _below(content: Text) -> Padding:
    """A text that stands below a head, all its lines indented."""
    return Padding(content, (0, 0, 0, 2), expand=False)


def amounts(resources: Mapping[str, int]) -> Text:
    """Resources of a queue: `cpu 2, memory 4.0 GiB`."""
    shown = {"cpu": cores, "gpu": cores, "memory": size, "disk": size, "io": rate}
    parts = [f"{name} {shown.get(name, str)(number)}" for name, number in resources.items()]
    return text(", ".join(parts))


def moment(at: datetime) -> str:
    """A time for people, in their own zone."""
    return at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def plain_table(*heads: str) -> Table:
    """A plain table.

    `>` in front of a head aligns its column to the right, `=` to the left; both are never cut or folded, since half
    a number or half a state says something else. All others fold where a terminal is narrow.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:
        fixed = head[:1] in (">", "=")
        table.add_column(
            head.lstrip(">="),
            justify="right" if head.startswith(">") else "left",
            no_wrap=fixed,
            overflow="fold",
        )
    return table
