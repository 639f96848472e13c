"""Reading where pods of a stage may run, and what they do to disks."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from flowsched.workflow import names
from flowsched.workflow.reader import Section, shown
from flowsched.workflow.resources import parse_bytes
from flowsched.workflow.spec import EMPTY, Rules, Toleration, Traffic

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
        "selector", "labels", _wrong_label, pattern=names.LABEL_VALUE, expected=names.LABEL_VALUE_TEXT
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
    return None if names.LABEL_KEY.fullmatch(name) else names.LABEL_KEY_TEXT


def _toleration(entry: Section) -> Toleration:
    key = entry.text("key", names.LABEL_KEY, names.LABEL_KEY_TEXT) if entry.values.get("key") != "" else ""
    operator = entry.choice("operator", _OPERATORS) or "Equal"
    value = entry.text("value", names.LABEL_VALUE, names.LABEL_VALUE_TEXT) or ""
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
                        names.LABEL_KEY.fullmatch(key) and names.LABEL_VALUE.fullmatch(value)
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
    read_bytes, read_rate = _amount(entry, "read")
    write_bytes, write_rate = _amount(entry, "write")
    storage = entry.text("storage", names.STORAGE, "the name of a shared storage") or ""
    return Traffic(read_bytes, write_bytes, read_rate, write_rate, storage)


def _amount(entry: Section, key: str) -> tuple[int, int]:
    """(bytes, bytes a second): whichever was said."""
    value = entry.values.get(key)
    if isinstance(value, str) and value.endswith("/s"):
        return 0, entry.amount(key, _parse_rate, _AMOUNT_TEXT) or 0
    return entry.amount(key, parse_bytes, _AMOUNT_TEXT) or 0, 0


def _parse_rate(value: object) -> int:
    return parse_bytes(str(value).removesuffix("/s"))
