"""Reading a pod template: command, container, resources, environment; and the roles that carry one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from flowsched.workflow import names
from flowsched.workflow.reader import Section, child, shown
from flowsched.workflow.resources import parse_bytes, parse_count, parse_cpu, parse_gpu
from flowsched.workflow.rules import read_traffic
from flowsched.workflow.spec import PLAIN_ROLE, Resources, RoleSpec, Traffic

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
_ROLE_KEYS: Final[Mapping[str, str]] = {**TEMPLATE_KEYS, "replicas": "", "min": "", "completes": "", "io": ""}
_CONTAINER_KEYS: Final[Mapping[str, str]] = {"image": ""}
IMAGE: Final = re.compile(r"[!-~]{1,1024}")
IMAGE_TEXT: Final = "an image reference without spaces"
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


@dataclass(frozen=True, slots=True)
class Template:
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
    env = section.texts("env", "environment", wrong_variable, expected=_TEXT, secret=True)
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
_TEXT: Final = 'text (a number needs quotes: "4")'
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
        role = reader.section(value, child(section.at("roles"), name), _ROLE_KEYS)
        if role is not None:
            roles.append(_read_role(role, name, default))
    reader.count("gang_members", sum(r.replicas for r in roles), f"the gang at {section.path} is too large")
    if roles and not any(role.completes for role in roles):
        section.fault("roles", "at least one role that completes: else the stage would never end")
    return tuple(roles)


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
    texts = [reader.text(value, f"{path}[{i}]", _TEXT) for i, value in enumerate(arguments)]
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
