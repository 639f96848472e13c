"""Reading a stage: its pod template and roles, its rules about nodes, its inputs and outputs by stage and output or by URI."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from flowsched.workflow.document import keys
from flowsched.workflow.document import reader as names
from flowsched.workflow.document.keys import Form, Key, Section, Table
from flowsched.workflow.document.limits import DEFAULT, MOST_LISTED
from flowsched.workflow.document.reader import LABEL_KEY_TEXT, LABEL_VALUE_TEXT, child, shown
from flowsched.workflow.document.uris import CONTROL, redacted, wrong_uri
from flowsched.workflow.resources import parse_bytes, parse_count, parse_cpu, parse_gpu
from flowsched.workflow.spec import (
    EMPTY,
    PLAIN_ROLE,
    Container,
    InputSpec,
    Match,
    OutputSpec,
    Resources,
    RoleSpec,
    Rules,
    Toleration,
    Traffic,
)

_LABEL_KEY: Final = Form(LABEL_KEY_TEXT, names.LABEL_KEY)
_LABEL_VALUE: Final = Form(LABEL_VALUE_TEXT, names.LABEL_VALUE)
TOLERATION: Final = Table(
    "As in Kubernetes.",
    {
        "key": Key(
            keys.text(Form(LABEL_KEY_TEXT, re.compile(f"(?:{names.LABEL_KEY.pattern})?"))),
            "The key of the taint",
        ),
        "operator": Key(keys.choice(("Equal", "Exists")), "`Equal` compares the value", default="Equal"),
        "value": Key(keys.text(_LABEL_VALUE), "The value of the taint"),
        "effect": Key(
            keys.choice(("", "NoSchedule", "PreferNoSchedule", "NoExecute")),
            "Empty for all",
            default="",
        ),
    },
    elsewhere={
        "tolerationSeconds": "nothing: how long a lost node is waited for is a setting of the service"
    },
    name="toleration",
)
_ONLY_RACK: Final = "topology.rack only: a rack is the one domain flowsched knows the network of"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_ONLY_EQUALITY: Final = (
    'selector: {"label": "value"}: flowsched demands equality only, '
    "so one term of matchExpressions with operator In and one value is all that can be said here"
)
#: Where the pods of a stage may run.
PLACING: Final[Mapping[str, Key]] = {
    "selector": Key(
        keys.map_of(keys.text(_LABEL_VALUE, free=True), "labels", _LABEL_KEY),
        "Labels its node must have",
    ),
    "tolerations": Key(
        keys.list_of(TOLERATION, "labels"),
        "Taints it stands, as in Kubernetes: `key`, `operator` (`Equal` or `Exists`), `value`, `effect`",
    ),
    "affinity": Key(
        Table(
            "Kubernetes' affinity.",
            {
                "nodeAffinity": Key(
                    Table(
                        "Which nodes it needs.",
                        {_REQUIRED: Key(keys.ANYTHING, "One term with values of labels")},
                        elsewhere={
                            "preferredDuringSchedulingIgnoredDuringExecution": "nothing: preferring nodes is the "
                            "scheduler's part, which weighs all of them in seconds",
                        },
                    ),
                    "Which nodes it needs",
                )
            },
            elsewhere={
                "podAffinity": 'topology: {"rack": "required" or "preferred"}: pods of other stages cannot be named',
                "podAntiAffinity": 'anti_affinity: "node": pods of other stages cannot be named',
            },
        ),
        "Kubernetes' form, as far as it can be said by `selector`; the rest is refused with the reason",
    ),
    "anti_affinity": Key(keys.choice({"node": True}), "At most one of its pods on a node"),
    "topology": Key(
        Table(
            "Which members must be near each other.",
            {
                "rack": Key(
                    keys.choice(("required", "preferred")),
                    "All members of a gang in one rack",
                )
            },
            elsewhere={
                "zone": _ONLY_RACK,
                "region": _ONLY_RACK,
                "node": 'anti_affinity: "node" for one pod a node; pods on one node cannot be demanded',
            },
        ),
        "Which members of a gang must be near each other: all in one rack (`rack` is `required` or `preferred`)",
    ),
}


def make_rules(section: Section) -> Rules:
    """The `selector`, `tolerations`, `affinity`, `anti_affinity` and `topology` of a stage."""
    selector = section["selector"] or {}
    from_affinity = _affinity(section["affinity"])
    for name in from_affinity.keys() & selector.keys():
        if from_affinity[name] != selector[name]:
            section.fault("affinity", f"the same value for {shown(name)} as in selector")
    topology = section["topology"]
    return Rules(
        selector=MappingProxyType({**from_affinity, **selector}),
        tolerations=tuple(_toleration(entry) for entry in section["tolerations"] or () if entry is not None),
        rack=None if topology is None else topology["rack"],
        one_per_node=section["anti_affinity"] or False,
    )


def _toleration(entry: Section) -> Toleration:
    operator, value = entry["operator"], entry["value"] or ""
    if operator == "Exists" and value:
        entry.fault("value", "nothing beside operator Exists")
    if operator == "Equal" and "key" not in entry:
        entry.fault("key", 'the key of a taint (or operator "Exists" for all taints)')
    return Toleration(entry["key"] or "", operator, value, entry["effect"])


def _affinity(section: Section | None) -> Mapping[str, str]:
    """The part of Kubernetes' affinity that a selector can say; the rest is refused with the reason."""
    nodes = None if section is None else section["nodeAffinity"]
    if nodes is None or _REQUIRED not in nodes:
        return EMPTY
    match nodes.values[_REQUIRED]:
        case {"nodeSelectorTerms": [{"matchExpressions": [*expressions], **others}], **more} if not (
            others or more
        ):
            selector: dict[str, str] = {}
            for expression in expressions:
                match expression:
                    case {"key": str(key), "operator": "In", "values": [str(value)]} if (
                        names.LABEL_KEY.fullmatch(key) and names.LABEL_VALUE.fullmatch(value)
                    ):
                        selector[key] = value
                    case _:
                        nodes.fault(_REQUIRED, _ONLY_EQUALITY)
                        return EMPTY
            return selector
    nodes.fault(_REQUIRED, _ONLY_EQUALITY)
    return EMPTY


