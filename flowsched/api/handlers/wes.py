"""GA4GH WES 1.1 over HTTP."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Final, cast
from urllib.parse import quote

import msgspec

from flowsched.api.handlers.tes import Ga4ghQuery, PageToken, State, TesOrganization
from flowsched.api.parameters import path_text, read_body, read_form
from flowsched.api.routes import PREFIX, Call
from flowsched.aside import aside
from flowsched.control.wes import LANGUAGES, RunRequest
from flowsched.errors import InvalidRequest, NotFound
from flowsched.version import VERSION
from flowsched.workflow.document.reader import read_document
from flowsched.workflow.views import TaskView, WorkflowView

WES_PREFIX: Final = "/ga4gh/wes/v1"
LARGEST_PAGE: Final = 1000
_ATTACHMENT: Final = "workflow_attachment"
#: Parts of the form that are JSON.
_JSON: Final = ("workflow_params", "tags", "workflow_engine_parameters")

_STATES: Final[dict[str, State]] = {
    "PENDING": "QUEUED",
    "PAUSED": "PAUSED",
    "CANCELLING": "CANCELING",
    "SUCCEEDED": "COMPLETE",
    "FAILED": "EXECUTOR_ERROR",
    "CANCELLED": "CANCELED",
}


class WesPageQuery(Ga4ghQuery, frozen=True, kw_only=True):
    """A part of a list."""

    page_size: Annotated[
        int, msgspec.Meta(ge=0, le=LARGEST_PAGE, description="Most entries of one page; 0 = 100.")
    ] = 100
    page_token: PageToken | None = None


class WesServiceType(msgspec.Struct, kw_only=True):
    """Which specification is served."""

    group: str = "org.ga4gh"
    artifact: str = "wes"
    version: str = "1.1.0"


class WesTypeVersions(msgspec.Struct):
    """The versions of a language; flowsched leaves the check to the engine."""

    workflow_type_version: list[str]


class WesEngineVersions(msgspec.Struct):
    """The version of an engine."""

    workflow_engine_version: list[str]


class WesServiceInfo(msgspec.Struct, kw_only=True):
    """The description of this server."""

    id: str = "org.flowsched.wes"
    name: str = "flowsched"
    type: WesServiceType = msgspec.field(default_factory=WesServiceType)
    organization: TesOrganization = msgspec.field(default_factory=TesOrganization)
    description: str = "GA4GH WES 1.1 over flowsched"
    version: str = VERSION
    workflow_type_versions: dict[str, WesTypeVersions]
    supported_wes_versions: list[str] = msgspec.field(default_factory=lambda: ["1.1.0", "1.0.0"])
    supported_filesystem_protocols: list[str] = msgspec.field(
        default_factory=lambda: ["file", "http", "https"]
    )
    workflow_engine_versions: dict[str, WesEngineVersions]
    default_workflow_engine_parameters: list[str] = msgspec.field(default_factory=list)
    system_state_counts: dict[str, int]
    auth_instructions_url: str = "https://github.com/flowsched/flowsched/blob/main/docs/security.md"
    tags: dict[str, str] = msgspec.field(default_factory=dict)


class WesRunId(msgspec.Struct):
    """The id of a run."""

    run_id: str


class WesRunStatus(msgspec.Struct):
    """The state of a run."""

    run_id: str
    state: State


class WesRunSummary(msgspec.Struct, omit_defaults=True):
    """A run in a list."""

    run_id: str
    state: State
    tags: dict[str, str]
    start_time: str = ""
    end_time: str = ""


class WesRunList(msgspec.Struct):
    """One page of runs."""

    runs: list[WesRunSummary]
    next_page_token: str = ""


class WesLog(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How a process went; `stdout` and `stderr` are URLs."""

    name: str
    start_time: str = ""
    end_time: str = ""
    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    system_logs: list[str] = []


class WesTaskLog(WesLog, kw_only=True, omit_defaults=True):
    """How a task went."""

    id: str


class WesRunLog(msgspec.Struct, kw_only=True):
    """A run with its request, its engine's log and its outputs."""

    run_id: str
    request: RunRequest
    state: State
    run_log: WesLog
    task_logs_url: str
    outputs: dict[str, Any]


class WesTaskList(msgspec.Struct):
    """One page of tasks."""

    task_logs: list[WesTaskLog]
    next_page_token: str = ""


async def get_wes_service_info(call: Call[Ga4ghQuery]) -> WesServiceInfo:
    """The description of this server, with the engines that are installed beside it."""
    found = await call.service.wes.versions()
    page = await call.service.wes.list(LARGEST_PAGE, None)
    counts: dict[str, int] = {}
    for view in page.workflows:
        counts[_state(view)] = counts.get(_state(view), 0) + 1
    languages = {language for language, _ in found.values()}
    return WesServiceInfo(
        workflow_type_versions={each: WesTypeVersions([]) for each in LANGUAGES if each in languages},
        workflow_engine_versions={
            program: WesEngineVersions([version] * bool(version)) for program, (_, version) in found.items()
        },
        system_state_counts=counts,
    )


