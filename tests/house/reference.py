"""The pages of docs/reference, drawn from the code: `python -m tests.house.reference` writes them."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import textwrap
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, get_args, get_type_hints

from typer.main import get_command

import flowsched
from flowsched import client, errors
from flowsched.api.openapi import openapi
from flowsched.api.table import ROUTES
from flowsched.cli.app import app
from flowsched.cluster.kubernetes.settings import VARIABLES, KubernetesSettings
from flowsched.scheduling.explain.idle import Cause
from flowsched.scheduling.explain.remedies import Kind
from flowsched.scheduling.plan import PERMANENT, ReasonCode
from flowsched.variables import BESIDE_OPTIONS, BETWEEN_PROCESSES, OF_TASKS
from flowsched.workflow.document.container import CALL, FILES, STEP
from flowsched.workflow.document.decode import STAGE, WORKFLOW
from flowsched.workflow.document.stage import INPUT, OUTPUT, ROLE, TEMPLATE
from flowsched.workflow.run.lifecycle import TRANSITIONS, TaskEvent
from flowsched.workflow.run.states import HOLDING, TERMINAL, ReportedState, RunState, TaskState

CODE: Final = Path(flowsched.__file__).parent
FOLDER: Final = CODE.parent / "docs" / "reference"
_WRITTEN: Final = "`python -m tests.house.reference` writes this page from the code; do not edit it.\n"

#: Reasons with which an attempt ends or a task fails.
OF_ATTEMPTS: Final = {
    "OOMKilled": "It used more memory than it may. With `memory_factor` in `retry` the next attempt gets more",
    "Timeout": "It ran longer than its `timeout`",
    "Released": "flowsched took it away (cancelled, preempted, drained, its gang starts again), and it did not end well first",
    "Cancelled": "A user has cancelled this one task ([what follows](../workflow-document.md#policies))",
    "StartFailed": "It could not be started: no such program or image, a folder that cannot be used. The message says what",
    "ImageRefused": "It names an image where images are not used, or none where there is no default image",
    "ErrImagePull": "Its image cannot be had; the message is the registry's",
    "InvalidImageName": "Its image's name is none",
    "InputMissing": "An input is not at its origin",
    "InputChanged": "An input was written to while the task ran, which succeeded; or it was another version at each copy, and the "
    "task never ran ([versions](../locality.md#versions-of-inputs))",
    "InputLost": "An input was lost between decision and start; the task is queued again",
    "SecretMissing": "A secret that the document names does not exist",
    "PathRefused": "A path that this service may not read or write ([which "
    "paths](../security.md#which-paths-may-be-inputs-and-outputs))",
    "PathNotShared": "A path that is on no shared volume ([shared volumes](../kubernetes.md#shared-volumes))",
    "ContainerPathsRefused": "A path of a container task would hide a folder that its image needs",
    "OutputMissing": "It ended well and did not write an output that it declares",
    "OutputRefused": "An output is neither file nor folder, or leads out of its folder; or the task has put something "
    "else in the place of its working folder or of its log",
    "OutputFailed": "An output could not be delivered to its target",
    "OrderRefused": "The node's agent refused the pod's order: its signature or its age",
    "AgentUnreachable": "The node's agent did not answer",
    "NodeLost": "Its node left the cluster",
    "NodeShutdown": "Its node was shut down",
    "PodDeleted": "Another client deleted its pod ([what follows](../kubernetes.md#pods-and-namespaces-that-others-delete))",
    "Evicted": "Its kubelet took it away, for want of memory or disk on the node",
    "EvictionByEvictionAPI": "Its node was drained (`kubectl drain`), or a program evicted its pod",
    "DeletionByTaintManager": "Its node got a taint (`NoExecute`) that it does not tolerate",
    "PreemptionByScheduler": "Another scheduler took its room for a more important pod",
    "Preempting": "Its kubelet took its room for a critical pod",
    "TerminationByKubelet": "Its kubelet ended it",
    "DeletionByPodGC": "Kubernetes removed its pod, since its node was gone",
    "NamespaceTerminating": "Not an end: its namespace is being deleted, and takes no pods",
    "PodFailed": "Its pod failed without an exit code",
    "BindRefused": "The cluster refused to put its pod on the chosen node",
    "NoSuchNode": "The chosen node was gone before the pod was made",
    "NotLaunched": "A crash came between decision and launch; nothing ran",
    "NotStarted": "Its runner ended before the program began",
    "RunnerLost": "Its runner died, with the program",
    "FolderGone": "The folder of the attempt was removed",
    "DiskFull": "The node's disk had no room for the attempt",
    "QuotaExceeded": "A ResourceQuota of the namespace refuses its pod; it is tried again",
    "PendingTimeout": "It waited longer than its `pending_timeout`",
    "ImagePulling": "Not an end: its image is being pulled",
    "OutputBusy": "Not an end: another attempt still writes a file of this one",
    "OutputNoRoom": "Not an end: a result finds no room at its target",
    "Delivering": "Not an end: the program has ended, and so many of its files are at their targets",
    "NodeUnreachable": "Not an end: its node does not report",
}


#: Kinds of events about tasks, gangs and data: kind -> keys of the body, and what has happened.
OF_EVENTS: Final = {
    "tasks.placed": (
        "group, first, tasks, nodes",
        "Tasks of a stage got nodes: the lowest index, how many, and the names of the nodes",
    ),
    "gang.placed": ("group, first, tasks, nodes", "All members of a gang got nodes, together"),
    "task.running": ("", "The program of an attempt runs"),
    "task.succeeded": (
        "message",
        "A task has succeeded; its outputs are published. `message` names inputs that were written to meanwhile",
    ),
    "task.cached": (
        "source",
        "A shard took the result of another one, named as `WORKFLOW/STAGE/SHARD`, and does not run",
    ),
    "task.attempt_failed": (
        "reason, message, exit_code",
        "An attempt failed. The task is tried again if `retry` allows it; else `task.failed` follows",
    ),
    "task.attempt_lost": (
        "reason",
        "An attempt was lost with its node, or was refused there; this uses up none of `retry`",
    ),
    "task.evicted": (
        "reason, message",
        "An attempt is taken away for other work, or because its node is drained",
    ),
    "task.released": (
        "goal",
        "A pod that was being taken away is gone; `goal` is the state that its task has now",
    ),
    "task.failed": ("reason, message", "A task has failed for good"),
    "gang.released": (
        "reason",
        "A gang that ran below its minimum gave back its room, and waits again as a whole",
    ),
    "dataset.lost": ("", "No node has an output any more that a stage still reads: the task runs again"),
}


def remarks(kind: type) -> dict[str, str]:
    """Name -> the `#:` remark beside it, for the members of an enumeration or the fields of a struct."""
    lines = inspect.getsource(kind).splitlines()
    found = {}
    for node in ast.parse(textwrap.dedent("\n".join(lines))).body[0].body:  # type: ignore[attr-defined]
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if not isinstance(target, ast.Name):
            continue
        said = [
            line.partition("#: ")[2] for line in lines[node.lineno - 1 : node.end_lineno] if "#: " in line
        ]
        found[target.id] = " ".join(said)
    return found


def cell(text: str) -> str:
    """A text as one cell of a table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A table of Markdown."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join([*lines, *("| " + " | ".join(map(cell, row)) + " |" for row in rows)]) + "\n"


