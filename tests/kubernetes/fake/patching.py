"""JSON merge patches (RFC 7386), and as much of strategic merge patches as is used on what the fake serves."""

from __future__ import annotations

from typing import Any

#: Lists whose items are merged, by the field that names an item; all other lists are replaced.
_KEYS = {
    "conditions": "type",
    "addresses": "type",
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "schedulingGates": "name",
    "ownerReferences": "uid",
    "podIPs": "ip",
    "hostIPs": "ip",
}


def merged(old: Any, patch: Any) -> Any:
    """Apply a merge patch. Nothing given is changed."""
    if not isinstance(patch, dict):
        return patch
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            new.pop(key, None)
        else:
            new[key] = merged(new.get(key), value)
    return new


def strategically_merged(old: Any, patch: Any) -> Any:
    """Apply a strategic merge patch. Nothing given is changed."""
    if not isinstance(patch, dict):
        return patch
    if patch.get("$patch") == "replace":
        return {key: value for key, value in patch.items() if key != "$patch"}
    new = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            new[name] = [item for item in new.get(name, ()) if item not in value]
        elif key.startswith("$"):
            continue
        elif value is None:
            new.pop(key, None)
        elif key == "finalizers":
            before = new.get(key, [])
            new[key] = [*before, *(item for item in value if item not in before)]
        elif isinstance(value, list) and key in _KEYS:
            new[key] = _merged_items(new.get(key) or [], value, _KEYS[key])
        else:
            new[key] = strategically_merged(new.get(key), value)
    return new


def _merged_items(old: list[Any], patch: list[Any], key: str) -> list[Any]:
    """New items first, as the real one orders them."""
    before = {item.get(key): item for item in old}
    items: dict[Any, Any] = {}
    for item in patch:
        if item.get("$patch") == "delete":
            before.pop(item.get(key), None)
        else:
            items[item.get(key)] = strategically_merged(before.get(item.get(key), {}), item)
    added = [item for name, item in items.items() if name not in before]
    return added + [items.get(name, item) for name, item in before.items()]
