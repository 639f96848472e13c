"""Reading a stage: its pod template and roles, its rules about nodes, its inputs and outputs by stage and output or by URI."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import msgspec

from flowsched.workflow.document import reader
from flowsched.workflow.document import reader as names
from flowsched.workflow.document.limits import MOST_LISTED
from flowsched.workflow.document.reader import Section, child, shown
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

_TOLERATION_KEYS: Final[Mapping[str, str]] = {
    "key": "",
    "operator": "",
    "value": "",
    "effect": "",
    "tolerationSeconds": "nothing: how long a lost node is waited for is a setting of the service",
}
_OPERATORS: Final = {"Equal": "Equal", "Exists": "Exists"}
_EFFECTS: Final = {name: name for name in ("", "NoSchedule", "PreferNoSchedule", "NoExecute")}
_ONLY_RACK: Final = "topology.rack only: a rack is the one domain flowsched knows the network of"
_TOPOLOGY_KEYS: Final[Mapping[str, str]] = {
    "rack": "",
    "zone": _ONLY_RACK,
    "region": _ONLY_RACK,
    "node": 'anti_affinity: "node" for one pod a node; pods on one node cannot be demanded',
}
_LEVELS: Final = {"required": "required", "preferred": "preferred"}
_AFFINITY_KEYS: Final[Mapping[str, str]] = {
    "nodeAffinity": "",
    "podAffinity": 'topology: {"rack": "required" or "preferred"}: pods of other stages cannot be named',
    "podAntiAffinity": 'anti_affinity: "node": pods of other stages cannot be named',
}
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_NODE_AFFINITY_KEYS: Final[Mapping[str, str]] = {
    _REQUIRED: "",
    "preferredDuringSchedulingIgnoredDuringExecution": "nothing: preferring nodes is the scheduler's "
    "part, which weighs all of them in seconds",
}
_ONLY_EQUALITY: Final = (
    'selector: {"label": "value"}: flowsched demands equality only, '
    "so one term of matchExpressions with operator In and one value is all that can be said here"
)
_IO_KEYS: Final[Mapping[str, str]] = {"read": "", "write": "", "storage": ""}
_AMOUNT_TEXT: Final = 'bytes in all, as "3Gi", or a rate, as "200Mi/s"'


def read_rules(section: Section) -> Rules:
    """Read `selector`, `tolerations`, `affinity`, `anti_affinity` and `topology`."""
    selector = section.texts(
        "selector", "labels", _wrong_label, pattern=reader.LABEL_VALUE, expected=reader.LABEL_VALUE_TEXT
    )
    from_affinity = _affinity(section)
    for name in from_affinity.keys() & selector.keys():
        if from_affinity[name] != selector[name]:
            section.fault("affinity", f"the same value for {shown(name)} as in selector")
    if from_affinity:
        selector = MappingProxyType({**from_affinity, **selector})
    topology = section.section("topology", _TOPOLOGY_KEYS)
    return Rules(
        selector=selector,
        tolerations=tuple(
            _toleration(e) for e in section.sections("tolerations", "labels", _TOLERATION_KEYS)
        ),
        rack=None if topology is None else topology.choice("rack", _LEVELS),
        one_per_node=section.choice("anti_affinity", {"node": True}) or False,
    )


def _wrong_label(name: str) -> str | None:
    return None if reader.LABEL_KEY.fullmatch(name) else reader.LABEL_KEY_TEXT


def _toleration(entry: Section) -> Toleration:
    key = entry.text("key", reader.LABEL_KEY, reader.LABEL_KEY_TEXT) if entry.values.get("key") != "" else ""
    operator = entry.choice("operator", _OPERATORS) or "Equal"
    value = entry.text("value", reader.LABEL_VALUE, reader.LABEL_VALUE_TEXT) or ""
    effect = entry.choice("effect", _EFFECTS) or ""
    if operator == "Exists" and value:
        entry.fault("value", "nothing beside operator Exists")
    if operator == "Equal" and "key" not in entry:
        entry.fault("key", 'the key of a taint (or operator "Exists" for all taints)')
    return Toleration(key or "", operator, value, effect)


def _affinity(section: Section) -> Mapping[str, str]:
    """The part of Kubernetes' affinity that a selector can say; the rest is refused with the reason."""
    affinity = section.section("affinity", _AFFINITY_KEYS)
    nodes = None if affinity is None else affinity.section("nodeAffinity", _NODE_AFFINITY_KEYS)
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
                        reader.LABEL_KEY.fullmatch(key) and reader.LABEL_VALUE.fullmatch(value)
                    ):
                        selector[key] = value
                    case _:
                        nodes.fault(_REQUIRED, _ONLY_EQUALITY)
                        return EMPTY
            return selector
    nodes.fault(_REQUIRED, _ONLY_EQUALITY)
    return EMPTY