# ---- commands ----


def commands(command: Any = None, path: str = "flowsched") -> Iterator[tuple[str, Any]]:
    """Each command with its words, groups before what is in them; hidden ones are left out."""
    command = command or get_command(app)
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from commands(inner, f"{path} {name}")


def cli() -> str:
    """Every command, argument and option."""
    parts = [
        "# Commands\n",
        _WRITTEN,
        "`flowsched COMMAND --help` says the same in a terminal. Options that may be given as a variable name it; an "
        "option wins.\n",
    ]
    for path, command in commands():
        arguments = [each for each in command.params if each.param_type_name == "argument"]
        options = [each for each in command.params if each.param_type_name == "option" and not each.hidden]
        group = bool(getattr(command, "commands", None))
        words = [_argument(each) for each in arguments] + (["COMMAND"] if group else [])
        parts.append(f"## {path}\n")
        parts.append("```text\n" + " ".join([path, *(["[OPTIONS]"] if options else []), *words]) + "\n```\n")
        parts.append(inspect.cleandoc(command.help or command.short_help or "") + "\n")
        if arguments:
            parts.append(
                table(
                    ("argument", "meaning"), [(f"`{_argument(each)}`", each.help or "") for each in arguments]
                )
            )
        if options:
            kinds = get_type_hints(inspect.unwrap(command.callback)) if command.callback else {}
            rows = [_option(each, kinds.get(each.name, str)) for each in options]
            parts.append(table(("option", "meaning", "default", "variable"), rows))
    parts.append(f"## Exit codes\n\n{get_command(app).epilog}\n")
    return "\n".join(parts)


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    shown = name if argument.required or name.startswith("[") else f"[{name}]"
    return f"{shown}..." if argument.nargs == -1 else shown


