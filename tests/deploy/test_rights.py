"""The roles: no more than is used, no less, and nothing that a scheduler has no business with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.rendering import BASE, DEPLOY, TENANT, rendered_helm
from tests.deploy.rights import RECORDING, Right, calls_allowed, rbac_rules, recorded_calls, rights_in

ROLES = DEPLOY / "kustomize"


def role(rule: str, kind: str = "Role") -> str:
    return f"kind: {kind}\nmetadata: {{name: x}}\nrules:\n- {rule}\n"


def test_a_rule_is_every_verb_on_every_resource_of_every_group() -> None:
    """The product, with the scope that the kind of the role gives it."""
    rule = '{apiGroups: ["", a.io], resources: [pods/binding], verbs: [get, list]}'
    assert rights_in(role(rule, "ClusterRole")) == {
        Right("cluster", "", "pods/binding", "get"),
        Right("cluster", "", "pods/binding", "list"),
        Right("cluster", "a.io", "pods/binding", "get"),
        Right("cluster", "a.io", "pods/binding", "list"),
    }


@pytest.mark.parametrize(
    "rule",
    [
        '{apiGroups: ["*"], resources: [pods], verbs: [get]}',
        '{apiGroups: [""], resources: ["pods/*"], verbs: [get]}',
        '{apiGroups: [""], resources: [pods], verbs: ["*"]}',
        '{nonResourceURLs: ["/metrics"], verbs: [get]}',
        '{apiGroups: [""], resources: [pods], verbs: [get], resourceNames: [x]}',
    ],
)
def test_a_rule_that_is_no_plain_list_is_refused(rule: str) -> None:
    """A wildcard grants what nobody has written down; the comparison could not see it."""
    with pytest.raises(ValueError, match="x: "):
        rights_in(role(rule))


def test_rights_are_counted_as_the_client_counts_calls() -> None:
    """The group follows the resource, and the subresource follows the group."""
    rights = [
        Right("cluster", "", "pods/binding", "create"),
        Right("cluster", "scheduling.x-k8s.io", "podgroups/status", "patch"),
        Right("tenant", "", "secrets", "create"),
    ]
    assert calls_allowed(rights) == {
        ("create", "pods/binding"),
        ("patch", "podgroups.scheduling.x-k8s.io/status"),
        ("create", "secrets"),
    }


def test_a_recording_without_rights_is_not_compared(tmp_path: Path) -> None:
    """Discovery is open to everybody who is known at all; the rest counts."""
    file = tmp_path / "recorded.json"
    file.write_text('{"calls": [["get", "/apis"], ["list", "nodes"]]}')
    assert recorded_calls(file) == {("list", "nodes")}


def test_the_roles_are_what_the_end_to_end_run_used() -> None:
    """No unused verb, and none missing."""
    if not RECORDING.exists():
        pytest.skip(
            "no tests/deploy/recorded-verbs.json yet: the end-to-end run on a real API server writes it"
        )
    allowed, used = calls_allowed(rbac_rules(ROLES)), recorded_calls(RECORDING)
    assert sorted(used - allowed) == [], "used, and not allowed"
    assert sorted(allowed - used) == [], "allowed, and not used"


def test_no_right_is_given_both_in_the_cluster_and_in_a_tenant() -> None:
    """The recording does not know scopes: one that is in both would hide that the wider one is not needed."""
    rights = rbac_rules(ROLES)
    everywhere = {right[1:] for right in rights if right.scope == "cluster"}
    assert [right for right in rights if right.scope == "tenant" and right[1:] in everywhere] == []


def test_in_the_whole_cluster_it_writes_bindings_statuses_and_events_only() -> None:
    """What is not in a tenant's namespace can be placed, told about and evicted; not made, changed or deleted."""
    writes = {right for right in rbac_rules(BASE) if right.verb not in ("get", "list", "watch")}
    assert writes == {
        Right("cluster", "", "pods/binding", "create"),
        Right("cluster", "", "pods/eviction", "create"),
        Right("cluster", "", "pods/status", "patch"),
        Right("cluster", "events.k8s.io", "events", "create"),
        Right("cluster", "", "persistentvolumeclaims", "patch"),
        Right("cluster", "scheduling.k8s.io", "podgroups/status", "patch"),
        Right("cluster", "scheduling.x-k8s.io", "podgroups/status", "patch"),
        Right("cluster", "scheduling.volcano.sh", "podgroups", "patch"),
        Right("cluster", "resource.k8s.io", "resourceclaims/binding", "patch"),
    }


def test_secrets_are_never_read_and_nothing_is_executed() -> None:
    """It makes a gang's token and removes it; what is in a Secret, and what runs in a pod, is not its business."""
    rights = rbac_rules(ROLES)
    assert {right.verb for right in rights if right.resource == "secrets"} <= {"create", "delete"}
    forbidden = ("pods/exec", "pods/attach", "pods/portforward", "pods/ephemeralcontainers", "nodes/proxy")
    assert {right.resource for right in rights}.isdisjoint(forbidden)
    assert {right.verb for right in rights}.isdisjoint(("impersonate", "escalate", "bind", "approve"))


def test_only_a_tenants_role_makes_and_removes() -> None:
    """Everything that comes into being for a task is in its tenant's namespace."""
    rights = rbac_rules(TENANT)
    assert {right.scope for right in rights} == {"tenant"}
    claims = {"resourceclaims", "resourceclaims/status"}
    made = {"pods", "pods/log", "services", "secrets", "podgroups", "leases", "resourcequotas"}
    assert {right.resource for right in rights} == made | claims
    others = {right.resource for right in rights if right.verb not in ("create", "delete")}
    assert others == {"pods", "services", "pods/log", "leases", "resourcequotas"} | claims
    assert {right.resource for right in rights if right.verb == "patch"} == {"pods"} | claims


def test_helm_gives_the_same_rights(helm: str) -> None:
    """Two ways to install are one thing to secure."""
    assert rights_in(rendered_helm(helm)) == rbac_rules(ROLES)