_AMOUNT_TEXT: Final = 'bytes in all, as "3Gi", or a rate, as "200Mi/s"'


def _parse_rate(value: object) -> int:
    return parse_bytes(str(value).removesuffix("/s"))


_TOTAL: Final = keys.amount(parse_bytes, _AMOUNT_TEXT)
_RATE: Final = keys.amount(_parse_rate, _AMOUNT_TEXT)


def _read_amount(section: Section, key: Any) -> tuple[int, int]:
    """(bytes, bytes a second): the one that was declared; the other is 0."""
    value = section.values[key]
    if isinstance(value, str) and value.endswith("/s"):
        return 0, _RATE.read(section, key) or 0
    return _TOTAL.read(section, key) or 0, 0


_IO_AMOUNT: Final = keys.Kind(
    _read_amount, {"anyOf": [_TOTAL.schema, {"type": "string", "pattern": "^.+/s$"}]}
)
IO: Final = Table(
    "The bytes that one pod reads from and writes to its node's disk.",
    {
        "read": Key(_IO_AMOUNT, 'Bytes in all (`"3Gi"`) or a rate (`"200Mi/s"`)'),
        "write": Key(_IO_AMOUNT, "The same of what it writes"),
        "storage": Key(
            keys.text(Form("the name of a shared storage", names.STORAGE)),
            "The shared storage that it reads and writes instead, by name",
        ),
    },
)


def make_traffic(entry: Section | None) -> Traffic:
    """The `io` of a stage or role."""
    if entry is None:
        return Traffic()
    (read_bytes, read_rate), (write_bytes, write_rate) = entry["read"] or (0, 0), entry["write"] or (0, 0)
    return Traffic(read_bytes, write_bytes, read_rate, write_rate, entry["storage"] or "")


# ---- pod templates and roles ----