_WORDS: Final = {int: "INTEGER", float: "NUMBER", Path: "PATH"}


def _word(kind: Any) -> str:
    """What an option takes, from its annotation: versions of typer call it differently."""
    parts = [part for part in get_args(kind) if part is not type(None)]
    if parts:
        return _word(parts[0])
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "/".join(each.value for each in kind)
    return _WORDS.get(kind, "TEXT")


def _option(option: Any, kind: Any) -> tuple[str, ...]:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    if not option.is_flag:
        names += f" `{option.metavar or _word(kind)}`"
    default = option.default
    plain = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    shown = f"`{getattr(default, 'value', default)}`" if plain else ""
    told = option.help or ""
    if not shown and (found := re.search(r"\s*\[([^\]]+)\]\s*$", told)):
        shown, told = found[1], told[: found.start()]
    variables = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
    return names, told, shown, ", ".join(f"`{name}`" for name in variables)


# ---- HTTP ----


def http() -> str:
    """Every route, and every object of its own."""
    document = json.loads(openapi(ROUTES))
    parts = [
        "# HTTP API\n",
        _WRITTEN,
        document["info"]["description"] + "\n",
        "A running service shows the same at `/docs`, and gives it as OpenAPI at `/api/v1/openapi.json`. Requests carry "
        "`Authorization: Bearer TOKEN`, unless the route says *open*.\n",
    ]
    tags: dict[str, list[tuple[str, str, Any]]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            tags.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    for tag, routes in tags.items():
        parts.append(f"## {tag}\n")
        for method, path, operation in routes:
            parts += [f"### {method} {path}\n", _operation(operation)]
    parts.append(
        "## Problems\n\nAn error is a [ProblemView](#problemview) (RFC 9457) with one of these statuses.\n"
    )
    parts.append(_problems(document))
    parts.append("## Objects\n")
    views = importlib.import_module("flowsched.workflow.views")
    for name, schema in document["components"]["schemas"].items():
        if not name.startswith("Workflow.") and name != "Workflow":
            parts.append(_object(name, schema, getattr(views, name, None)))
    parts.append(
        "The objects of a workflow document are in [workflow-document.md](../workflow-document.md).\n"
    )
    return "\n".join(parts)


def _operation(operation: Any) -> str:
    security = "" if "security" in operation else " *Open: needs no token.*"
    parts = [operation["summary"] + "." + security + "\n"]
    if body := operation.get("requestBody"):
        (content,) = body["content"].values()
        need = "" if body.get("required") else " (may be left out)"
        parts.append(f"Body: {_type(content.get('schema', {}))}{need}. {body.get('description', '')}\n")
    if operation.get("parameters"):
        rows = [
            (f"`{each['name']}`", each["in"], _type(each["schema"]), each.get("description", ""))
            for each in operation["parameters"]
        ]
        parts.append(table(("parameter", "in", "type", "meaning"), rows))
    rows, problems = [], []
    for status, answer in operation["responses"].items():
        if "application/problem+json" in answer.get("content", {}):
            problems.append(status)
            continue
        kinds = [
            _type(inner.get("schema", {})) or media for media, inner in answer.get("content", {}).items()
        ]
        rows.append((status, ", ".join(kinds), answer["description"]))
    parts.append(table(("answer", "type", "meaning"), rows))
    if problems:
        parts.append(f"[Problems](#problems): {', '.join(problems)}.\n")
    return "\n".join(parts)


def _problems(document: Any) -> str:
    """What each status of a problem means, the same on every route."""
    found = {
        status: answer["description"]
        for methods in document["paths"].values()
        for operation in methods.values()
        for status, answer in operation["responses"].items()
        if "application/problem+json" in answer.get("content", {})
    }
    return table(("status", "meaning"), sorted(found.items()))


def _type(schema: Any) -> str:
    """A schema in a word or two, with a link where it is an object of its own."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        if name.startswith("Workflow.") or name == "Workflow":
            return "[workflow document](../workflow-document.md)"
        return f"[{name}](#{name.lower()})"
    if options := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(each) for each in options))
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    kind = schema.get("type", "")
    if kind == "array":
        return f"list of {_type(schema.get('items', {})) or 'values'}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_type(schema['additionalProperties']) or 'values'}"
    return " or ".join(kind) if isinstance(kind, list) else kind


def _object(name: str, schema: Any, kind: type | None) -> str:
    said = remarks(kind) if kind is not None else {}
    parts = [f"### {name}\n"]
    if schema.get("description"):
        parts.append(_prose(schema["description"]) + "\n")
    rows = [
        (f"`{field}`", _type(inner), said.get(field) or inner.get("description", ""))
        for field, inner in schema.get("properties", {}).items()
    ]
    if rows:
        parts.append(table(("field", "type", "meaning"), rows))
    return "\n".join(parts)


# ---- the SDK ----


def sdk() -> str:
    """Every public class and method of the SDK, and the errors that it raises."""
    parts = [
        "# Python SDK\n",
        _WRITTEN,
        "`import flowsched` offers `Client`, `SyncClient` and `Workflow`; the other classes are in "
        "`flowsched.client`. Objects that "
        "methods return (`WorkflowView`, `StageView`, …) have the fields of the [HTTP API's objects](http.md#objects).\n",
    ]
    for name in client.__all__:
        kind = getattr(client, name)
        parts += [f"## {name}\n", _signature(name, kind), _prose(inspect.getdoc(kind) or "") + "\n"]
        for member, value in vars(kind).items():
            plain = (
                inspect.unwrap(
                    value.fget if isinstance(value, property) else value,
                    stop=lambda each: hasattr(each, "__signature__"),
                )
                if not member.startswith("_")
                else None
            )
            if inspect.isfunction(plain):
                word = "property" if isinstance(value, property) else ""
                parts += [
                    f"### {name}.{member}\n",
                    _signature(member, plain, word),
                    _prose(inspect.getdoc(plain) or "") + "\n",
                ]
    parts.append("## Errors\n\nAll are in `flowsched.errors`, and below `FlowschedError`.\n")
    rows = [
        (f"`{name}`", (inspect.getdoc(kind) or "").partition("\n\n")[0])
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.FlowschedError)
    ]
    parts.append(table(("error", "meaning"), rows))
    return "\n".join(parts)


class Bare(str):
    """An annotation that shows itself without quotes."""

    def __repr__(self) -> str:
        return str(self)


def _signature(name: str, kind: Any, word: str = "") -> str:
    signature = inspect.signature(kind)
    given = [
        each.replace(annotation=Bare(each.annotation)) if isinstance(each.annotation, str) else each
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    result = signature.return_annotation
    text = str(
        signature.replace(
            parameters=given, return_annotation=Bare(result) if isinstance(result, str) else result
        )
    )
    head = word or ("async" if inspect.iscoroutinefunction(kind) else "")
    return f"```python\n{head + ' ' if head else ''}{name}{text.removesuffix(' -> None')}\n```\n"


def _prose(text: str) -> str:
    """A docstring in Google's style as Markdown."""
    found: list[str] = []
    section = ""
    for line in text.splitlines():
        if re.fullmatch(r"(Args|Raises|Returns|Attributes|Yields):", line):
            section = line
            found.append(f"\n*{line[:-1]}*\n")
        elif section and (entry := re.match(r"    (\w[\w, ]*): (.*)", line)):
            found.append(f"- `{entry[1]}`: {entry[2]}")
        elif section and line.startswith("    ") and found[-1].startswith("- "):
            found.append("  " + line.strip())
        else:
            section = section if line.startswith("    ") or not line else ""
            found.append(line)
    # Indented examples are code to Markdown, too.
    return re.sub(r"\n{3,}", "\n\n", "\n".join(found)).strip()


# ---- settings ----


def option_variables() -> dict[str, str]:
    """Variable -> the options that read it, with their meaning."""
    found: dict[str, dict[str, str]] = {}
    for path, command in commands():
        for option in command.params:
            names = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar or ())
            for name in names:
                told = f"`{option.opts[0]}`: {getattr(option, 'help', None) or ''}"
                where = path.partition(" ")[2]
                found.setdefault(name, {}).setdefault(told, []).append(
                    f"`{where}`" if where else "every command"
                )
    return {
        name: "; ".join(f"{told} ({', '.join(paths)})" for told, paths in uses.items())
        for name, uses in sorted(found.items())
        if name.startswith("FLOWSCHED_")
    }


