"""All routes of the API in one table. Dispatch, access control, OpenAPI and tests read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import asdict

from flowsched.api.handlers import cluster, extender, pages, plans, streams, tes, wes, workflows
from flowsched.api.parameters import path_text, task_of
from flowsched.api.problems import MEDIA as PROBLEM
from flowsched.api.routes import PREFIX, Answer, Body, Call, Policy, Process, Route
from flowsched.control.wes import RunRequest
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


def _id(call: Call[Any], name: str = "workflow") -> str:
    return path_text(call.request, name)


def _ok(about: str, kind: Any) -> Mapping[int, Answer]:
    return {200: Answer(about, kind)}


def _text(about: str, media: str, headers: Mapping[str, str] | None = None) -> Mapping[int, Answer]:
    return {200: Answer(about, media=media, headers=headers or {})}


def _built(about: str, media: str) -> Mapping[int, Answer]:
    """A file of the web page, which a checkout has only after `make ui`."""
    return {**_text(about, media), 404: Answer("The page has not been built.", ProblemView, PROBLEM)}


def _health(about: str) -> Mapping[int, Answer]:
    return {200: Answer("It is.", media="text/plain"), 503: Answer(about, media="text/plain")}


_WORKFLOWS: Final[tuple[Route, ...]] = (
    Route("POST", _W, "submit_workflow", workflows.submit_workflow,
          "Submit a workflow",
          {202: Answer("Accepted: it is never lost.", SubmittedView, headers={"Location": "The workflow."}),
           200: Answer("It had been accepted before, under the same key.", SubmittedView)},
          body=Body("The workflow document.", example=WORKFLOW_EXAMPLE), headers=_KEY),
    Route("GET", _W, "list_workflows", workflows.list_workflows,
          "List workflows, live ones first", _ok("One page.", WorkflowPage), process=Process.BEST_LEADER,
          query=workflows.WorkflowsQuery),
    Route("GET", _ONE, "get_workflow", lambda call: call.service.workflow(_id(call)),
          "Look at a workflow", _ok("The workflow.", WorkflowView), process=Process.BEST_LEADER),
    Route("GET", f"{_ONE}/document", "get_document", lambda call: call.service.document(_id(call)),
          "Get the document", _ok("The document.", dict[str, Any])),
    Route("GET", f"{_ONE}/stages", "list_stages", lambda call: call.service.stages(_id(call)),
          "List the stages", _ok("All stages, in the document's order.", list[StageView]), process=Process.BEST_LEADER),
    Route("GET", f"{_ONE}/tasks", "list_tasks", lambda call: call.service.tasks(_id(call), **asdict(call.query)),
          "List tasks, by stage and index", _ok("One page.", TaskPage), tag="tasks", query=workflows.TasksQuery),
    Route("GET", f"{_ONE}/cache", "list_cache", lambda call: call.service.cache(_id(call)),
          "See which runs its tasks took results from, and why the other tasks ran",
          _ok("By stage; shards that found the same are together.", list[CacheView])),
    Route("GET", f"{_ONE}/timeline", "get_timeline", workflows.get_timeline,
          "Read when each task waited, staged, ran and ended, as columns of numbers",
          _ok("One page, by stage and index.", TimelineView), tag="tasks", process=Process.BEST_LEADER,
          query=workflows.TimelineQuery),
    Route("GET", f"{_ONE}/attempts", "list_attempts", lambda call: call.service.attempts(_id(call), **asdict(call.query)),
          "List the attempts of all tasks, with what each asked for and used",
          _ok("One page, by stage, index and attempt.", AttemptPage), tag="tasks", query=workflows.AttemptsQuery),
    Route("GET", _TASK, "get_task", lambda call: call.service.task(*task_of(call)),
          "Look at a task with its attempts and outputs", _ok("The task.", TaskView), tag="tasks"),
    Route("GET", f"{_TASK}/logs", "get_logs", streams.get_logs,
          "Read or follow a log", _text("Bytes of the log.", "text/plain", _LOG_HEADERS), tag="tasks", query=streams.LogsQuery),
    Route("GET", f"{_TASK}/outputs/{{name}}", "get_output", streams.get_output,
          "Get an output; a folder comes as a tar stream",
          {200: Answer("Its bytes.", media="application/octet-stream", headers=_OUTPUT_HEADERS),
           409: Answer("It was written, and no node has it any more.", ProblemView, PROBLEM)}, tag="tasks"),
    Route("GET", f"{_ONE}/explain", "explain_workflow", lambda call: call.service.explain(_id(call), stage=call.query.stage),
          "Explain what does not run", _ok("One entry per reason.", list[ExplanationView]), process=Process.LEADER,
          query=workflows.ExplainQuery),
    Route("GET", f"{_TASK}/explain", "explain_task", workflows.explain_task,
          "Explain why a task does not run, or why it went to its node",
          _ok("Its reasons, or its costs on its node and on the next best ones.", list[ExplanationView]), tag="tasks",
          process=Process.LEADER),
    Route("POST", "/api/v1/cancel", "cancel_workflows", workflows.cancel_workflows,
          "Cancel several workflows at once", _ok("The cancelled workflows, and why the others are not.", CancelledView),
          body=Body("Which, and why.", workflows.CancelBody)),
    Route("POST", f"{_TASK}/cancel", "cancel_task", workflows.cancel_task,
          "Cancel one task: it fails for good, and its stage's policies say what follows", _ok("The task.", TaskView),
          body=_REASON, tag="tasks"),
    Route("POST", f"{_ONE}/cancel", "cancel_workflow", workflows.command("cancel"),
          "Cancel: nothing more starts", _ok("The workflow.", WorkflowView), body=_REASON),
    Route("POST", f"{_ONE}/ended", "report_end", workflows.report_end,
          "Say how a run of another engine has ended", _ok("The run.", WorkflowView), body=Body("The end.", workflows.EndBody)),
    Route("POST", f"{_ONE}/pause", "pause_workflow", workflows.command("pause"),
          "Pause: what runs goes on", _ok("The workflow.", WorkflowView), body=_REASON),
    Route("POST", f"{_ONE}/resume", "resume_workflow", workflows.command("resume"),
          "Resume after a pause", _ok("The workflow.", WorkflowView), body=_REASON),
    Route("POST", f"{_ONE}/retry", "retry_workflow", workflows.command("retry"),
          "Try again what failed", _ok("The workflow.", WorkflowView), body=_REASON),
)  # fmt: skip

_EVENTS: Final[tuple[Route, ...]] = (
    Route("GET", f"{_ONE}/events", "stream_workflow_events", streams.stream_workflow_events,
          "Events of a workflow, until it has ended; the last one is named `end`",
          {200: Answer("Server-Sent Events.", EventView, "text/event-stream")}, headers=_RESUME, tag="events",
          query=streams.WorkflowEventsQuery),
    Route("GET", f"{PREFIX}/events", "stream_events", streams.stream_events,
          "Events of all workflows", {200: Answer("Server-Sent Events.", EventView, "text/event-stream")}, headers=_RESUME,
          tag="events", query=streams.EventsQuery),
)  # fmt: skip

_CLUSTER: Final[tuple[Route, ...]] = (
    Route("GET", f"{PREFIX}/queues", "list_queues", lambda call: call.service.queues(),
          "List the queues", _ok("All queues.", list[QueueView]), tag="cluster", process=Process.LEADER),
    Route("PUT", f"{PREFIX}/queues/{{name}}", "put_queue", cluster.put_queue,
          "Create or change a queue", _ok("The queue.", QueueView),
          body=Body("Settings; what is left out stays.", cluster.QueueBody, required=False), tag="cluster",
          process=Process.LEADER),
    Route("DELETE", f"{PREFIX}/queues/{{name}}", "delete_queue", lambda call: call.service.delete_queue(_id(call, "name")),
          "Remove a queue: it has no workflows that live, and no queues below it",
          {200: Answer("The removed queue.", QueueView),
           409: Answer("Workflows in it live, or queues are below it.", ProblemView, PROBLEM)},
          tag="cluster", process=Process.LEADER),
    Route("GET", f"{PREFIX}/nodes", "list_nodes", lambda call: call.service.nodes(),
          "List the nodes", _ok("All nodes.", list[NodeView]), tag="cluster", process=Process.LEADER),
    Route("POST", f"{PREFIX}/nodes/{{name}}/drain", "drain_node", cluster.drain_node,
          "Drain a node: nothing new starts there, now or from a later moment on", _ok("The node.", NodeView),
          body=Body("How.", cluster.DrainBody, required=False), tag="cluster", process=Process.LEADER),
    Route("POST", f"{PREFIX}/nodes/{{name}}/uncordon", "uncordon_node",
          lambda call: call.service.draining.uncordon(_id(call, "name")),
          "Use a node again", _ok("The node.", NodeView), tag="cluster", process=Process.LEADER),
    Route("GET", f"{PREFIX}/explain/cluster", "explain_cluster", lambda call: call.service.idle(),
          "Explain why cores, memory and GPUs are idle", _ok("By resource and cause.", IdleReportView),
          tag="cluster", process=Process.LEADER),
    Route("GET", f"{PREFIX}/usage", "get_usage", lambda call: call.service.usage(**asdict(call.query)),
          "Account for cores, GPUs and memory by queue, user or label", _ok("A row for each name, and their sum.", UsageView),
          tag="cluster", query=cluster.UsageQuery),
)  # fmt: skip

_POLICY: Final[tuple[Route, ...]] = (
    Route("GET", f"{PREFIX}/profile", "get_profile", lambda call: call.service.policies.show(),
          "Look at the profile in force", _ok("The profile, and what was refused since.", ProfileView), tag="policy",
          process=Process.LEADER),
    Route("PUT", f"{PREFIX}/profile", "put_profile", cluster.put_profile,
          "Replace the profile in force; a bad one changes nothing", _ok("The profile, as it is in force now.", ProfileView),
          body=Body("A profile document, in JSON or YAML.", dict[str, Any], example=PROFILE_EXAMPLE), tag="policy",
          process=Process.LEADER),
    Route("GET", f"{PREFIX}/plugins", "list_plugins", lambda call: call.service.policies.plugins(),
          "List scheduler plugins", _ok("All that are installed, or in force.", list[PluginView]), tag="policy",
          process=Process.LEADER),
    Route("GET", f"{PREFIX}/snapshot", "get_snapshot", cluster.get_snapshot,
          "Record the next scheduling cycle: what it is given, and what it decides",
          _text("The file, for `flowsched replay`.", "application/zip"), tag="policy", process=Process.LEADER),
)  # fmt: skip

_PLAN: Final = f"{PREFIX}/plans/{{plan}}"
_PLANS: Final[tuple[Route, ...]] = (
    Route("POST", f"{PREFIX}/plans", "create_plan", plans.create_plan,
          "Plan a WDL workflow: its calls, their order, widths and resources as far as they are known",
          {201: Answer("The plan.", PlanView, headers={"Location": "The plan."})},
          body=Body("The workflow; or a form with the parts of Cromwell's submissions.", PlanBody), tag="plans"),
    Route("GET", f"{PREFIX}/plans", "list_plans", lambda call: call.service.plans.list(**asdict(call.query)),
          "List plans, newest first", _ok("One page.", PlanPage), tag="plans", query=plans.PlansQuery),
    Route("GET", _PLAN, "get_plan", lambda call: call.service.plans.get(_id(call, "plan")),
          "Look at a plan", _ok("The plan.", PlanView), tag="plans"),
    Route("DELETE", _PLAN, "delete_plan", lambda call: call.service.plans.remove(_id(call, "plan")),
          "Remove a plan", _ok("The removed plan.", PlanSummary), tag="plans"),
)  # fmt: skip

_QUESTION: Final = Body("The pod, and the nodes asked about; at most 64 MiB.", extender.ExtenderArgs)
_SCHEDULER: Final[tuple[Route, ...]] = (
    Route("POST", "/scheduler/filter", "filter_nodes", extender.filter_nodes,
          "For a kube-scheduler's extender: which nodes a pod may have",
          _ok("The nodes that are left, and why not the others.", extender.ExtenderFilterResult), body=_QUESTION, tag="scheduler",
          policy=Policy.READ),
    Route("POST", "/scheduler/prioritize", "prioritize_nodes", extender.prioritize_nodes,
          "For a kube-scheduler's extender: which nodes rather",
          _ok("0 to 10 for each node; all 0 is no opinion.", list[extender.HostPriority]), body=_QUESTION, tag="scheduler",
          policy=Policy.READ),
)  # fmt: skip

_T: Final = f"{tes.TES_PREFIX}/tasks"
_TES: Final[tuple[Route, ...]] = (
    Route("GET", f"{tes.TES_PREFIX}/service-info", "get_tes_service_info", tes.get_tes_service_info,
          "GA4GH TES 1.1: what this server is (all these also under /v1 and /)", _ok("The service.", tes.TesServiceInfo),
          tag="tes", query=tes.Ga4ghQuery),
    Route("POST", _T, "create_tes_task", tes.create_tes_task,
          "GA4GH TES 1.1: create a task", _ok("Its id; of a repeat the id that is there.", tes.TesCreated),
          body=Body("The task.", Task, example=TASK_EXAMPLE), headers=_KEY, tag="tes", query=tes.Ga4ghQuery),
    Route("GET", _T, "list_tes_tasks", tes.list_tes_tasks,
          "GA4GH TES 1.1: list tasks, newest first", _ok("One page.", tes.TesList), tag="tes", query=tes.TesTasksQuery),
    Route("GET", f"{_T}/service-info", "get_old_tes_service_info", tes.get_old_tes_service_info,
          "TES 0.x: what this server is", _ok("The service.", tes.TesOldServiceInfo), tag="tes", query=tes.Ga4ghQuery),
    Route("GET", f"{_T}/{{id}}", "get_tes_task", tes.get_tes_task,
          "GA4GH TES 1.1: look at a task", _ok("The task.", tes.TesTaskView), tag="tes", query=tes.ViewQuery),
    Route("POST", f"{_T}/{{id}}:cancel", "cancel_tes_task", tes.cancel_tes_task,
          "GA4GH TES 1.1: cancel a task; no error if it has ended or is not known", _ok("Nothing.", tes.TesNothing), tag="tes",
          query=tes.Ga4ghQuery),
)  # fmt: skip

_R: Final = f"{wes.WES_PREFIX}/runs"
_RUN: Final = f"{_R}/{{run}}"
_WES: Final[tuple[Route, ...]] = (
    Route("GET", f"{wes.WES_PREFIX}/service-info", "get_wes_service_info", wes.get_wes_service_info,
          "GA4GH WES 1.1: what this server is, and which engines it has", _ok("The service.", wes.WesServiceInfo), tag="wes",
          query=tes.Ga4ghQuery),
    Route("POST", _R, "create_wes_run", wes.create_wes_run,
          "GA4GH WES 1.1: run a workflow by its engine; a form with attachments, or JSON", _ok("Its id.", wes.WesRunId),
          body=Body("The workflow.", RunRequest), tag="wes", query=tes.Ga4ghQuery),
    Route("GET", _R, "list_wes_runs", wes.list_wes_runs,
          "GA4GH WES 1.1: list runs, live ones first", _ok("One page.", wes.WesRunList), tag="wes", process=Process.BEST_LEADER,
          query=wes.WesPageQuery),
    Route("GET", _RUN, "get_wes_run", wes.get_wes_run,
          "GA4GH WES 1.1: look at a run", _ok("The run.", wes.WesRunLog), tag="wes", process=Process.BEST_LEADER,
          query=tes.Ga4ghQuery),
    Route("GET", f"{_RUN}/status", "get_wes_run_status", wes.get_wes_run_status,
          "GA4GH WES 1.1: the state of a run", _ok("The state.", wes.WesRunStatus), tag="wes", process=Process.BEST_LEADER,
          query=tes.Ga4ghQuery),
    Route("GET", f"{_RUN}/tasks", "list_wes_tasks", wes.list_wes_tasks,
          "GA4GH WES 1.1: list the tasks of a run", _ok("One page.", wes.WesTaskList), tag="wes", query=wes.WesPageQuery),
    Route("GET", f"{_RUN}/tasks/{{task}}", "get_wes_task", wes.get_wes_task,
          "GA4GH WES 1.1: look at a task of a run", _ok("The task.", wes.WesTaskLog), tag="wes", query=tes.Ga4ghQuery),
    Route("POST", f"{_RUN}/cancel", "cancel_wes_run", wes.cancel_wes_run,
          "GA4GH WES 1.1: cancel a run with its tasks", _ok("Its id.", wes.WesRunId), tag="wes", query=tes.Ga4ghQuery),
)  # fmt: skip

_SERVER: Final[tuple[Route, ...]] = (
    Route("GET", "/livez", "get_livez", pages.get_livez,
          "Is it alive?", _health("Which loop is stuck."), tag="server", policy=Policy.OPEN),
    Route("GET", "/metrics", "get_metrics", pages.get_metrics,
          "Metrics for Prometheus", _text("Counters, histograms and gauges in Prometheus' text format.", "text/plain"),
          tag="server"),
    Route("GET", "/readyz", "get_readyz", pages.get_readyz,
          "Is it ready?", _health("The part that is missing."), tag="server", policy=Policy.OPEN),
    Route("GET", f"{PREFIX}/openapi.json", "get_openapi", pages.get_openapi,
          "This document", _ok("OpenAPI 3.1.", dict[str, Any]), tag="server"),
    Route("GET", "/", "get_links", pages.get_links,
          "Service links", {200: Answer("Links.", dict[str, Any]), 302: Answer("A browser goes to the page.")}, tag="server"),
    Route("GET", pages.UI, "get_ui", pages.get_ui,
          "The page: runs, queues and the cluster", _text("A page.", "text/html"), tag="server", policy=Policy.OPEN),
    Route("GET", "/ui/app.js", "get_ui_script", pages.built("app.js", "text/javascript"),
          "The page's program", _built("JavaScript.", "text/javascript"), tag="server", policy=Policy.OPEN),
    Route("GET", "/ui/app.css", "get_ui_style", pages.built("app.css", "text/css"),
          "The page's style", _built("CSS.", "text/css"), tag="server", policy=Policy.OPEN),
    Route("GET", "/ui/icon.svg", "get_ui_icon", pages.built("icon.svg", "image/svg+xml"),
          "The page's icon", _built("SVG.", "image/svg+xml"), tag="server", policy=Policy.OPEN),
    Route("GET", "/docs", "get_docs", pages.file("docs.html", "text/html"),
          "This document, readable", _text("A page.", "text/html"), tag="server", policy=Policy.OPEN),
    Route("GET", "/docs/docs.js", "get_docs_script", pages.file("docs.js", "text/javascript"),
          "The page's program", _text("JavaScript.", "text/javascript"), tag="server", policy=Policy.OPEN),
    Route("GET", "/docs/docs.css", "get_docs_style", pages.file("docs.css", "text/css"),
          "The page's style", _text("CSS.", "text/css"), tag="server", policy=Policy.OPEN),
)  # fmt: skip

ROUTES: Final[tuple[Route, ...]] = (
    *_WORKFLOWS,
    *_EVENTS,
    *_PLANS,
    *_CLUSTER,
    *_POLICY,
    *_SCHEDULER,
    *_TES,
    *_WES,
    *_SERVER,
)
#: TES clients try several prefixes. These paths are served and not described a second and third time.
ALIASES: Final[tuple[Route, ...]] = tuple(
    replace(route, path=prefix + route.path.removeprefix(tes.TES_PREFIX), alias=True)
    for prefix in (
        *tes.OTHER_PREFIXES,
        *(tes.RUN_PREFIX + each for each in (tes.TES_PREFIX, *tes.OTHER_PREFIXES)),
    )
    for route in _TES
)
