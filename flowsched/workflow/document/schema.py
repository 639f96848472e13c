"""The JSON Schema of a workflow document, for editors and for programs that write documents.

It says what one object may hold. What stands against each other (names that exist, cycles, widths) only `decode` knows:
every document that `decode` accepts is valid under this schema, not the other way round. `workflow.schema.json` is its
printed form: `python -m flowsched.workflow.document.schema > flowsched/workflow/workflow.schema.json`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from flowsched.workflow.document import reader
from flowsched.workflow.document.limits import DEFAULT, Limits
from flowsched.workflow.document.policies import ACTIONS, EVENTS
from flowsched.workflow.spec import LeftFor, Match, When

Schema = dict[str, Any]

IDENTIFIER: Final = "urn:flowsched:workflow-document"


def workflow_schema(limits: Limits = DEFAULT) -> Schema:
    """The schema, with the limits of an installation."""
    properties: Schema = {
        "name": _text("What people call it. 1-128 printable characters.", minLength=1, maxLength=128),
        "queue": _named(reader.PART, "Which queue pays for it.", default="default"),
        "user": _text(
            "Who submits it: the users of a queue share it fairly. 1-128 printable characters.",
            minLength=1,
            maxLength=128,
        ),
        "resume": _text(
            "Id of an ended workflow: tasks that are the same as there are not run again.",
            minLength=1,
            maxLength=128,
        ),
        "priority": _whole("Higher goes first within its queue.", -1_000_000_000, 1_000_000_000, default=0),
        "labels": _texts("Anything to find it by.", limits.labels),
        "call": _call(limits),
        "stages": {
            "description": "The nodes of the DAG.",
            "type": "array",
            "minItems": 1,
            "maxItems": limits.stages,
            "items": {"$ref": "#/$defs/stage"},
        },
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": IDENTIFIER,
        "title": "flowsched workflow",
        **_object("A DAG of stages.", properties, ["name", "stages"]),
        "$defs": {
            "quantity": _quantity(),
            "duration": _duration(),
            "resources": _resources(),
            "stage": _stage(limits),
            "role": _role(limits),
            "input": _input(limits),
            "output": _output(),
            "policy": _policy(),
            "toleration": _toleration(),
        },
    }


def _object(description: str, properties: Schema, required: list[str] | None = None) -> Schema:
    made = {
        "description": description,
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    return made if required is None else {**made, "required": required}


#: A text that a process is given; a number is the text that it is written as.
_FREE: Final[Schema] = {"type": ["string", "number"]}


def _text(description: str, **more: Any) -> Schema:
    return {"description": description, "type": "string", **more}


def _named(pattern: re.Pattern[str], description: str, **more: Any) -> Schema:
    return _text(description, pattern=f"^(?:{pattern.pattern})$", **more)


def _whole(description: str, low: int, high: int, **more: Any) -> Schema:
    return {"description": description, "type": "integer", "minimum": low, "maximum": high, **more}


def _flag(description: str, default: bool = False) -> Schema:
    return {"description": description, "type": "boolean", "default": default}


def _choice(description: str, words: list[str], **more: Any) -> Schema:
    return {"description": description, "enum": words, **more}


def _ref(name: str, description: str, **more: Any) -> Schema:
    return {"$ref": f"#/$defs/{name}", "description": description, **more}


def _list(of: Schema, description: str, most: int, least: int = 0) -> Schema:
    return {"description": description, "type": "array", "items": of, "minItems": least, "maxItems": most}


def _texts(description: str, most: int, key: re.Pattern[str] | None = None, **value: Any) -> Schema:
    made: Schema = {
        "description": description,
        "type": "object",
        "maxProperties": most,
        "additionalProperties": {**_FREE, **value},
    }
    return made if key is None else {**made, "propertyNames": {"pattern": f"^(?:{key.pattern})$"}}


def _quantity() -> Schema:
    pattern = r"^ *\+?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,3}|[numkMGTPE]|[KMGTPE]i)? *$"
    return {
        "description": "A Kubernetes quantity: a number, or text as 500m, 2G (2·1000³), 8Gi (8·1024³), 1e3.",
        "anyOf": [{"type": "number", "minimum": 0}, {"type": "string", "pattern": pattern, "maxLength": 64}],
        "examples": [4, 0.5, "500m", "8Gi"],
    }


def _duration() -> Schema:
    plain = r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]{1,3})?"
    parts = r"(?:[0-9]{1,15}(?:\.[0-9]{1,9})?(?:ms|[dhms]))+"
    return {
        "description": "Seconds as a number, or text as 25m, 1h30m, 90s, 250ms, 1d.",
        "anyOf": [
            {"type": "number", "minimum": 0},
            {"type": "string", "pattern": f"^ *(?:{plain}|{parts}) *$"},
        ],
        "examples": ["25m", "1h30m", 90],
    }


def _resources() -> Schema:
    properties: Schema = {
        "cpu": _ref("quantity", "Cores.", default=1),
        "memory": _ref("quantity", "Bytes.", default="256Mi"),
        "disk": _ref("quantity", "Bytes of the working folder.", default=0),
        "gpu": _ref("quantity", "Devices; fractions are allowed.", default=0),
    }
    extended = {
        f"^(?:{reader.EXTENDED.pattern})$": _ref("quantity", "A whole count of an extended resource.")
    }
    return {**_object("What one pod asks for.", properties), "patternProperties": extended}


def _template(limits: Limits) -> Schema:
    """The properties that a stage and a role share."""
    image = {"image": _text("The image reference.", pattern=r"^(?!-)[!-~]{1,1024}$")}
    reference = r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,252}(/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,252})?$"
    return {
        "container": _object("The container the command runs in.", image, ["image"]),
        "command": _list(
            _FREE,
            "Program and arguments; no shell in between. $(NAME) is replaced by the variable NAME.",
            limits.arguments,
            1,
        ),
        "resources": _ref("resources", "What one pod is given at least."),
        "limits": _ref("resources", "What one pod is given at most; what is not named is not limited."),
        "env": _texts("Variables. FLOWSCHED_… are the service's.", limits.environment, reader.VARIABLE),
        "secrets": _texts(
            "Variable: name of a secret, never the secret itself.",
            limits.environment,
            reader.VARIABLE,
            pattern=reference,
        ),
    }


def _role(limits: Limits) -> Schema:
    properties: Schema = {
        "replicas": _whole("Members.", 1, limits.gang_members, default=1),
        "min": _whole("Fewer never start; all replicas if not said.", 1, limits.gang_members),
        "grow": _flag("Whether members beyond `min` join the gang while it goes on, when room comes.", True),
        "completes": _flag("Whether the stage waits for it to end; false for servers.", True),
        "io": _traffic(),
        **_template(limits),
    }
    return _object("A pod template of a gang; what it does not say, it has from its stage.", properties)


def _stage(limits: Limits) -> Schema:
    properties: Schema = {
        "name": _named(reader.STAGE, "Its name, unique in the workflow."),
        "scatter": _scatter(limits),
        **_template(limits),
        "inputs": _list({"$ref": "#/$defs/input"}, "What it reads.", limits.inputs),
        "outputs": _list({"$ref": "#/$defs/output"}, "What it writes.", limits.outputs),
        "needs": _list({"type": "string", "minLength": 1}, "Stages that must end first.", limits.needs),
        "estimate": _object(
            "What you expect of one task; learned when left out.",
            {
                "runtime": _ref("duration", "How long it runs."),
                "output": _ref("quantity", "How many bytes it writes."),
            },
        ),
        "retry": _object(
            "How often one task is tried.",
            {
                "attempts": _whole("In all.", 1, 100, default=1),
                "memory_factor": _ref("quantity", "1 to 10: growth after running out of memory.", default=1),
            },
        ),
        "timeout": _ref("duration", "An attempt that runs longer is ended and has failed."),
        "policies": _list(
            {"$ref": "#/$defs/policy"}, "What happens on events; the first that fits.", limits.labels
        ),
        "when": _when(limits),
        **_placing(limits),
        "gang": _flag("Whether all members of a shard start together or not at all."),
        "roles": {
            "description": "The members of a gang, by role.",
            "type": "object",
            "minProperties": 1,
            "maxProperties": limits.roles,
            "propertyNames": {"pattern": f"^(?:{reader.STAGE.pattern})$"},
            "additionalProperties": {"$ref": "#/$defs/role"},
        },
        "min_resources": _ref("resources", "Room that must be free before the gang starts."),
        "io": _traffic(),
        "cache": _flag(
            "Whether a task that has run before, in any workflow of its tenant, is not run again."
        ),
        "steps": _list(
            _step(limits), "Programs that run one after the other in containers.", limits.roles, 1
        ),
        "files": _files(limits),
    }
    beside = dict.fromkeys(("command", "inputs", "outputs", "container"), False)
    return {
        **_object("A node of the DAG.", properties, ["name"]),
        "anyOf": [{"required": ["command"]}, {"required": ["roles"]}, {"required": ["steps"]}],
        "dependentSchemas": {
            "roles": {"required": ["gang"], "properties": {"gang": {"const": True}}},
            "steps": {"properties": beside},
            "files": {"required": ["steps"]},
        },
    }


def _inside(description: str) -> Schema:
    return _text(description, pattern="^/")


def _step(limits: Limits) -> Schema:
    template = _template(limits)
    properties: Schema = {
        "command": template["command"],
        "image": _text("The image reference.", pattern=r"^(?!-)[!-~]{1,1024}$"),
        "env": template["env"],
        "workdir": _inside("Where it starts."),
        "stdin": _inside("The file it reads."),
        "stdout": _inside("Appended to."),
        "stderr": _inside("Appended to."),
        "ignore_error": _flag("Whether the next step runs though this one failed."),
    }
    return _object("A program and its image.", properties, ["command"])


def _files(limits: Limits) -> Schema:
    placed: Schema = {
        "path": _inside("Where the steps find it."),
        "uri": _text("/path or file:///path that every node sees, http(s):// or s3://."),
        "content": _text("The bytes themselves, at most 1 MiB."),
        "directory": _flag("Whether it is a folder."),
        "size": _ref("quantity", "Bytes, if known."),
    }
    delivered: Schema = {
        "path": _inside("Where the steps leave it; may hold wildcards."),
        "uri": _text("Where it goes: /path, file:///path or s3://bucket/key."),
        "directory": _flag("Whether it is a folder."),
        "path_prefix": _inside("What is taken off the paths that a wildcard finds."),
        "name": _text("What people call it."),
    }
    mount: Schema = {
        "source": _inside("A folder that every node sees."),
        "path": _inside("Where the steps see it."),
        "read_only": _flag("Whether they may only read it."),
    }
    left: Schema = {
        "path": _inside("A file that is there when an attempt has ended, however it ended."),
        "content": _text("What is written where nobody has written it."),
        "reason": _choice("Only an end for this reason leaves it.", [str(end) for end in LeftFor]),
    }
    one = [{"required": ["uri"]}, {"required": ["content"]}]
    properties: Schema = {
        "inputs": _list({**_object("", placed, ["path"]), "oneOf": one}, "Put there first.", limits.files),
        "outputs": _list(_object("", delivered, ["path", "uri"]), "Taken out at the end.", limits.files),
        "mounts": _list(_object("", mount, ["source", "path"]), "Folders of the nodes.", limits.inputs),
        "volumes": _list(_inside(""), "Empty folders that the steps share.", limits.inputs),
        "leave": _list(_object("", left, ["path", "content"]), "Files left in any case.", limits.outputs),
        "return_code": _inside("Where the steps write a return code that their client judges by."),
    }
    return _object("The files of steps, at absolute paths of their containers.", properties)


def _call(limits: Limits) -> Schema:
    most = (1 << 53) - 1
    properties: Schema = {
        "run": _text("Which run: the same text, the same run.", minLength=1, maxLength=1024),
        "run_name": _text("What people call the run.", maxLength=1024),
        "source": _text("The engine that says so.", maxLength=1024),
        "node": _text("Which call of the run.", minLength=1, maxLength=1024),
        "shard": _whole("Which element of a scatter.", 0, most),
        "task": _text("Which task of the node: the same text, the same task.", maxLength=1024),
        "attempt": _whole(
            "Which attempt of the task, as the engine numbers them. Without it and `task`, the call is a task of its own.",
            1,
            1_000_000,
        ),
        "after": _list({"type": "string", "minLength": 1}, "Calls whose outputs it reads.", limits.inputs),
        "rank_ms": _whole(
            "Expected ms from its start to the end of the run; 0 is unknown.", 0, most, default=0
        ),
        "since_ms": _whole("When the run began, wall-clock ms; 0 is unknown.", 0, most, default=0),
    }
    return _object("The larger run that this workflow is one call of.", properties, ["run", "node"])


def _scatter(limits: Limits) -> Schema:
    most = limits.tasks_per_stage
    properties = {
        "items": _list(_FREE, "One shard for each.", most),
        "count": _whole("So many shards.", 0, most),
    }
    made = _object("One task (or gang) for each item.", properties)
    return {**made, "oneOf": [{"required": ["items"]}, {"required": ["count"]}]}


def _when(limits: Limits) -> Schema:
    outcome = _choice("Of the stages it waits for.", [str(word) for word in When], default="success")
    values = {"anyOf": [_FREE, _list(_FREE, "Any of these.", limits.labels, 1)]}
    equals = {
        "description": '"stage.output": the text, or texts, that the recorded value must be.',
        "type": "object",
        "maxProperties": limits.labels,
        "propertyNames": {"pattern": r"^[^.]+\.[\s\S]+$"},
        "additionalProperties": values,
    }
    properties = {"outcome": outcome, "equals": equals}
    return {
        "description": "Whether it runs at all.",
        "anyOf": [outcome, _object("Outcome and values.", properties)],
    }


def _placing(limits: Limits) -> Schema:
    label = f"^(?:{reader.LABEL_VALUE.pattern})$"
    return {
        "selector": _texts("Labels its node must have.", limits.labels, reader.LABEL_KEY, pattern=label),
        "tolerations": _list({"$ref": "#/$defs/toleration"}, "Taints it stands.", limits.labels),
        "affinity": {
            "description": "Kubernetes' affinity, as far as `selector` can say it.",
            "type": "object",
            "properties": {"nodeAffinity": {"type": "object"}},
            "additionalProperties": False,
        },
        "anti_affinity": _choice("At most one pod of the stage on a node.", ["node"]),
        "topology": _object(
            "Which members must be near each other.",
            {"rack": _choice("All members of a gang in one rack.", ["required", "preferred"])},
        ),
    }


def _traffic() -> Schema:
    amount = {
        "description": "Bytes in all, or a rate as 200Mi/s.",
        "anyOf": [{"$ref": "#/$defs/quantity"}, {"type": "string", "pattern": "^.+/s$"}],
    }
    storage = _named(reader.STORAGE, "The shared storage that it reads and writes instead, by name.")
    return _object(
        "What one pod reads from and writes to its node's disk.",
        {"read": amount, "write": amount, "storage": storage},
    )


def _input(limits: Limits) -> Schema:
    properties: Schema = {
        "name": _named(reader.PART, "FLOWSCHED_INPUT_<NAME> says where it is."),
        "uri": _text("From outside; {item} and {index} are replaced.", maxLength=limits.string_bytes),
        "size": _ref("quantity", "Bytes, if known."),
        "from": _text('"stage.output".', pattern=r"^[^.]+\.[\s\S]+$"),
        "match": _choice("How shards meet.", [str(match) for match in Match], default="all"),
        "manifest": _flag("A file that lists the paths, even if there is one."),
        "optional": _flag("Run without it if its producer was skipped or wrote nothing."),
    }
    outside = {
        "required": ["uri"],
        "properties": dict.fromkeys(("from", "match", "manifest", "optional"), False),
    }
    inside = {"required": ["from"], "properties": dict.fromkeys(("uri", "size"), False)}
    return {**_object("What a stage reads.", properties, ["name"]), "oneOf": [outside, inside]}


def _output() -> Schema:
    properties: Schema = {
        "name": _named(reader.PART, "FLOWSCHED_OUTPUT_<NAME> says where to write it."),
        "path": _text(
            "Below the working folder, without `..`; {item} and {index} are replaced.",
            minLength=1,
            pattern="^[^/]",
        ),
        "role": _text("Whose file it is in a gang: member 0 of this role."),
        "optional": _flag("Whether it may be missing."),
        "value": _flag("Whether its text (at most 4 KiB) is recorded, for people and for `when`."),
    }
    return _object("What a stage writes.", properties, ["name", "path"])


def _policy() -> Schema:
    event = _choice("What happened.", list(EVENTS))
    codes = _list({"type": "integer", "minimum": 1, "maximum": 255}, "Only for these exit codes.", 256, 1)
    properties: Schema = {
        "event": event,
        "on": event,
        "action": _choice("What to do.", list(ACTIONS)),
        "exit_codes": codes,
        "timeout": _ref("duration", "How long it has to last: for task_pending and task_unknown."),
    }
    some = [{"required": [key]} for key in ("event", "on", "exit_codes")]
    return {
        **_object("On an event, an action; Volcano's names are understood.", properties, ["action"]),
        "anyOf": some,
        "not": {"required": ["event", "on"]},
    }


def _toleration() -> Schema:
    properties: Schema = {
        "key": _text("The key of the taint.", pattern=f"^(?:{reader.LABEL_KEY.pattern})?$"),
        "operator": _choice("Equal compares the value.", ["Equal", "Exists"], default="Equal"),
        "value": _named(reader.LABEL_VALUE, "The value of the taint."),
        "effect": _choice("Empty for all.", ["", "NoSchedule", "PreferNoSchedule", "NoExecute"], default=""),
    }
    return _object("As in Kubernetes.", properties)


def printed(schema: Mapping[str, Any] | None = None) -> str:
    """The text of `workflow.schema.json`."""
    return json.dumps(schema or workflow_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(printed(), end="")