def kubernetes_variables() -> dict[str, str]:
    """Variable -> meaning and default, from the docstring and the fields of `KubernetesSettings`."""
    said = {}
    for line in (inspect.getdoc(KubernetesSettings) or "").splitlines():
        if entry := re.match(r"    (\w[\w, ]*): (.*)", line):
            said[entry[1]] = entry[2]
    fields = KubernetesSettings.__dataclass_fields__
    return {
        variable: said[field] + (f" Default: `{fields[field].default}`." if fields[field].default else "")
        for variable, (field, _) in sorted(VARIABLES.items())
    }


def settings() -> str:
    """Every variable of the environment."""
    heads = ("variable", "meaning")

    def section(rows: dict[str, str]) -> str:
        return table(heads, [(f"`{name}`", told) for name, told in rows.items()])

    return "\n".join([
        "# Settings: variables of the environment\n",
        _WRITTEN,
        "Policies are in [profiles](../profiles.md), queues in [queues](../queues.md), miniwdl's settings in "
        "[wdl](../wdl.md#settings). "
        "Variables that only tests read are in [CONTRIBUTING](../../CONTRIBUTING.md#variables-of-the-tests). "
        "Commands warn on stderr of a variable `FLOWSCHED_…` that is in none of these lists.\n",
        "## Options of commands\n",
        "Each of these is the default of an option ([commands](cli.md)).\n",
        section(option_variables()),
        "## The service on Kubernetes\n",
        "With `--cluster kubernetes` the service reads these, too. The Helm chart sets them from its values.\n",
        section(kubernetes_variables()),
        "## Others\n",
        section(BESIDE_OPTIONS),
        "## What a task finds\n",
        "flowsched sets these for every task; `env` of a document cannot change them. A gang's members also have "
        "`RANK`, `WORLD_SIZE`, "
        "`LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT` and (at most 512 members) `TF_CONFIG`; a task with GPUs has "
        "`CUDA_VISIBLE_DEVICES`.\n",
        "A task inherits no other variable of the shell that submits it or of the service. On one machine `PATH` is the service's "
        "behind the folder of its own Python, so `python` is the one that flowsched runs on; in a container it is the image's. "
        "`HOME` and the current folder are the working folder of the attempt, `TMPDIR` is `tmp` in it, and `LANG` is `C.UTF-8`. "
        "`env` of a document can set these.\n",
        section(OF_TASKS),
        "## Between flowsched's own processes\n",
        "Users set none of these. They are listed so that a reader of a pod or a process knows what they are.\n",
        section(BETWEEN_PROCESSES),
    ])  # fmt: skip