def read_traffic(section: Section) -> Traffic:
    """Read `io`."""
    entry = section.section("io", _IO_KEYS)
    if entry is None:
        return Traffic()
    read_bytes, read_rate = _io_amount(entry, "read")
    write_bytes, write_rate = _io_amount(entry, "write")
    storage = entry.text("storage", reader.STORAGE, "the name of a shared storage") or ""
    return Traffic(read_bytes, write_bytes, read_rate, write_rate, storage)


def _io_amount(entry: Section, key: str) -> tuple[int, int]:
    """(bytes, bytes a second): whichever was said."""
    value = entry.values.get(key)
    if isinstance(value, str) and value.endswith("/s"):
        return 0, entry.amount(key, _parse_rate, _AMOUNT_TEXT) or 0
    return entry.amount(key, parse_bytes, _AMOUNT_TEXT) or 0, 0


def _parse_rate(value: object) -> int:
    return parse_bytes(str(value).removesuffix("/s"))


# ---- pod templates and roles ----


#: The keys of a pod template; a stage has them, and each role of a gang.
TEMPLATE_KEYS: Final[Mapping[str, str]] = {
    "container": "",
    "command": "",
    "resources": "",
    "limits": "",
    "env": "",
    "secrets": "",
    "image": 'container: {"image": …}',
    "args": "all arguments in command: there is no shell and no entrypoint in between",
    "script": 'command: ["/bin/sh", "-c", "…"]: nothing is pasted into a shell for you',
    "environment": "env",
}
ROLE_KEYS: Final[Mapping[str, str]] = {
    **TEMPLATE_KEYS,
    "replicas": "",
    "min": "",
    "grow": "",
    "completes": "",
    "io": "",
}
_CONTAINER_KEYS: Final[Mapping[str, str]] = {"image": ""}
IMAGE: Final = re.compile(r"(?!-)[!-~]{1,1024}")
IMAGE_TEXT: Final = "an image reference without spaces, the first character no -"
#: A file in the local cluster's folder of secrets, or `SECRET/KEY` as Kubernetes names them: never a way out of the folder.
_REFERENCE: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,252}(?:/[A-Za-z0-9_-][A-Za-z0-9_.-]{0,252})?")
_NOTHING: Final = Resources(cpu_millicores=0, memory_bytes=0)

#: Key of a document -> (its reader, its form in words).
_AMOUNTS: Final[Mapping[str, tuple[Callable[[object], int], str]]] = {
    "cpu": (parse_cpu, 'cores, as 4, 0.5 or "500m"'),
    "memory": (parse_bytes, 'bytes, as "8Gi"'),
    "disk": (parse_bytes, 'bytes, as "20Gi"'),
    "gpu": (parse_gpu, "devices, as 1 or 0.5"),
}
_RESOURCE_HINTS: Final[Mapping[str, str]] = {
    "ephemeral-storage": "disk",
    "requests": "the amounts themselves: limits stand beside resources, in the stage or role",
    "limits": "the amounts themselves: limits stand beside resources, in the stage or role",
}


class Template(msgspec.Struct, frozen=True):
    """What a pod template says; None where it says nothing."""

    command: tuple[str, ...] | None
    image: str | None
    resources: Resources | None
    limits: Resources | None
    env: Mapping[str, str]
    secrets: Mapping[str, str]