_NOTHING: Final = Resources(cpu_millicores=0, memory_bytes=0)
_HINT: Final = "the amounts themselves: limits stand beside resources, in the stage or role"
RESOURCES: Final = Table(
    "The resources that one pod requests.",
    {
        "cpu": Key(keys.amount(parse_cpu, 'cores, as 4, 0.5 or "500m"', default=1), "Cores"),
        "memory": Key(keys.amount(parse_bytes, 'bytes, as "8Gi"', default="256Mi"), "Bytes"),
        "disk": Key(keys.amount(parse_bytes, 'bytes, as "20Gi"', default=0), "Bytes of the working folder"),
        "gpu": Key(
            keys.amount(parse_gpu, "devices, as 1 or 0.5", default=0), "Devices; fractions are allowed"
        ),
    },
    elsewhere={"ephemeral-storage": "disk", "requests": _HINT, "limits": _HINT},
    others=keys.Others(
        names.EXTENDED,
        Key(keys.amount(parse_count, "a whole count"), "A whole count of an extended resource"),
        "a name with a domain, as nvidia.com/gpu",
    ),
    name="resources",
)
IMAGE_TEXT: Final = "an image reference without spaces, the first character no -"
IMAGE: Final = keys.text(Form(IMAGE_TEXT, re.compile(r"(?!-)[!-~]{1,1024}")))
_SECRET_TEXT: Final = (
    "the name of a secret (never the secret itself): letters, digits, '.', '_' and '-', the first no '.'; "
    "of one of its keys, as NAME/KEY"
)
#: A file in the local cluster's folder of secrets, or `SECRET/KEY` as Kubernetes names them: never a way out of the folder.
_REFERENCE: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,252}(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,252})?")
COMMAND_TEXT: Final = 'what to run, as a list of arguments: ["./align.sh", "--fast"]'


def _wrong_variable(name: str) -> str | None:
    """The name that is expected in place of a wrong name of a variable, in words, or None."""
    if name.startswith(names.RESERVED_PREFIX):
        return f"a name that does not begin with {names.RESERVED_PREFIX}: those are the service's own"
    return None if names.VARIABLE.fullmatch(name) else names.VARIABLE_TEXT


def _one_text(value: object) -> str | None:
    wanted = 'a list of arguments: ["/bin/sh", "-c", "…"] if a shell is wanted'
    return wanted if isinstance(value, str) else None


COMMAND: Final = keys.hinted(keys.list_of(keys.text(free=True), "arguments", 1), _one_text)
_VARIABLE: Final = Form(wrong=_wrong_variable, more={"pattern": keys.whole(names.VARIABLE)})
ENV: Final = keys.map_of(keys.text(free=True, show=keys.hidden), "environment", _VARIABLE)
_SECRET: Final = keys.text(Form(_SECRET_TEXT, _REFERENCE), free=True, show=keys.hidden)
#: The keys of a pod template; a stage has them, and each role of a gang.
TEMPLATE: Final[Mapping[str, Key]] = {
    "container": Key(
        Table(
            "The container the command runs in.",
            {"image": Key(IMAGE, "The image reference", required=IMAGE_TEXT)},
        ),
        "The image the command runs in, where the cluster uses images",
    ),
    "command": Key(
        COMMAND,
        'Program and arguments. No shell: `["/bin/sh", "-c", "…"]` if one is wanted. `$(NAME)` is replaced by the variable '
        "NAME, `$$(NAME)` is a literal",
    ),
    "resources": Key(
        RESOURCES,
        "The least that one pod gets: `cpu`, `memory`, `disk`, `gpu`, and extended resources by their full name "
        '(`"nvidia.com/gpu": 1`), in whole counts',
        otherwise="1 core, 256 Mi",
    ),
    "limits": Key(
        RESOURCES,
        "The most that one pod may use. A resource named here and not in `resources` is requested too, as in Kubernetes",
        otherwise="not limited",
    ),
    "env": Key(ENV, "Variables"),
    "secrets": Key(
        keys.map_of(_SECRET, "environment", _VARIABLE),
        "Variable → name of a secret; the secret itself never stands in a document",
    ),
}
TEMPLATE_ELSEWHERE: Final[Mapping[str, str]] = {
    "image": 'container: {"image": …}',
    "args": "all arguments in command: there is no shell and no entrypoint in between",
    "script": 'command: ["/bin/sh", "-c", "…"]: nothing is pasted into a shell for you',
    "environment": "env",
}
ROLE: Final = Table(
    "A pod template of a gang; what it does not say, it has from its stage.",
    {
        **TEMPLATE,
        "replicas": Key(keys.number(1, "gang_members"), "The number of members", default=1),
        "min": Key(
            keys.number(1, DEFAULT.gang_members),
            "The gang never starts with fewer. With a smaller number than `replicas` it is [elastic](#elastic-gangs)",
            otherwise="`replicas`",
        ),
        "grow": Key(
            keys.FLAG,
            "Members for which there was no room join the gang while it goes on. False: it keeps to those it began with",
            default=True,
        ),
        "completes": Key(
            keys.FLAG,
            "False for servers: the stage succeeds when all members of completing roles have, and the rest is released",
            default=True,
        ),
        "io": Key(
            IO,
            "The bytes that one pod of this role reads and writes, as in a stage; `{}` = none (a parameter server beside "
            "workers that read)",
            otherwise="the stage's",
        ),
    },
    elsewhere=TEMPLATE_ELSEWHERE,
    name="role",
)


