"""All routes of the API in one table. Dispatch, access control, OpenAPI and tests read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from flowsched.api.handlers import cluster, extender, pages, plans, policy, streams, tes, workflows
from flowsched.api.problems import MEDIA as PROBLEM
from flowsched.api.routes import PREFIX, Answer, Body, Policy, Process, Query, Route
from flowsched.values import replace
from flowsched.workflow.formats.tes.task import Task
from flowsched.workflow.views import (
    AttemptPage,
    CacheView,
    CancelledView,
    EventView,
    ExplanationView,
    IdleReportView,
    NodeView,
    PlanBody,
    PlanPage,
    PlanSummary,
    PlanView,
    PluginView,
    ProblemView,
    ProfileView,
    QueueView,
    StageView,
    SubmittedView,
    TaskPage,
    TaskView,
    TimelineView,
    UsageView,
    WorkflowPage,
    WorkflowView,
)

#: They run anywhere.
WORKFLOW_EXAMPLE: Final = {
    "name": "hello",
    "stages": [
        {
            "name": "greet",
            "scatter": {"items": ["Ada", "Grace"]},
            "command": ["sh", "-c", "echo Hello $FLOWSCHED_ITEM > greeting.txt"],
            "outputs": [{"name": "greeting", "path": "greeting.txt"}],
        },
        {
            "name": "join",
            "command": ["sh", "-c", "xargs cat < $FLOWSCHED_INPUT_GREETINGS"],
            "inputs": [{"name": "greetings", "from": "greet.greeting", "match": "all"}],
        },
    ],
}
PROFILE_EXAMPLE: Final = {
    "default": "lab",
    "profiles": {"lab": {"packing": "spread"}, "genomics": {"order": "shortest"}},
    "queues": {"germline": "genomics"},
}
TASK_EXAMPLE: Final = {
    "name": "hello",
    "executors": [{"image": "alpine", "command": ["sh", "-c", "echo Hello $WHO"], "env": {"WHO": "Ada"}}],
    "resources": {"cpu_cores": 1, "ram_gb": 0.5},
    "tags": {"project": "greetings"},
}

_W: Final = f"{PREFIX}/workflows"
_ONE: Final = f"{_W}/{{workflow}}"
_TASK: Final = f"{_ONE}/tasks/{{stage}}/{{index}}"

_KEY: Final = {
    "Idempotency-Key": "1-255 printable ASCII characters. The same key and body give the same workflow."
}
_RESUME: Final = {"Last-Event-ID": "Go on after this event; browsers send it by themselves."}
_REASON: Final = Body("Why; may be left out.", workflows.CommandBody, required=False)
_LOG_HEADERS: Final = {
    "Flowsched-Next-Offset": "Where to go on; with `follow` where the answer begins.",
    "Flowsched-More": "`true` when there is more, or may come more.",
}

_OUTPUT_HEADERS: Final = {
    "Content-Disposition": "The file's name.",
    "Content-Length": "How many bytes there are.",
}


def _ok(about: str, kind: Any) -> Mapping[int, Answer]:
    return {200: Answer(about, kind)}


def _text(about: str, media: str, headers: Mapping[str, str] | None = None) -> Mapping[int, Answer]:
    return {200: Answer(about, media=media, headers=headers or {})}


def _built(about: str, media: str) -> Mapping[int, Answer]:
    """A file of the web page, which a checkout has only after `make ui`."""
    return {**_text(about, media), 404: Answer("The page has not been built.", ProblemView, PROBLEM)}


def _health(about: str) -> Mapping[int, Answer]:
    return {200: Answer("It is.", media="text/plain"), 503: Answer(about, media="text/plain")}


_WORKFLOWS: Final[tuple[Route[Any], ...]] = (
    Route(
        "POST", _W, workflows.submit_workflow, Policy.WRITE, "Submit a workflow", Query,
        {
            202: Answer("Accepted: it is never lost.", SubmittedView, headers={"Location": "The workflow."}),
            200: Answer("It had been accepted before, under the same key.", SubmittedView),
        },
        body=Body("The workflow document.", example=WORKFLOW_EXAMPLE), headers=_KEY,
    ),
    Route(
        "GET", _W, workflows.list_workflows, Policy.READ, "List workflows, live ones first",
        workflows.WorkflowsQuery, _ok("One page.", WorkflowPage), process=Process.BEST_LEADER,
    ),
    Route(
        "GET", _ONE, workflows.get_workflow, Policy.READ, "Look at a workflow", Query,
        _ok("The workflow.", WorkflowView), process=Process.BEST_LEADER,
    ),
    Route(
        "GET", f"{_ONE}/document", workflows.get_document, Policy.READ, "Get the document", Query,
        _ok("The document.", dict[str, Any]),
    ),
    Route(
        "GET", f"{_ONE}/stages", workflows.list_stages, Policy.READ, "List the stages", Query,
        _ok("All stages, in the document's order.", list[StageView]), process=Process.BEST_LEADER,
    ),
    Route(
        "GET", f"{_ONE}/tasks", workflows.list_tasks, Policy.READ, "List tasks, by stage and index",
        workflows.TasksQuery, _ok("One page.", TaskPage), tag="tasks",
    ),
    Route(
        "GET", f"{_ONE}/cache", workflows.list_cache, Policy.READ,
        "See which runs its tasks took results from, and why the other tasks ran", Query,
        _ok("By stage; shards that found the same are together.", list[CacheView]),
    ),
    Route(
        "GET", f"{_ONE}/timeline", workflows.get_timeline, Policy.READ,
        "Read when each task waited, staged, ran and ended, as columns of numbers", workflows.TimelineQuery,
        _ok("One page, by stage and index.", TimelineView), tag="tasks", process=Process.BEST_LEADER,
    ),
    Route(
        "GET", f"{_ONE}/attempts", workflows.list_attempts, Policy.READ,
        "List the attempts of all tasks, with what each asked for and used", workflows.AttemptsQuery,
        _ok("One page, by stage, index and attempt.", AttemptPage), tag="tasks",
    ),
    Route(
        "GET", _TASK, workflows.get_task, Policy.READ, "Look at a task with its attempts and outputs", Query,
        _ok("The task.", TaskView), tag="tasks",
    ),
    Route(
        "GET", f"{_TASK}/logs", streams.get_logs, Policy.READ, "Read or follow a log", streams.LogsQuery,
        _text("Bytes of the log.", "text/plain", _LOG_HEADERS), tag="tasks",
    ),
    Route(
        "GET", f"{_TASK}/outputs/{{name}}", streams.get_output, Policy.READ,
        "Get an output; a folder comes as a tar stream", Query,
        {
            200: Answer("Its bytes.", media="application/octet-stream", headers=_OUTPUT_HEADERS),
            409: Answer("It was written, and no node has it any more.", ProblemView, PROBLEM),
        }, tag="tasks",
    ),
    Route(
        "GET", f"{_ONE}/explain", workflows.explain_workflow, Policy.READ, "Explain what does not run",
        workflows.ExplainQuery, _ok("One entry per reason.", list[ExplanationView]), process=Process.LEADER,
    ),
    Route(
        "GET", f"{_TASK}/explain", workflows.explain_task, Policy.READ,
        "Explain why a task does not run, or why it went to its node", Query,
        _ok("Its reasons, or its costs on its node and on the next best ones.", list[ExplanationView]),
        tag="tasks", process=Process.LEADER,
    ),
    Route(
        "POST", "/api/v1/cancel", workflows.cancel_workflows, Policy.WRITE, "Cancel several workflows at once",
        Query, _ok("Those that are cancelled, and why the others are not.", CancelledView),
        body=Body("Which, and why.", workflows.CancelBody),
    ),
    Route(
        "POST", f"{_TASK}/cancel", workflows.cancel_task, Policy.WRITE,
        "Cancel one task: it fails for good, and its stage's policies say what follows", Query,
        _ok("The task.", TaskView), body=_REASON, tag="tasks",
    ),
    Route(
        "POST", f"{_ONE}/cancel", workflows.cancel_workflow, Policy.WRITE, "Cancel: nothing more starts",
        Query, _ok("The workflow.", WorkflowView), body=_REASON,
    ),
    Route(
        "POST", f"{_ONE}/ended", workflows.report_end, Policy.WRITE, "Say how a run of another engine has ended",
        Query, _ok("The run.", WorkflowView), body=Body("The end.", workflows.EndBody),
    ),
    Route(
        "POST", f"{_ONE}/pause", workflows.pause_workflow, Policy.WRITE, "Pause: what runs goes on", Query,
        _ok("The workflow.", WorkflowView), body=_REASON,
    ),
    Route(
        "POST", f"{_ONE}/resume", workflows.resume_workflow, Policy.WRITE, "Resume after a pause", Query,
        _ok("The workflow.", WorkflowView), body=_REASON,
    ),
    Route(
        "POST", f"{_ONE}/retry", workflows.retry_workflow, Policy.WRITE, "Try again what failed", Query,
        _ok("The workflow.", WorkflowView), body=_REASON,
    ),
)  # fmt: skip

_EVENTS: Final[tuple[Route[Any], ...]] = (
    Route(
        "GET", f"{_ONE}/events", streams.stream_workflow_events, Policy.READ,
        "Events of a workflow, until it has ended; the last one is named `end`", streams.WorkflowEventsQuery,
        {200: Answer("Server-Sent Events.", EventView, "text/event-stream")}, headers=_RESUME, tag="events",
    ),
    Route(
        "GET", f"{PREFIX}/events", streams.stream_events, Policy.READ, "Events of all workflows",
        streams.EventsQuery, {200: Answer("Server-Sent Events.", EventView, "text/event-stream")},
        headers=_RESUME, tag="events",
    ),
)  # fmt: skip

_CLUSTER: Final[tuple[Route[Any], ...]] = (
    Route(
        "GET", f"{PREFIX}/queues", cluster.list_queues, Policy.READ, "List the queues", Query,
        _ok("All queues.", list[QueueView]), tag="cluster", process=Process.LEADER,
    ),
    Route(
        "PUT", f"{PREFIX}/queues/{{name}}", cluster.put_queue, Policy.WRITE, "Create or change a queue",
        Query, _ok("The queue.", QueueView),
        body=Body("Settings; what is left out stays.", cluster.QueueBody, required=False), tag="cluster",
        process=Process.LEADER,
    ),
    Route(
        "DELETE", f"{PREFIX}/queues/{{name}}", cluster.delete_queue, Policy.WRITE,
        "Remove a queue: it has no workflows that live, and no queues below it", Query,
        {
            200: Answer("What it was.", QueueView),
            409: Answer("Workflows in it live, or queues are below it.", ProblemView, PROBLEM),
        }, tag="cluster", process=Process.LEADER,
    ),
    Route(
        "GET", f"{PREFIX}/nodes", cluster.list_nodes, Policy.READ, "List the nodes", Query,
        _ok("All nodes.", list[NodeView]), tag="cluster", process=Process.LEADER,
    ),
    Route(
        "POST", f"{PREFIX}/nodes/{{name}}/drain", cluster.drain_node, Policy.WRITE,
        "Drain a node: nothing new starts there, now or from a later moment on", Query,
        _ok("The node.", NodeView), body=Body("How.", cluster.DrainBody, required=False), tag="cluster",
        process=Process.LEADER,
    ),
    Route(
        "POST", f"{PREFIX}/nodes/{{name}}/uncordon", cluster.uncordon_node, Policy.WRITE, "Use a node again",
        Query, _ok("The node.", NodeView), tag="cluster", process=Process.LEADER,
    ),
    Route(
        "GET", f"{PREFIX}/explain/cluster", cluster.explain_cluster, Policy.READ,
        "Explain why cores, memory and GPUs are idle", cluster.IdleQuery,
        _ok("By resource and cause, in all and hour by hour.", IdleReportView), tag="cluster", process=Process.LEADER,
    ),
    Route(
        "GET", f"{PREFIX}/usage", cluster.get_usage, Policy.READ,
        "Account for cores, GPUs and memory by queue, user or label", cluster.UsageQuery,
        _ok("A row for each name, and their sum.", UsageView), tag="cluster",
    ),
)  # fmt: skip

_POLICY: Final[tuple[Route[Any], ...]] = (
    Route(
        "GET", f"{PREFIX}/profile", policy.get_profile, Policy.READ, "Look at the profile in force", Query,
        _ok("The profile, and what was refused since.", ProfileView), tag="policy", process=Process.LEADER,
    ),
    Route(
        "PUT", f"{PREFIX}/profile", policy.put_profile, Policy.WRITE,
        "Replace the profile in force; a bad one changes nothing", Query,
        _ok("The profile, as it is in force now.", ProfileView),
        body=Body("A profile document, in JSON or YAML.", dict[str, Any], example=PROFILE_EXAMPLE), tag="policy",
        process=Process.LEADER,
    ),
    Route(
        "GET", f"{PREFIX}/plugins", policy.list_plugins, Policy.READ, "List scheduler plugins", Query,
        _ok("All that are installed, or in force.", list[PluginView]), tag="policy", process=Process.LEADER,
    ),
    Route(
        "GET", f"{PREFIX}/snapshot", policy.get_snapshot, Policy.READ,
        "Record the next scheduling cycle: what it is given, and what it decides", Query,
        _text("The file, for `flowsched replay`.", "application/zip"), tag="policy", process=Process.LEADER,
    ),
)  # fmt: skip

_PLAN: Final = f"{PREFIX}/plans/{{plan}}"
_PLANS: Final[tuple[Route[Any], ...]] = (
    Route(
        "POST", f"{PREFIX}/plans", plans.create_plan, Policy.WRITE,
        "Plan a WDL workflow: its calls, their order, widths and resources as far as they are known", Query,
        {201: Answer("The plan.", PlanView, headers={"Location": "The plan."})},
        body=Body("The workflow; or a form with the parts of Cromwell's submissions.", PlanBody), tag="plans",
    ),
    Route(
        "GET", f"{PREFIX}/plans", plans.list_plans, Policy.READ, "List plans, newest first", plans.PlansQuery,
        _ok("One page.", PlanPage), tag="plans",
    ),
    Route(
        "GET", _PLAN, plans.get_plan, Policy.READ, "Look at a plan", Query, _ok("The plan.", PlanView), tag="plans",
    ),
    Route(
        "DELETE", _PLAN, plans.delete_plan, Policy.WRITE, "Remove a plan", Query, _ok("What it was.", PlanSummary),
        tag="plans",
    ),
)  # fmt: skip

_QUESTION: Final = Body("The pod, and the nodes asked about; at most 64 MiB.", extender.ExtenderArgs)
_SCHEDULER: Final[tuple[Route[Any], ...]] = (
    Route(
        "POST", "/scheduler/filter", extender.filter_nodes, Policy.READ,
        "For a kube-scheduler's extender: which nodes a pod may have", Query,
        _ok("What is left, and why not the others.", extender.ExtenderFilterResult), body=_QUESTION,
        tag="scheduler",
    ),
    Route(
        "POST", "/scheduler/prioritize", extender.prioritize_nodes, Policy.READ,
        "For a kube-scheduler's extender: which nodes rather", Query,
        _ok("0 to 10 for each node; all 0 is no opinion.", list[extender.HostPriority]), body=_QUESTION,
        tag="scheduler",
    ),
)  # fmt: skip

_T: Final = f"{tes.TES_PREFIX}/tasks"
_TES: Final[tuple[Route[Any], ...]] = (
    Route(
        "GET", f"{tes.TES_PREFIX}/service-info", tes.get_tes_service_info, Policy.READ,
        "GA4GH TES 1.1: what this server is (all these also under /v1 and /)", tes.TesQuery,
        _ok("The service.", tes.TesServiceInfo), tag="tes",
    ),
    Route(
        "POST", _T, tes.create_tes_task, Policy.WRITE, "GA4GH TES 1.1: create a task", tes.TesQuery,
        _ok("Its id; of a repeat the id that is there.", tes.TesCreated),
        body=Body("The task.", Task, example=TASK_EXAMPLE), headers=_KEY, tag="tes",
    ),
    Route(
        "GET", _T, tes.list_tes_tasks, Policy.READ, "GA4GH TES 1.1: list tasks, newest first",
        tes.TesTasksQuery, _ok("One page.", tes.TesList), tag="tes",
    ),
    Route(
        "GET", f"{_T}/service-info", tes.get_old_tes_service_info, Policy.READ,
        "TES 0.x: what this server is", tes.TesQuery, _ok("The service.", tes.TesOldServiceInfo), tag="tes",
    ),
    Route(
        "GET", f"{_T}/{{id}}", tes.get_tes_task, Policy.READ, "GA4GH TES 1.1: look at a task", tes.ViewQuery,
        _ok("The task.", tes.TesTaskView), tag="tes",
    ),
    Route(
        "POST", f"{_T}/{{id}}:cancel", tes.cancel_tes_task, Policy.WRITE,
        "GA4GH TES 1.1: cancel a task; no error if it has ended or is not known", tes.TesQuery,
        _ok("Nothing.", tes.TesNothing), tag="tes",
    ),
)  # fmt: skip

_SERVER: Final[tuple[Route[Any], ...]] = (
    Route(
        "GET", "/livez", pages.get_livez, Policy.OPEN, "Is it alive?", Query,
        _health("Which loop is stuck."), tag="server",
    ),
    Route(
        "GET", "/metrics", pages.get_metrics, Policy.READ, "Metrics for Prometheus", Query,
        _text("Counters, histograms and gauges in Prometheus' text format.", "text/plain"), tag="server",
    ),
    Route(
        "GET", "/readyz", pages.get_readyz, Policy.OPEN, "Is it ready?", Query,
        _health("What is missing."), tag="server",
    ),
    Route(
        "GET", f"{PREFIX}/openapi.json", pages.get_openapi, Policy.READ, "This document", Query,
        _ok("OpenAPI 3.1.", dict[str, Any]), tag="server",
    ),
    Route(
        "GET", "/", pages.get_links, Policy.READ, "What there is", Query,
        {200: Answer("Links.", dict[str, Any]), 302: Answer("A browser goes to the page.")}, tag="server",
    ),
    Route(
        "GET", pages.UI, pages.get_ui, Policy.OPEN, "The page: runs, queues and the cluster", Query,
        _text("A page.", "text/html"), tag="server",
    ),
    Route(
        "GET", "/ui/app.js", pages.get_ui_script, Policy.OPEN, "The page's program", Query,
        _built("JavaScript.", "text/javascript"), tag="server",
    ),
    Route(
        "GET", "/ui/app.css", pages.get_ui_style, Policy.OPEN, "The page's style", Query,
        _built("CSS.", "text/css"), tag="server",
    ),
    Route(
        "GET", "/ui/icon.svg", pages.get_ui_icon, Policy.OPEN, "The page's icon", Query,
        _built("SVG.", "image/svg+xml"), tag="server",
    ),
    Route(
        "GET", "/docs", pages.get_docs, Policy.OPEN, "This document, readable", Query,
        _text("A page.", "text/html"), tag="server",
    ),
    Route(
        "GET", "/docs/docs.js", pages.get_docs_script, Policy.OPEN, "The page's program", Query,
        _text("JavaScript.", "text/javascript"), tag="server",
    ),
    Route(
        "GET", "/docs/docs.css", pages.get_docs_style, Policy.OPEN, "The page's style", Query,
        _text("CSS.", "text/css"), tag="server",
    ),
)  # fmt: skip

ROUTES: Final[tuple[Route[Any], ...]] = (
    *_WORKFLOWS,
    *_EVENTS,
    *_PLANS,
    *_CLUSTER,
    *_POLICY,
    *_SCHEDULER,
    *_TES,
    *_SERVER,
)
#: TES clients try several prefixes. These paths are served and not described a second and third time.
ALIASES: Final[tuple[Route[Any], ...]] = tuple(
    replace(route, path=prefix + route.path.removeprefix(tes.TES_PREFIX), alias=True)
    for prefix in tes.OTHER_PREFIXES
    for route in _TES
)