def read_template(section: Section) -> Template:
    """Read the keys of a pod template; each role and each stage has them."""
    asked = _amounts(section, "resources")
    most = _amounts(section, "limits")
    resources, limits = _resolve(section, asked, most)
    env = section.texts("env", "environment", wrong_variable, secret=True)
    secrets = section.texts(
        "secrets", "environment", wrong_variable, pattern=_REFERENCE, expected=_SECRET_TEXT, secret=True
    )
    for name in env.keys() & secrets.keys():
        path = child(section.at("secrets"), name)
        section.reader.fault(path, f"the key {shown(name)}", "a name that is not in env too")
    # With steps, those are what every role runs.
    command = () if "steps" in section else read_arguments(section)
    return Template(command, _image(section), resources, limits, env, secrets)


_COMMAND_TEXT: Final = 'what to run, as a list of arguments: ["./align.sh", "--fast"]'
_SECRET_TEXT: Final = (
    "the name of a secret (never the secret itself): letters, digits, '.', '_' and '-', the first no '.'; "
    "of one of its keys, as NAME/KEY"
)


def read_min_resources(section: Section) -> Resources | None:
    """Read `min_resources`; what it does not name is none."""
    amounts = _amounts(section, "min_resources")
    return None if amounts is None else _with(_NOTHING, amounts)


def plain_role(section: Section, template: Template) -> RoleSpec:
    """The one role of a stage that names none."""
    return _role(section, PLAIN_ROLE, template, replicas=1, minimum=1, completes=True)


def read_roles(section: Section, default: Template) -> tuple[RoleSpec, ...]:
    """Read a gang's roles; what a role does not say, it has from its stage.

    Args:
        section: The stage.
        default: The stage's own template.
    """
    reader = section.reader
    found = reader.mapping(section.values["roles"], section.at("roles"))
    if found is None:
        return ()
    if not found:
        section.fault("roles", "at least one role")
    reader.count("roles", len(found), f"too many roles at {section.path}")
    roles = []
    for name, value in found.items():
        if names.STAGE.fullmatch(name) is None:
            reader.fault(section.at("roles"), f"the role {shown(name)}", names.STAGE_TEXT)
            continue
        role = reader.section(value, child(section.at("roles"), name), ROLE_KEYS)
        if role is not None:
            roles.append(_read_role(role, name, default))
    reader.count("gang_members", sum(r.replicas for r in roles), f"the gang at {section.path} is too large")
    if roles and not any(role.completes for role in roles):
        section.fault("roles", "at least one role that completes: else the stage would never end")
    return tuple(roles)


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


def _read_role(section: Section, name: str, default: Template) -> RoleSpec:
    own = read_template(section)
    replicas = section.size("replicas", "gang_members") or 1
    minimum = section.whole("min", 1, max(replicas, 1))
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
        completes=section.flag("completes", True),
        grow=section.flag("grow", True),
        io=read_traffic(section) if "io" in section else None,
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
        section.fault("command", _COMMAND_TEXT)
    command = template.command or ()
    size = sum(len(part.encode()) + 1 for part in command) + sum(
        len(name) + len(value.encode()) + 2 for name, value in template.env.items()
    )
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


def read_arguments(section: Section, *, required: bool = False) -> tuple[str, ...] | None:
    """Read `command`, a list of arguments."""
    if "command" not in section:
        if required:
            section.fault("command", _COMMAND_TEXT)
        return None
    if isinstance(section.values["command"], str):
        section.fault("command", 'a list of arguments: ["/bin/sh", "-c", "…"] if a shell is wanted')
        return None
    arguments = section.array("command", empty=False)
    if arguments is None:
        return None
    reader = section.reader
    reader.count("arguments", len(arguments), f"too many arguments at {section.path}")
    path = section.at("command")
    texts = [reader.free_text(value, f"{path}[{i}]") for i, value in enumerate(arguments)]
    if texts[0] == "":
        reader.fault(f"{path}[0]", '""', "the name of a program")
    return tuple(text for text in texts if text is not None)


def _image(section: Section) -> str | None:
    container = section.section("container", _CONTAINER_KEYS)
    if container is None:
        return None
    return container.text("image", IMAGE, IMAGE_TEXT, required=True)


def wrong_variable(name: str) -> str | None:
    """What is wrong with the name of a variable, in words, or None."""
    if name.startswith(names.RESERVED_PREFIX):
        return f"a name that does not begin with {names.RESERVED_PREFIX}: those are the service's own"
    return None if names.VARIABLE.fullmatch(name) else names.VARIABLE_TEXT