class Template(msgspec.Struct, frozen=True):
    """The fields of a pod template; None where it declares nothing."""

    command: tuple[str, ...] | None
    image: str | None
    resources: Resources | None
    limits: Resources | None
    env: Mapping[str, str]
    secrets: Mapping[str, str]


def make_template(section: Section) -> Template:
    """The pod template of a stage or role."""
    resources, limits = _resolve(section)
    env, secrets = section["env"] or {}, section["secrets"] or {}
    for name in env.keys() & secrets.keys():
        path = child(section.at("secrets"), name)
        section.reader.fault(path, f"the key {shown(name)}", "a name that is not in env too")
    container = section["container"]
    image = None if container is None else container["image"]
    # With steps, every role runs those.
    command = () if "steps" in section else make_command(section)
    return Template(command, image, resources, limits, MappingProxyType(env), MappingProxyType(secrets))


def make_command(section: Section) -> tuple[str, ...] | None:
    """The arguments of `command`; None if it says nothing."""
    arguments = section["command"]
    if arguments is None:
        return None
    if arguments[0] == "":
        section.reader.fault(f"{section.at('command')}[0]", '""', "the name of a program")
    return tuple(text for text in arguments if text is not None)


def make_min_resources(section: Section) -> Resources | None:
    """The `min_resources` of a stage; a resource that it does not name is 0."""
    amounts = _amounts(section["min_resources"])
    return None if amounts is None else _with(_NOTHING, amounts)


def _amounts(section: Section | None) -> dict[str, int] | None:
    """The amounts of an object of resources, by key of the document."""
    return (
        None
        if section is None
        else {name: section.read[name] for name in section.values if name in section.read}
    )


def plain_role(section: Section, template: Template) -> RoleSpec:
    """The one role of a stage that names none."""
    return _role(section, PLAIN_ROLE, template, replicas=1, minimum=1, completes=True)


def make_roles(section: Section, default: Template) -> tuple[RoleSpec, ...]:
    """The roles of a gang; a role inherits from its stage the keys that it does not set.

    Args:
        section: The stage.
        default: The stage's own template.
    """
    roles = tuple(_read_role(role, name, default) for name, role in (section["roles"] or {}).items())
    members = sum(role.replicas for role in roles)
    section.reader.count("gang_members", members, f"the gang at {section.path} is too large")
    if roles and not any(role.completes for role in roles):
        section.fault("roles", "at least one role that completes: else the stage would never end")
    return roles


#: A variable that lists the members of a gang, as a shell or `expand` takes it.
_LIST: Final = re.compile(r"(?<!\$)\$[({]?(TF_CONFIG|FLOWSCHED_HOSTS(?:_[A-Z0-9_]+)?)\b")


def check_lists(section: Section, roles: Sequence[RoleSpec], container: Container | None) -> None:
    """Refuse commands that use a variable which a gang of this size has not (`limits.MOST_LISTED`)."""
    members = sum(role.replicas for role in roles)
    if members <= MOST_LISTED:
        return
    steps = () if container is None else container.steps
    own = {name for role in roles for name in role.env}
    for command in (*(role.command for role in roles), *(step.command for step in steps)):
        used = {found[1] for argument in command for found in _LIST.finditer(argument)} - own
        for name in sorted(used):
            section.fault(
                "roles",
                f"a command without {name}: in a gang of more than {MOST_LISTED} members the files that FLOWSCHED_CLUSTER_FILE "
                "and FLOWSCHED_HOSTFILE name list them",
                f"a command with ${name}, in a gang of {members:,}",
            )
            return


