"""What the roles of deploy/ allow, as a set, and what the end-to-end run used: neither may have more than the other."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.deploy.rendering import documents

#: Written by the end-to-end run: {"calls": [["create", "pods/binding"], …]}, as in `Client.calls`.
RECORDING = Path(__file__).parent / "recorded-verbs.json"

CLUSTER, TENANT = "cluster", "tenant"


class Right(NamedTuple):
    """One verb on one resource."""

    scope: str  #: `cluster` of a ClusterRole, `tenant` of a Role
    group: str
    resource: str  #: with its subresource
    verb: str


#: What the API server asks for beside the right to a call, by names of its own: whoever writes an allocation "binds" a claim.
IMPLIED = {
    ("patch", "resourceclaims.resource.k8s.io/status"): ("patch", "resourceclaims.resource.k8s.io/binding")
}

#: (verb, resource): as `Client.calls` counts them, a resource outside the core group with its group.
Call = tuple[str, str]


def rbac_rules(path: Path) -> set[Right]:
    """Every right that the roles below a folder (or in a file) give.

    Raises:
        ValueError: A rule that cannot be written as such a set: a wildcard, a name, or a URL that is no resource.
    """
    files = sorted(path.rglob("*.yaml")) if path.is_dir() else [path]
    return {right for file in files for right in rights_in(file.read_text(encoding="utf-8"))}


def rights_in(text: str) -> set[Right]:
    """Every right that the roles in a YAML text give.

    Raises:
        ValueError: As above.
    """
    found: set[Right] = set()
    for role in documents(text):
        if role["kind"] not in ("ClusterRole", "Role"):
            continue
        scope = CLUSTER if role["kind"] == "ClusterRole" else TENANT
        for rule in role["rules"]:
            if set(rule) != {"apiGroups", "resources", "verbs"}:
                raise ValueError(f"{role['metadata']['name']}: more than groups, resources and verbs: {rule}")
            for group, resource, verb in itertools.product(
                rule["apiGroups"], rule["resources"], rule["verbs"]
            ):
                if "*" in (group, verb) or "*" in resource:
                    raise ValueError(f"{role['metadata']['name']}: a wildcard: {rule}")
                found.add(Right(scope, group, resource, verb))
    return found


def calls_allowed(rights: Iterable[Right]) -> set[Call]:
    """The same as calls are counted. The scope goes: no right is given in both (a test)."""
    return {(right.verb, _qualified(right.group, right.resource)) for right in rights}


def recorded_calls(path: Path) -> set[Call]:
    """Which calls the end-to-end run made, and what they imply; those outside the API groups (discovery, /version) need no
    role.
    """
    calls = json.loads(path.read_text(encoding="utf-8"))["calls"]
    made = {(verb, resource) for verb, resource in calls if not resource.startswith("/")}
    return made | {IMPLIED[call] for call in made & IMPLIED.keys()}


def _qualified(group: str, resource: str) -> str:
    """`podgroups.scheduling.volcano.sh/status`: the group before the subresource."""
    name, slash, subresource = resource.partition("/")
    return (f"{name}.{group}" if group else name) + slash + subresource