# ---- reasons and states ----


def reasons() -> str:
    """Why something waits, what would change it, why cores are idle, and how attempts end."""

    def of(kind: type[Enum], *, lower: bool = False) -> list[tuple[str, ...]]:
        said = remarks(kind)
        return [(f"`{each.name.lower() if lower else each.value}`", said[each.name]) for each in kind]

    permanent = {f"`{code.value}`" for code in PERMANENT}
    codes = [(name, told, "never by itself" if name in permanent else "") for name, told in of(ReasonCode)]
    return "\n".join([
        "# Reasons\n",
        _WRITTEN,
        "`flowsched explain` shows them, and [explain.md](../explain.md) says how to read its answers.\n",
        "## Why something waits\n",
        table(("code", "meaning", "ends"), codes),
        "## Suggestions\n",
        table(("kind", "change"), of(Kind)),
        "## Why cores are idle\n",
        table(("cause", "meaning"), of(Cause, lower=True)),
        "## How an attempt ended\n",
        "`reason` of an attempt, beside its exit code. An attempt that ended with its program's own exit code has "
        "none. Kubernetes' own reasons "
        "(`Evicted`, `Preempting`, `CreateContainerConfigError` and others) are passed on as they are.\n",
        table(("reason", "meaning"), [(f"`{name}`", told) for name, told in OF_ATTEMPTS.items()]),
    ])  # fmt: skip