#: A command is told an amount of memory: it would use that much, however much it is given, or end by itself with less.
_TOLD: Final = re.compile(r"FLOWSCHED_MEMORY\b|-Xm[xs]\d|-XX:MaxRAM")


def make_fit(
    section: Section, roles: Sequence[RoleSpec], container: Container | None, *, gang: bool
) -> bool | None:
    """The `fit_memory` of a stage: what it says; else False for gangs and commands that are told their memory, else None."""
    if gang and section["fit_memory"]:
        section.fault(
            "fit_memory", "false in a gang: its members are placed together, with what they ask for"
        )
    if "fit_memory" in section:
        return section["fit_memory"]  # type: ignore[no-any-return]
    texts = [argument for role in roles for argument in (*role.command, *role.env.values())]
    if container is not None:
        texts += [argument for step in container.steps for argument in (*step.command, *step.env.values())]
        texts += [placed.content for placed in container.inputs if placed.content is not None]
    return False if gang or any(map(_TOLD.search, texts)) else None


def _read_role(section: Section, name: str, default: Template) -> RoleSpec:
    own = make_template(section)
    replicas, minimum = section["replicas"], section["min"]
    if minimum is not None and minimum > replicas:
        section.fault("min", f"a whole number from 1 to {replicas:,}")
    merged = Template(
        command=default.command if "command" not in section else own.command,
        image=default.image if own.image is None else own.image,
        resources=own.resources or default.resources,
        limits=own.limits if own.resources or own.limits else default.limits,
        env=_merged(default.env, own.env, own.secrets),
        secrets=_merged(default.secrets, own.secrets, own.env),
    )
    return _role(
        section,
        name,
        merged,
        replicas=replicas,
        minimum=replicas if minimum is None else minimum,
        completes=section["completes"],
        grow=section["grow"],
        io=make_traffic(section["io"]) if "io" in section else None,
    )


def _role(
    section: Section,
    name: str,
    template: Template,
    *,
    replicas: int,
    minimum: int,
    completes: bool,
    grow: bool = True,
    io: Traffic | None = None,
) -> RoleSpec:
    if template.command is None and "command" not in section:
        section.fault("command", COMMAND_TEXT)
    command = template.command or ()
    size = sum(len(part.encode()) + 1 for part in command) + sum(
        len(name) + len(value.encode()) + 2 for name, value in template.env.items()
    )
    if size > section.reader.limits.command_bytes:
        what = f"command and environment at {section.path} are too large (bytes)"
        section.reader.count("command_bytes", size, what)
    return RoleSpec(
        name=name,
        replicas=replicas,
        minimum=minimum,
        command=command,
        image=template.image,
        resources=template.resources or Resources(),
        limits=template.limits,
        env=template.env,
        secrets=template.secrets,
        completes=completes,
        grow=grow,
        io=io,
    )


def _merged(
    default: Mapping[str, str], own: Mapping[str, str], other: Mapping[str, str]
) -> Mapping[str, str]:
    """A role's variables over its stage's, without those that the role has as the other kind."""
    if not default:
        return own
    return MappingProxyType({k: v for k, v in default.items() if k not in other} | dict(own))


def _resolve(section: Section) -> tuple[Resources | None, Resources | None]:
    """Requests and limits: as in Kubernetes, a request that is not named is as large as its limit.

    An amount of 0 in limits is one that is not limited.
    """
    asked, most = _amounts(section["resources"]), _amounts(section["limits"])
    if most is None:
        return (None if asked is None else _with(Resources(), asked)), None
    requests = _with(Resources(), {**most, **(asked or {})})
    for name, amount in most.items():
        found, expected = None, ""
        if amount == 0:
            found, expected = "0", "more than nothing (leave it out for no limit)"
        elif asked is not None and asked.get(name, 0) > amount:
            found, expected = "a limit below what is requested", "at least as much as in resources"
        if found is not None:
            section.reader.fault(child(section.at("limits"), name), found, expected)
    return requests, _with(_NOTHING, most)