def _amounts(section: Section, key: str) -> dict[str, int] | None:
    """What an object of resources says, by key of the document; None if it is not there."""
    if key not in section:
        return None
    reader, path = section.reader, section.at(key)
    found = reader.mapping(section.values[key], path)
    if found is None:
        return None
    reader.count("labels", len(found), f"too many resources at {path}")
    amounts = {}
    inner = Section(reader, found, path)
    for name in found:
        amount = _amount(inner, name)
        if amount is not None:
            amounts[name] = amount
    return amounts


def _amount(section: Section, name: str) -> int | None:
    known = _AMOUNTS.get(name)
    if known is not None:
        return section.amount(name, known[0], known[1])
    if name in _RESOURCE_HINTS:
        section.reader.fault(section.at(name), f"the key {shown(name)}", _RESOURCE_HINTS[name])
        return None
    if names.EXTENDED.fullmatch(name) is None:
        section.reader.unknown(section.path, name, [*_AMOUNTS, "a name with a domain, as nvidia.com/gpu"])
        return None
    return section.amount(name, parse_count, "a whole count")


def _resolve(
    section: Section, asked: dict[str, int] | None, most: dict[str, int] | None
) -> tuple[Resources | None, Resources | None]:
    """Requests and limits: as in Kubernetes, a request that is not named is as large as its limit.

    An amount of 0 in limits is one that is not limited.
    """
    if most is None:
        return (None if asked is None else _with(Resources(), asked)), None
    requests = _with(Resources(), {**most, **(asked or {})})
    for name, amount in most.items():
        path = child(section.at("limits"), name)
        if amount == 0:
            section.reader.fault(path, "0", "more than nothing (leave it out for no limit)")
        elif asked is not None and asked.get(name, 0) > amount:
            section.reader.fault(path, "a limit below what is requested", "at least as much as in resources")
    return requests, _with(_NOTHING, most)


def _with(base: Resources, amounts: Mapping[str, int]) -> Resources:
    extended = {name: amount for name, amount in amounts.items() if name not in _AMOUNTS}
    return Resources(
        cpu_millicores=amounts.get("cpu", base.cpu_millicores),
        memory_bytes=amounts.get("memory", base.memory_bytes),
        disk_bytes=amounts.get("disk", base.disk_bytes),
        gpu_millis=amounts.get("gpu", base.gpu_millis),
        extended=MappingProxyType({**base.extended, **extended}) if extended else base.extended,
    )


# ---- inputs and outputs ----


_INPUT_KEYS: Final[Mapping[str, str]] = {
    "name": "",
    "uri": "",
    "size": "",
    "from": "",
    "match": "",
    "manifest": "",
    "optional": "",
    "url": "uri",
    "path": "uri (what a task reads reaches it by FLOWSCHED_INPUT_<NAME>)",
}
_OUTPUT_KEYS: Final[Mapping[str, str]] = {"name": "", "path": "", "role": "", "optional": "", "value": ""}
_MATCHES: Final = {str(match): match for match in Match}
REFERENCE_TEXT: Final = 'an output of a stage, as "align.bam"'

_ITEM: Final = "{item}"


class Given(msgspec.Struct, frozen=True):
    """An input and where it stands in the document."""

    path: str
    spec: InputSpec


def read_inputs(section: Section) -> list[Given]:
    """Read the inputs of a stage; those that make no sense are faults and left out."""
    found = []
    for entry in section.sections("inputs", "inputs", _INPUT_KEYS):
        spec = _input(entry)
        if spec is not None:
            found.append(Given(entry.path, spec))
    _check_variables(section, "INPUT", [(given.path, given.spec.name) for given in found])
    return found


def _input(entry: Section) -> InputSpec | None:
    name = entry.text("name", reader.PART, reader.PART_TEXT, required=True)
    if ("uri" in entry) == ("from" in entry):
        found = "uri and from" if "uri" in entry else "neither uri nor from"
        entry.reader.fault(entry.path, found, "exactly one of uri and from")
        return None
    spec = _from_outside(entry, name) if "uri" in entry else _from_stage(entry, name)
    return spec if name is not None else None