async def create_wes_run(call: Call[Ga4ghQuery]) -> WesRunId:
    """Start a run, of a form or of JSON."""
    limits, files = call.serving.limits, dict[str, bytes]()
    fields: Any
    if call.request.content_type == "multipart/form-data":
        fields = {}
        for name, filename, data in await read_form(call.request, limits):
            if name == _ATTACHMENT:
                if filename in files:
                    raise InvalidRequest(f"workflow_attachment: two have the name {filename!r:.200}")
                files[filename] = data
            elif name in _JSON:
                fields[name] = await aside(len(data), read_document, data) if data.strip() else {}
            else:
                fields[name] = data.decode(errors="replace")
    elif call.request.content_type == "application/x-www-form-urlencoded":
        raise InvalidRequest(
            "Content-Type: found that of a form without files, expected multipart/form-data or JSON"
        )
    else:
        raw = await read_body(call.request, limits.body_bytes, limits)
        fields = await aside(len(raw), read_document, raw)
    try:
        request = msgspec.convert(fields, RunRequest)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"The request is no run: {error}") from error
    return WesRunId(await call.service.wes.begin(request, files, _own_url(call), call.serving.token))


def _own_url(call: Call[Any]) -> str:
    """The service as a process of its machine reaches it: where the request came in."""
    transport = call.request.transport
    name = None if transport is None else transport.get_extra_info("sockname")
    if not isinstance(name, tuple):
        raise InvalidRequest("the engine reaches this service over TCP alone: send the request to its port")
    host, port = name[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def list_wes_runs(call: Call[WesPageQuery]) -> WesRunList:
    """One page of runs."""
    page = await call.service.wes.list(call.query.page_size or 100, call.query.page_token or None)
    runs = [
        WesRunSummary(each.id, _state(each), dict(each.labels), _time(each.started_at), _time(each.ended_at))
        for each in page.workflows
    ]
    return WesRunList(runs, page.next_page_token or "")


async def get_wes_run(call: Call[Ga4ghQuery]) -> WesRunLog:
    """One run."""
    wes = call.service.wes
    view = await wes.run(path_text(call.request, "run"))
    head = await wes.head(view)
    return WesRunLog(
        run_id=view.id,
        request=cast(
            "RunRequest", await wes.request(view)
        ),  # as it is stored: to decode 5 MiB takes a second
        state=_state(view),
        run_log=WesLog(**_log(call, view.id, head), system_logs=[view.reason] * bool(view.reason)),
        task_logs_url=f"{call.request.url.origin()}{WES_PREFIX}/runs/{quote(view.id)}/tasks",
        outputs=await wes.outputs(view),
    )


async def get_wes_run_status(call: Call[Ga4ghQuery]) -> WesRunStatus:
    """The state of one run."""
    view = await call.service.wes.run(path_text(call.request, "run"))
    return WesRunStatus(view.id, _state(view))


async def cancel_wes_run(call: Call[Ga4ghQuery]) -> WesRunId:
    """Cancel a run."""
    ident = path_text(call.request, "run")
    await call.service.wes.cancel(ident)
    return WesRunId(ident)


async def list_wes_tasks(call: Call[WesPageQuery]) -> WesTaskList:
    """One page of the tasks of a run, without its head."""
    view = await call.service.wes.run(path_text(call.request, "run"))
    page = await call.service.wes.tasks(
        view.id,
        stage=None,
        state=None,
        limit=call.query.page_size or 100,
        page_token=call.query.page_token or None,
    )
    tasks = [_task(call, view, each) for each in page.tasks if each.stage != view.source]
    return WesTaskList(tasks, page.next_page_token or "")


async def get_wes_task(call: Call[Ga4ghQuery]) -> WesTaskLog:
    """One task of a run."""
    view = await call.service.wes.run(path_text(call.request, "run"))
    stage, dot, number = path_text(call.request, "task").rpartition(".")
    if not (dot and number.isascii() and number.isdecimal() and len(number) < 10):
        raise NotFound(f"run {view.id} has no such task; `task_logs_url` lists its tasks")
    return _task(call, view, await call.service.task(view.id, stage, int(number)))


def _task(call: Call[Any], view: WorkflowView, task: TaskView) -> WesTaskLog:
    reasons = [task.reason] * bool(task.reason)
    return WesTaskLog(id=f"{task.stage}.{task.index}", **_log(call, view.id, task), system_logs=reasons)


def _log(call: Call[Any], run: str, task: TaskView) -> dict[str, Any]:
    place = f"{quote(run, '')}/tasks/{quote(task.stage, '')}/{task.index}"
    logs = f"{call.request.url.origin()}{PREFIX}/workflows/{place}/logs?stream="
    return {
        "name": task.stage,
        "start_time": _time(task.started_at),
        "end_time": _time(task.ended_at),
        "stdout": f"{logs}stdout",
        "stderr": f"{logs}stderr",
        "exit_code": task.exit_code,
    }


def _state(view: WorkflowView) -> State:
    return _STATES.get(view.state, "RUNNING")


def _time(moment: datetime | None) -> str:
    return "" if moment is None else moment.isoformat().replace("+00:00", "Z")