def states() -> str:
    """The states of tasks, stages and workflows."""
    said = remarks(TaskState)
    tasks = [
        (
            f"`{each.name}`",
            said[each.name],
            "yes" if each in HOLDING else "",
            "yes" if each in TERMINAL else "",
        )
        for each in TaskState
    ]
    arrows = []
    for event, row in TRANSITIONS.items():
        moves = [f"{before.name} → {after.name}" for before, after in row.items() if before is not after]
        if moves:
            arrows.append((f"`{event.name.lower()}`", remarks(TaskEvent)[event.name], ", ".join(moves)))
    reported, stored = remarks(ReportedState), remarks(RunState)
    rows = [(f"`{each.value}`", reported[each.name] or stored.get(each.name, "")) for each in ReportedState]
    return "\n".join([
        "# States\n",
        _WRITTEN,
        "## Workflows and stages\n",
        "What lists, the API and the SDK show.\n",
        table(("state", "meaning"), rows),
        "## Tasks\n",
        table(("state", "in and out", "holds room on a node", "terminal"), tasks),
        "## What moves a task\n",
        "[Architecture](../architecture.md) shows the same as a diagram.\n",
        table(("event", "meaning", "moves"), arrows),
    ])  # fmt: skip


def events() -> str:
    """What `flowsched events`, the event stream and `Client.events` tell."""
    said = remarks(RunState)
    words = {
        RunState.SUCCEEDED: "it has ended well",
        RunState.FAILED: "it has ended; a task failed, and no policy says otherwise",
        RunState.CANCELLED: "it has ended, since a user or a policy asked for it",
        RunState.SKIPPED: "it has ended without having run, by its condition or because a stage before it failed",
    }
    of_workflows = [
        (
            "`workflow.submitted`",
            "`name`, `queue`, `shard`, `attempt`",
            "The service has accepted it; of a call of another engine's run which one it is",
        )
    ]
    of_stages = []
    for each in RunState:
        told = said[each.name] or words[each]
        if each is not RunState.PENDING:
            of_workflows.append((f"`workflow.{each.value.lower()}`", "`reason`", told))
            if each not in (RunState.PAUSED, RunState.CANCELLING):
                of_stages.append((f"`stage.{each.value.lower()}`", "`stage`, `reason`", told))
    of_tasks = [
        (f"`{kind}`", ", ".join(f"`{key}`" for key in keys.split(", ") if key), told)
        for kind, (keys, told) in OF_EVENTS.items()
    ]
    heads = ("kind", "keys of `body`", "what has happened")
    return "\n".join([
        "# Events\n",
        _WRITTEN,
        "The history of a workflow, line by line: `flowsched events ID`, `flowsched watch ID -o jsonl`, `GET "
        "/api/v1/workflows/ID/events`, `Client.events`. Each event is an [EventView](http.md#eventview); its `kind` says what "
        "`body` holds. A client should ignore kinds and keys that it does not know: versions add some.\n",
        "## Workflows\n",
        "The last event of a workflow is one of `workflow.succeeded`, `workflow.failed`, `workflow.cancelled` and "
        "`workflow.skipped`, until a user tries it again.\n",
        table(heads, of_workflows),
        "## Stages\n",
        table(heads, of_stages),
        "## Tasks, gangs and data\n",
        "Besides the keys below, all but the two `.placed` have `stage`, `index` (which task) and `attempt` (from 0). "
        "`group` is the stage with its shards. `reason` is one of [these](reasons.md#how-an-attempt-ended), or `exit code N`.\n",
        table(heads, of_tasks),
    ])  # fmt: skip


