"""miniwdl's container backend `flowsched`: each try of a task is a workflow of one stage, on the files where they are.

The run's folder and the inputs have to be at the same paths here and on the nodes: this machine, or a file system that all share.
"""

from __future__ import annotations

import functools
import logging
import os
import shlex
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar, Final

from WDL import Env, Error, Tree, Value, values_to_json
from WDL._util import StructuredLogMessage, TerminationSignalFlag, parse_byte_size
from WDL.runtime import config
from WDL.runtime.error import Interrupted, Terminated
from WDL.runtime.task_container import TaskContainer

from flowsched.errors import FlowschedError, Unavailable
from flowsched.miniwdl.downloads import RUNTIME_KEY
from flowsched.miniwdl.following import End, Following, Where, begin, largest_node, report_end
from flowsched.miniwdl.order import Order, document
from flowsched.miniwdl.places import Known, Place, place
from flowsched.miniwdl.planning import request_plan
from flowsched.tokens import default_url

SECTION: Final = "flowsched"
#: Every option with its default. Any of them may be given as MINIWDL__FLOWSCHED__<NAME> too: that is miniwdl's own rule.
DEFAULTS: Final = {
    "url": "",
    "token": "",
    "queue": "default",
    "priority": "0",
    "memory": "2G",
    "timeout": "",
    "interruptions": "3",
    "patience": "600",
    "plan": "true",
    "run": "",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """The backend's settings, the same for all tasks."""

    url: str
    token: str | None
    queue: str
    priority: int
    memory: str  #: of a task that says nothing of it
    timeout: str  #: of one try of a task, as in a workflow document; "" = none
    interruptions: int  #: how often a task is tried anew that was taken away, whatever its `preemptible` says
    patience_s: float  #: how long the service may be away
    plan: bool  #: whether the service is told the whole workflow when it begins
    run: str  #: the id of the run; "" = one of its own


def read(cfg: config.Loader) -> Settings:
    """Read the section. Server and token come from the environment (FLOWSCHED_SERVER, FLOWSCHED_TOKEN) where it is silent.

    Raises:
        ValueError: A number is none; the message names the option.
    """

    def text(name: str) -> str:
        return cfg.get(SECTION, name, DEFAULTS[name]).strip()

    return Settings(
        url=text("url") or default_url(),
        token=text("token") or os.environ.get("FLOWSCHED_TOKEN") or None,
        queue=text("queue"),
        priority=cfg.get_int(SECTION, "priority", int(DEFAULTS["priority"])),
        memory=text("memory"),
        timeout=text("timeout"),
        interruptions=cfg.get_int(SECTION, "interruptions", int(DEFAULTS["interruptions"])),
        patience_s=cfg.get_float(SECTION, "patience", float(DEFAULTS["patience"])),
        plan=cfg.get_bool(SECTION, "plan", DEFAULTS["plan"] == "true"),
        run=text("run"),
    )


# ---- the backend ----


#: How often a task's stderr is read on, and a signal is checked. The service is not polled: it sends events.
POLL_S: Final = 0.5
#: More inputs than this are linked into the working folder: a document takes 1,000 of them, each mount costs the task time, and
#: what a pod cannot mount any more would be copied.
MOST_MOUNTS: Final = 150
#: So long the end of a run waits for the service to hear of it.
REPORT_S: Final = 10.0
#: The capacity assumed of a cluster without nodes: an autoscaler may bring some.
NO_LIMIT: Final = 1 << 40
#: Reasons with an exit code of the program itself; any other says that the program was not to blame.
_OWN_REASONS: Final = frozenset({"", "OOMKilled", "Timeout"})
#: Tells runs apart that use the same folder one after the other.
_PROCESS: Final = uuid.uuid4().hex
_BEGAN_MS: Final = time.time_ns() // 1_000_000
#: The workflows that run in this process, by their folders.
_known: Final[dict[str, Known]] = {}


class Backend(TaskContainer):
    """One task of a run; its tries come one after the other."""

    _settings: ClassVar[Settings | None] = None
    _largest: ClassVar[dict[str, int]] = {}

    @classmethod
    def global_init(cls, cfg: config.Loader, logger: logging.Logger) -> None:
        """Find the service, and how large its nodes are: miniwdl cuts what tasks ask for down to that.

        Raises:
            WDL.Error.RuntimeError: It cannot be reached, or does not let us in.
        """
        cls._settings = _read_settings(cfg)
        where = _where(cls._settings)
        with TerminationSignalFlag(logger) as terminating:
            future = begin(largest_node(where, functools.partial(_log_message, logger)))
            while not future.done():
                if terminating():
                    future.cancel()
                    raise Terminated(quiet=True)
                wait([future], POLL_S)
        try:
            cores, memory = future.result()
        except FlowschedError as error:
            raise Error.RuntimeError(f"flowsched: {error}{_next(error)}") from error
        cls._largest = {"cpu": cores or NO_LIMIT, "mem_bytes": memory or NO_LIMIT}
        logger.info(
            StructuredLogMessage(
                "flowsched", url=where.url, largest_node_cpu=cores, largest_node_memory=memory
            )
        )

    @classmethod
    def detect_resource_limits(cls, cfg: config.Loader, logger: logging.Logger) -> dict[str, int]:
        """The largest node."""
        return cls._largest

    def __init__(self, cfg: config.Loader, run_id: str, host_dir: str) -> None:
        super().__init__(cfg, run_id, host_dir)
        self._bind_inputs = True
        self._place: Place | None = None

    def set_place(self, stack: Sequence[str], folder: str) -> None:
        """Set the task's place in its run; without one it is a run of its own."""
        self._place = place(stack, folder, _known)

    def copy_input_files(self, logger: logging.Logger) -> None:
        """Copy the inputs into the working folder instead of mounting them, for this try."""
        super().copy_input_files(logger)
        self._bind_inputs = False

    def reset(self, logger: logging.Logger) -> None:
        """Get ready for another try, in a fresh working folder."""
        super().reset(logger)
        self._bind_inputs = True

    def process_runtime(self, logger: logging.Logger, runtime_eval: dict[str, Value.Base]) -> None:
        """Take what flowsched knows beside miniwdl's own: `gpu` and `gpuCount`, `queue`; and try again what is taken away."""
        super().process_runtime(logger, runtime_eval)
        values = self.runtime_values
        if "inlineDockerfile" in values:
            raise Error.RuntimeError(
                "flowsched builds no images: runtime.inlineDockerfile has to be one that exists"
            )
        for key in ("privileged", "docker_network"):
            if values.get(key):
                logger.warning(StructuredLogMessage("flowsched ignores a runtime setting", setting=key))
        if "gpuCount" in runtime_eval:
            values["gpuCount"] = max(0, int(runtime_eval["gpuCount"].value))
        if "queue" in runtime_eval:
            values["queue"] = str(runtime_eval["queue"].value)
        if RUNTIME_KEY in runtime_eval:
            values[RUNTIME_KEY] = str(runtime_eval[RUNTIME_KEY].value)
        # A lost node or a preemption is not the task's fault, but miniwdl would let the whole run fail for it.
        values["preemptible"] = max(values.get("preemptible", 0), self._set.interruptions)

    def _run(self, logger: logging.Logger, terminating: Callable[[], bool], command: str) -> int:
        self._write_command(command)
        if self._bind_inputs and len(self.input_path_map) > MOST_MOUNTS:
            self._link_inputs(logger)
        self._make_mount_points()
        call = Following(
            _where(self._set),
            document(self._order()),
            f"miniwdl-{uuid.uuid4().hex}",
            functools.partial(_log_message, logger),
        )
        with ExitStack() as cleanup:
            poll_stderr = cleanup.enter_context(self.poll_stderr_context(logger))
            future = begin(call.end())
            shown = stopped = False
            while not future.done():
                if terminating() and not stopped:
                    call.stop()
                    stopped = True
                if call.running.is_set() and not shown:
                    cleanup.enter_context(self.task_running_context())
                    shown = True
                wait([future], POLL_S)
                poll_stderr()
            try:
                end = future.result()
            except FlowschedError as error:
                if stopped:
                    logger.error(StructuredLogMessage("flowsched", error=str(error)))
                    raise Terminated from error
                raise Error.RuntimeError(f"flowsched: {error}{_next(error)}") from error
        if stopped:
            raise Terminated(quiet=not call.running.is_set())
        return self._exit_code(logger, end)

    @property
    def _set(self) -> Settings:
        assert self._settings is not None, "miniwdl calls global_init first"
        return self._settings

    def _exit_code(self, logger: logging.Logger, end: End) -> int:
        """The exit code of the program, if it ended by itself.

        Raises:
            Interrupted: It was taken away, or its node was lost.
            Terminated: A user cancelled it in flowsched; that is not tried again.
            WDL.Error.RuntimeError: It could not be run at all.
        """
        text = ": ".join(filter(None, (end.reason, end.message))) or end.state
        if end.state == "SUCCEEDED":
            return end.exit_code or 0
        self.failure_info = {"flowsched_workflow": end.workflow, "flowsched_reason": text}
        if end.state == "CANCELLED":
            logger.error(StructuredLogMessage("the task was cancelled in flowsched", workflow=end.workflow))
            raise Terminated
        if end.exit_code is None and end.launched:
            raise Interrupted(f"flowsched: {text}", more_info=self.failure_info)
        if end.exit_code in (None, 0) or end.reason not in _OWN_REASONS:
            raise Error.RuntimeError(
                f"flowsched: {text} (workflow {end.workflow})", more_info=self.failure_info
            )
        if end.reason in ("OOMKilled", "Timeout"):
            logger.error(StructuredLogMessage("flowsched ended the task", reason=text, workflow=end.workflow))
        assert end.exit_code is not None
        return end.exit_code

    def _write_command(self, command: str) -> None:
        """The script, with its environment at the top: variables may hold secrets, which have no place in a document."""
        with open(os.path.join(self.host_dir, "command"), "w") as file:
            for name, value in self.runtime_values.get("env", {}).items():
                file.write(f"export {name}={shlex.quote(value)}\n")
            file.write(command)

    def _link_inputs(self, logger: logging.Logger) -> None:
        """Put the inputs into the working folder: links to what the run itself made, copies of what belongs to others."""
        top = os.path.realpath(self._place.top if self._place is not None else self.host_dir)
        for here, path in self.input_path_map.items():
            source, target = os.path.realpath(here), self.host_work_path(path.rstrip("/"))
            os.makedirs(os.path.dirname(target), exist_ok=True)
            own = os.path.commonpath((top, source)) == top
            if path.endswith("/"):
                shutil.copytree(source, target, copy_function=_link if own else _copy)
            elif own:
                _link(source, target)
            else:
                _copy(source, target)
        self._bind_inputs = False
        logger.info(
            StructuredLogMessage("linked the inputs, too many to mount", inputs=len(self.input_path_map))
        )

    def _make_mount_points(self) -> None:
        """Files to mount the inputs on; made here, so that they belong to the user that runs miniwdl."""
        for here in self._streams():
            self.touch_mount_point(here)
        if not self._bind_inputs:
            return
        for path in self.input_path_map.values():
            point = self.host_work_path(path)
            if not os.path.exists(point):
                self.touch_mount_point(point)

    def _streams(self) -> tuple[str, str]:
        """Where this try's stdout and stderr go; miniwdl does not say that they are texts."""
        return str(self.host_stdout_txt()), str(self.host_stderr_txt())  # type: ignore[no-untyped-call]

    def _order(self) -> Order:
        place = self._place or Place(self.host_dir, self.run_id, self.run_id)
        values, settings = self.runtime_values, self._set
        shell = self.cfg.get("task_runtime", "command_shell")
        bound = self.input_path_map.items() if self._bind_inputs else ()
        stdout, stderr = (os.path.basename(path) for path in self._streams())
        return Order(
            place=place,
            run=settings.run or run_of(place),
            attempt=self.try_counter,
            folder=os.path.realpath(self.host_dir),
            work=os.path.realpath(str(self.host_work_dir())),  # type: ignore[no-untyped-call]
            streams=(stdout, stderr),
            shell=shell,
            image=values.get("docker") or self.cfg.get_dict("task_runtime", "defaults")["docker"],
            inputs={path: os.path.realpath(here) for here, path in bound},
            resources=self._resources(),
            limits={"memory": values["memory_limit"]} if "memory_limit" in values else {},
            queue=values.get("queue", settings.queue),
            priority=settings.priority,
            timeout=settings.timeout,
            return_codes=_return_codes(values.get("returnCodes", 0)),
            fetch=values.get(RUNTIME_KEY, ""),
            since_ms=_BEGAN_MS,
        )

    def _resources(self) -> dict[str, Any]:
        values = self.runtime_values
        memory = min(parse_byte_size(self._set.memory), self._largest["mem_bytes"])
        found = {"cpu": values.get("cpu", 1), "memory": values.get("memory_reservation", memory)}
        gpus = values.get("gpuCount", 1 if values.get("gpu") else 0)
        return found | {"gpu": gpus} if gpus else found


def _return_codes(declared: str | int | list[int]) -> tuple[int, ...] | None:
    """With which exit codes a task has ended well; None = with any."""
    if declared == "*":
        return None
    return tuple(declared) if isinstance(declared, list) else (int(declared),)


def note_call(
    cfg: config.Loader,
    logger: logging.Logger,
    run_id_stack: list[str],
    run_dir: str,
    task: Tree.Task,
    **recv: Any,
) -> Generator[dict[str, Any], dict[str, Any], None]:
    """The task plugin: sets the container's place in the run, and changes nothing."""
    recv = yield recv
    container = recv["container"]
    if isinstance(container, Backend):
        container.set_place(run_id_stack, run_dir)
    with _end_reported(cfg, logger, run_id_stack, run_dir) as succeeded:
        recv = yield recv
        succeeded()
        yield recv


def note_workflow(
    cfg: config.Loader,
    logger: logging.Logger,
    run_id_stack: list[str],
    run_dir: str,
    workflow: Tree.Workflow,
    **recv: Any,
) -> Generator[dict[str, Any], dict[str, Any], None]:
    """The workflow plugin: remembers in how many scatters each call is, which the names of calls do not say, and tells the service
    what the run will be; changes nothing.
    """
    if len(run_id_stack) == 1 and cfg.get("scheduler", "container_backend") == "flowsched":
        _plan(cfg, logger, workflow, run_dir, recv["inputs"])
    depths: dict[str, int] = {}
    nodes: list[Tree.WorkflowNode] = list(workflow.body)
    while nodes:
        node = nodes.pop()
        if isinstance(node, Tree.Call):
            depths[node.name] = node.scatter_depth
        elif isinstance(node, Tree.WorkflowSection):
            nodes.extend(node.body)
    _known[run_dir] = Known(workflow.name, depths)
    try:
        with _end_reported(cfg, logger, run_id_stack, run_dir) as succeeded:
            recv = yield recv
            succeeded()
            yield recv
    finally:
        _known.pop(run_dir, None)


@contextmanager
def _end_reported(
    cfg: config.Loader, logger: logging.Logger, stack: Sequence[str], folder: str
) -> Generator[Callable[[], None], None, None]:
    """Say to the service how the run ends, if this is the whole of it: only miniwdl knows whether more calls come.

    Yields what to call once the outputs are there. A service that is away does not keep the run from its end.
    """

    def report(state: str, reason: str = "") -> None:
        if len(stack) != 1 or cfg.get("scheduler", "container_backend") != "flowsched":
            return
        settings = _read_settings(cfg)
        run = settings.run or run_of(Place(folder, stack[0], ""))
        future = begin(report_end(_where(settings), run, state, reason))
        try:
            future.result(REPORT_S)
        except (FlowschedError, TimeoutError) as error:
            future.cancel()
            logger.info(
                StructuredLogMessage("flowsched does not know how the run ended", run=run, why=str(error))
            )

    try:
        yield lambda: report("SUCCEEDED")
    except Exception as error:
        stopped = any(isinstance(each, Terminated) for each in (error, error.__cause__))
        report("CANCELLED" if stopped else "FAILED", f"miniwdl: {error.__cause__ or error}")
        raise


def _plan(
    cfg: config.Loader,
    logger: logging.Logger,
    workflow: Tree.Workflow,
    folder: str,
    inputs: Env.Bindings[Value.Base],
) -> None:
    """Have the run planned while it begins. Without a plan it runs as well, only in another order."""
    settings = _read_settings(cfg)
    if not settings.plan:
        return
    values = values_to_json(inputs, namespace=workflow.name)
    run = settings.run or run_of(Place(folder, workflow.name, ""))

    def report_plan(future: Future[tuple[str, int]]) -> None:
        error = future.exception()
        if error is None:
            ident, calls = future.result()
            logger.info(
                StructuredLogMessage("flowsched has planned the run", plan=ident, calls=calls, run=run)
            )
        else:
            logger.info(StructuredLogMessage("the run has no plan in flowsched", why=str(error), run=run))

    begin(request_plan(_where(settings), workflow.pos.abspath, values, run)).add_done_callback(report_plan)


def run_of(place: Place) -> str:
    """The id of a run: the name of its folder, and what tells it from another run in a folder of that name."""
    known = f"{socket.gethostname()}:{place.top}:{_PROCESS}"
    return f"{os.path.basename(place.top)}-{sha256(known.encode()).hexdigest()[:8]}"


def _link(source: str, target: str) -> None:
    """One more name for a file; a copy where the file system has none to give."""
    try:
        os.link(source, target)
    except OSError:
        _copy(source, target)


def _copy(source: str, target: str) -> None:
    """Copy a file. The copy gives no account the rights of its owner."""
    shutil.copyfile(source, target)
    os.chmod(target, os.stat(source).st_mode & 0o777)


def _read_settings(cfg: config.Loader) -> Settings:
    """The settings.

    Raises:
        WDL.Error.RuntimeError: One of them cannot be read; the message names it.
    """
    try:
        found = read(cfg)
    except ValueError as error:
        raise Error.RuntimeError(str(error)) from error
    try:
        parse_byte_size(found.memory)
    except ValueError:
        raise Error.RuntimeError(
            f"[flowsched] memory is {found.memory!r}, which is no size such as 2G"
        ) from None
    return found


def _where(settings: Settings) -> Where:
    return Where(settings.url, settings.token, settings.patience_s)


def _next(error: FlowschedError) -> str:
    """The remedy, as the end of a message."""
    if isinstance(error, Unavailable):
        return "; start it, or name another by [flowsched] url or FLOWSCHED_SERVER"
    return "; give its token by [flowsched] token or FLOWSCHED_TOKEN" if error.status == 401 else ""


def _log_message(logger: logging.Logger, warning: bool, sentence: str, fields: Mapping[str, Any]) -> None:
    logger.log(logging.WARNING if warning else logging.INFO, StructuredLogMessage(sentence, **fields))