def _with(base: Resources, amounts: Mapping[str, int]) -> Resources:
    extended = {name: amount for name, amount in amounts.items() if name not in RESOURCES.keys}
    return Resources(
        cpu_millicores=amounts.get("cpu", base.cpu_millicores),
        memory_bytes=amounts.get("memory", base.memory_bytes),
        disk_bytes=amounts.get("disk", base.disk_bytes),
        gpu_millis=amounts.get("gpu", base.gpu_millis),
        extended=MappingProxyType({**base.extended, **extended}) if extended else base.extended,
    )


# ---- inputs and outputs ----


_ITEM: Final = "{item}"
_REFERENCE_TEXT: Final = 'an output of a stage, as "align.bam"'


def _wrong_template(uri: str) -> str | None:
    """The URI that is expected in place of a wrong one with {item} and {index}, in words, or None."""
    if uri.startswith(_ITEM):
        return None  # the items are whole uris: `edges` checks each of them
    wrong = wrong_uri(uri.replace(_ITEM, "0").replace("{index}", "0"))
    if wrong is None and re.match(r"[^/?#]*//[^/?#]*\{(?:item|index)\}", uri):
        return "{item} and {index} behind the host or bucket only"
    return wrong


def _wrong_path(path: str) -> str | None:
    if path.startswith("/"):
        return "a relative path: outputs lie below the task's working folder"
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or CONTROL.search(path):
        return "a path below the task's working folder, without .. and control characters"
    if len(path.encode()) > 1024 or len(parts) > 32 or any(len(part.encode()) > 255 for part in parts):
        return "at most 32 parts of 255 bytes, and 1,024 bytes in all"
    return None


REFERENCE: Final = Form(
    _REFERENCE_TEXT,
    wrong=lambda text: None if all(text.partition(".")[::2]) else _REFERENCE_TEXT,
    more={"pattern": r"^[^.]+\.[\s\S]+$"},
)
_NAME: Final = Form(names.PART_TEXT, names.PART)
_PATH: Final = Form(
    "a path below the task's working folder", wrong=_wrong_path, more={"minLength": 1, "pattern": "^[^/]"}
)
_FROM_ONLY: Final = ("from", "match", "manifest", "optional")
INPUT: Final = Table(
    "An input of a stage.",
    {
        "name": Key(keys.text(_NAME), "`FLOWSCHED_INPUT_<NAME>` says where it is", required=_NAME.expected),
        "uri": Key(
            keys.text(
                Form("a uri", wrong=_wrong_template, more={"maxLength": DEFAULT.string_bytes}), show=redacted
            ),
            "Bytes from outside; `{item}` and `{index}` are replaced",
        ),
        "size": Key(
            keys.amount(parse_bytes, 'bytes, as "12Gi"'),
            "Beside `uri`: bytes, so that the way there can be planned",
            otherwise="unknown",
        ),
        "from": Key(keys.text(REFERENCE), '`"stage.output"` of another stage'),
        "match": Key(
            keys.choice(Match),
            "Beside `from`: how shards meet, below",
            default="all",
        ),
        "manifest": Key(
            keys.FLAG,
            "Beside `from`: a file that lists the paths, one a line, even where there is only one",
            default=False,
        ),
        "optional": Key(
            keys.FLAG,
            "Beside `from`: the task runs without it when its producer was skipped or wrote nothing",
            default=False,
        ),
    },
    elsewhere={"url": "uri", "path": "uri (what a task reads reaches it by FLOWSCHED_INPUT_<NAME>)"},
    rules={
        "oneOf": [
            {"required": ["uri"], "properties": dict.fromkeys(_FROM_ONLY, False)},
            {"required": ["from"], "properties": dict.fromkeys(("uri", "size"), False)},
        ]
    },
    name="input",
)
OUTPUT: Final = Table(
    "An output of a stage.",
    {
        "name": Key(keys.text(_NAME), "Other stages refer to it as `stage.name`", required=_NAME.expected),
        "path": Key(
            keys.text(_PATH),
            "Where the task writes it: below its working folder, relative, without `..`; at most 32 parts of 255 bytes and "
            "1,024 bytes in all. In a scattered stage `{item}` and `{index}` are replaced: `{item}.bam` is `HG002.bam` in "
            "that shard, for the program and for who fetches it. Such items are names of files, without `/`",
            required=_PATH.expected,
        ),
        "role": Key(
            keys.text(Form("the name of a role of this stage")),
            "In a gang: the role that writes the file, by its member 0",
            otherwise="the first that completes",
        ),
        "optional": Key(keys.FLAG, "The task succeeds though it is missing", default=False),
        "value": Key(
            keys.FLAG,
            "Its text, at most 4 KiB, is recorded, shown, and may be asked for in `when`",
            default=False,
        ),
    },
    name="output",
)