PAGES: Final[dict[str, Callable[[], str]]] = {
    "cli.md": cli,
    "http.md": http,
    "sdk.md": sdk,
    "settings.md": settings,
    "reasons.md": reasons,
    "states.md": states,
    "events.md": events,
}


# ---- keys of a workflow document ----


#: A page beside the folder: prose, with tables of keys between marks.
DOCUMENT: Final = CODE.parent / "docs" / "workflow-document.md"
_TABLES: Final = {
    "workflow": WORKFLOW.keys,
    "stage": STAGE.keys,
    "input": INPUT.keys,
    "output": OUTPUT.keys,
    "step": STEP.keys,
    "files": FILES.keys,
    "call": CALL.keys,
    "role": {name: key for name, key in ROLE.keys.items() if name not in TEMPLATE},
}
_MARKED: Final = re.compile(r"(<!-- keys: (\w+) -->\n\n).*?(\n<!-- /keys -->)", re.DOTALL)


def with_keys(page: str) -> str:
    """The page with its tables as the code has them."""

    def drawn(found: re.Match[str]) -> str:
        rows: list[tuple[str, ...]] = []
        for name, key in _TABLES[found[2]].items():
            default = "none" if key.default is None else f"`{json.dumps(key.default)}`"
            default = "required" if key.required else key.otherwise or default
            rows.append((f"`{name}`", _kind(key.kind.schema), default, key.about))
        return found[1] + table(("Key", "Type", "Default", "Meaning"), rows) + found[3]

    return _MARKED.sub(drawn, page)


def _kind(schema: Any) -> str:
    """What a value may be, in a few words."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#quantities)" if name in ("quantity", "duration") else f"object ({name})"
    if options := schema.get("anyOf"):
        return " or ".join(dict.fromkeys(_kind(each) for each in options))
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    match schema.get("type", ""):
        case "array":
            return f"array of {_kind(schema['items'])}".replace("array of object", "array of objects")
        case "object" if isinstance(inner := schema["additionalProperties"], dict):
            return f"object of {_kind(inner)}".replace("object of object", "object of objects")
        case "object":
            return f"object with {', '.join(f'`{name}`' for name in schema['properties'])}"
        case "integer":
            return f"whole number, {schema['minimum']:,} to {schema['maximum']:,}"
        case "boolean":
            return "true or false"
    return "text"


def text(name: str) -> str:
    """A page as it should be."""
    return re.sub(r"\n{3,}", "\n\n", PAGES[name]()).rstrip("\n") + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in PAGES:
        (FOLDER / name).write_text(text(name), encoding="utf-8")
    DOCUMENT.write_text(with_keys(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