def _from_outside(entry: Section, name: str | None) -> InputSpec | None:
    for key in ("match", "manifest", "optional"):
        if key in entry:
            entry.reader.fault(
                entry.at(key), f"the key {shown(key)}", "no such key beside uri: it goes with from"
            )
    size = entry.amount("size", parse_bytes, 'bytes, as "12Gi"')
    uri = entry.text("uri", expected="a uri")
    if uri is None:
        return None
    wrong = _wrong_template(uri)
    if wrong is not None:
        entry.fault("uri", wrong, redacted(uri))
        return None
    return InputSpec(name or "", uri=uri, size_bytes=size)


def _wrong_template(uri: str) -> str | None:
    """What is wrong with a URI in which {item} and {index} will be replaced."""
    if uri.startswith(_ITEM):
        return None  # the items are whole uris: `edges` checks each of them
    wrong = wrong_uri(uri.replace(_ITEM, "0").replace("{index}", "0"))
    if wrong is None and re.match(r"[^/?#]*//[^/?#]*\{(?:item|index)\}", uri):
        return "{item} and {index} behind the host or bucket only"
    return wrong


def _from_stage(entry: Section, name: str | None) -> InputSpec | None:
    if "size" in entry:
        entry.reader.fault(entry.at("size"), 'the key "size"', "estimate.output in the stage that writes it")
    text = entry.text("from", expected=REFERENCE_TEXT)
    reference = divide(text or "")
    if text is not None and reference is None:
        entry.fault("from", REFERENCE_TEXT)
    match = entry.choice("match", _MATCHES)
    manifest, optional = entry.flag("manifest"), entry.flag("optional")
    if reference is None:
        return None
    return InputSpec(
        name or "",
        stage=reference[0],
        output=reference[1],
        match=match or Match.ALL,
        manifest=manifest,
        optional=optional,
    )


def divide(reference: str) -> tuple[str, str] | None:
    """Divide "stage.output" at its first dot, since a stage's name has none; None if that is impossible."""
    stage, _, output = reference.partition(".")
    return (stage, output) if stage and output else None


class _Places(msgspec.Struct, frozen=True):
    """Where outputs of a stage lie, by (role, path): the path of the entry that said so."""

    files: dict[tuple[str | None, str], str]
    folders: dict[tuple[str | None, str], str]


def read_outputs(section: Section, roles: Sequence[RoleSpec]) -> list[OutputSpec]:
    """Read the outputs of a stage that has these roles."""
    known = [role.name for role in roles]
    first = next((role.name for role in roles if role.completes), None)
    found: list[OutputSpec] = []
    places: list[tuple[str, str]] = []
    taken = _Places({}, {})
    for entry in section.sections("outputs", "outputs", _OUTPUT_KEYS):
        name = entry.text("name", reader.PART, reader.PART_TEXT, required=True)
        path = _path(entry)
        role = entry.text("role", expected="the name of a role of this stage")
        if role is not None and role not in known:
            close = entry.reader.meant(role, known)
            hint = f"did you mean {close!r}?" if close else f"one of {', '.join(known)}"
            entry.fault("role", f"a role of this stage: {hint}")
        spec = OutputSpec(name or "", path or "", role, entry.flag("optional"), entry.flag("value"))
        if name is not None:
            found.append(spec)
            places.append((entry.path, name))
        if path is not None:
            _check_place(entry, role or first, path, taken)
    _check_variables(section, "OUTPUT", places)
    return found


def _path(entry: Section) -> str | None:
    path = entry.text("path", expected="a path below the task's working folder", required=True)
    if path is None:
        return None
    if path.startswith("/"):
        entry.fault("path", "a relative path: outputs lie below the task's working folder")
        return None
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or CONTROL.search(path):
        entry.fault("path", "a path below the task's working folder, without .. and control characters")
        return None
    if len(path.encode()) > 1024 or len(parts) > 32 or any(len(part.encode()) > 255 for part in parts):
        entry.fault("path", "at most 32 parts of 255 bytes, and 1,024 bytes in all")
        return None
    return "/".join(parts)


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
    seen: dict[str, tuple[str, str]] = {}
    for path, name in places:
        variable = reader.variable(kind, name)
        other = seen.setdefault(variable, (path, name))
        if other[0] != path:
            expected = f"a name that does not become {variable} too, as {shown(other[1])} at {other[0]} does"
            section.reader.fault(f"{path}.name", shown(name), expected)