class ReadInput(msgspec.Struct, frozen=True):
    """An input and where it stands in the document."""

    path: str
    spec: InputSpec


def make_inputs(section: Section) -> list[ReadInput]:
    """The inputs of a stage; those that make no sense are faults and left out."""
    found = []
    for entry in section["inputs"] or ():
        spec = None if entry is None else _input(entry)
        if spec is not None:
            found.append(ReadInput(entry.path, spec))
    _check_variables(section, "INPUT", [(each.path, each.spec.name) for each in found])
    return found


def _input(entry: Section) -> InputSpec | None:
    name, uri, reference = entry["name"], entry["uri"], entry["from"]
    if ("uri" in entry) == ("from" in entry):
        found = "uri and from" if "uri" in entry else "neither uri nor from"
        entry.reader.fault(entry.path, found, "exactly one of uri and from")
        return None
    if "uri" in entry:
        for key in _FROM_ONLY[1:]:
            entry.refuse(key, "no such key beside uri: it goes with from")
        good = name is not None and uri is not None
        return InputSpec(name, uri=uri, size_bytes=entry["size"]) if good else None
    entry.refuse("size", "estimate.output in the stage that writes it")
    if name is None or reference is None:
        return None
    stage, output = reference.split(".", 1)
    match, manifest, optional = entry["match"], entry["manifest"], entry["optional"]
    return InputSpec(name, stage=stage, output=output, match=match, manifest=manifest, optional=optional)


class _Places(msgspec.Struct, frozen=True):
    """The places of a stage's outputs, by (role, path): the path of the entry that declares each."""

    files: dict[tuple[str | None, str], str]
    folders: dict[tuple[str | None, str], str]


def make_outputs(section: Section, roles: Sequence[RoleSpec]) -> list[OutputSpec]:
    """The outputs of a stage that has these roles."""
    known = [role.name for role in roles]
    first = next((role.name for role in roles if role.completes), None)
    found: list[OutputSpec] = []
    places: list[tuple[str, str]] = []
    taken = _Places({}, {})
    for entry in section["outputs"] or ():
        if entry is None:
            continue
        name, path, role = entry["name"], entry["path"], entry["role"]
        if role is not None and role not in known:
            entry.fault("role", f"a role of this stage: {entry.reader.hint(role, known)}")
        if path is not None:
            path = "/".join(part for part in path.split("/") if part not in ("", "."))
            _check_place(entry, role or first, path, taken)
        if name is not None:
            found.append(OutputSpec(name, path or "", role, entry["optional"], entry["value"]))
            places.append((entry.path, name))
    _check_variables(section, "OUTPUT", places)
    return found


def _check_place(entry: Section, owner: str | None, path: str, places: _Places) -> None:
    """Two outputs may not be one file, nor one lie inside the other: each is published by renaming it."""
    parts = path.split("/")
    folders = ["/".join(parts[:end]) for end in range(1, len(parts))]
    clashes = [places.files.get((owner, part)) for part in [*folders, path]]
    other = next((at for at in clashes if at is not None), places.folders.get((owner, path)))
    if other is not None:
        entry.fault("path", f"a path that neither is, holds nor is inside the one of {other}")
        return
    places.files[(owner, path)] = entry.path
    for folder in folders:
        places.folders[(owner, folder)] = entry.path


def _check_variables(section: Section, kind: str, places: Sequence[tuple[str, str]]) -> None:
    """Two names may not become one variable."""
    variables: dict[str, tuple[str, str]] = {}
    for path, name in places:
        variable = names.variable(kind, name)
        other = variables.setdefault(variable, (path, name))
        if other[0] != path:
            expected = f"a name that does not become {variable} too, as {shown(other[1])} at {other[0]} does"
            section.reader.fault(f"{path}.name", shown(name), expected)
