"""The rules of a kubelet that hollow nodes keep without any server: environments, admission, logs, addresses, fates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kubernetes.hollow.addresses import Addresses
from tests.kubernetes.hollow.environment import (
    Ground,
    command,
    environment,
    relocated,
)
from tests.kubernetes.hollow.spec import Container, Pod

LOG = Path("/run/log")


def made(spec: dict[str, Any], **metadata: Any) -> Pod:
    """A pod as the API server would tell of it."""
    about = {"name": "p", "namespace": "ns", "uid": "u1", **metadata}
    return msgspec.convert({"metadata": about, "spec": {"nodeName": "node-1", **spec}}, Pod)


def of_one(container: dict[str, Any], **metadata: Any) -> tuple[Container, Ground]:
    """A container alone in its pod, and what it stands on."""
    pod = made({"containers": [{"name": "c", **container}], "serviceAccountName": "robot"}, **metadata)
    ground = Ground(
        pod=pod,
        host_ip="127.96.0.1",
        pod_ip="127.96.48.0",
        folders={"work": Path("/r/work"), "in": Path("/r/in")},
        termination_log=LOG,
        services={"KUBERNETES_SERVICE_HOST": "127.0.0.1"},
        maps={
            ("secrets", "s"): {"user": b"root", "word": b"a$(X)b"},
            ("configmaps", "c"): {"colour": b"red"},
        },
        resolve=lambda text: text.replace("peer.g.ns.svc", "127.96.48.9"),
    )
    return pod.spec.containers[0], ground


def test_a_variable_sees_those_before_it_and_no_others() -> None:
    """Those of envFrom and of services come before all; a secret's text is not expanded itself."""
    container, ground = of_one(
        {
            "envFrom": [{"prefix": "S_", "secretRef": {"name": "s"}}, {"configMapRef": {"name": "c"}}],
            "env": [
                {"name": "EARLY", "value": "$(LATE) $(colour) $(KUBERNETES_SERVICE_HOST)"},
                {"name": "LATE", "value": "$(S_word)"},
                {"name": "AGAIN", "value": "$(EARLY)!"},
            ],
        }
    )
    env = environment(container, ground)
    assert env["EARLY"] == "$(LATE) red 127.0.0.1"
    assert env["LATE"] == "a$(X)b"
    assert env["AGAIN"] == "$(LATE) red 127.0.0.1!"
    assert env["S_user"] == "root"


MOUNTS = [
    {"name": "work", "mountPath": "/flowsched/work/"},
    {"name": "in", "mountPath": "/flowsched/work/in", "subPath": "s"},
]


@pytest.mark.parametrize(
    ("path", "here"),
    [
        ("/flowsched/work", "/r/work"),
        ("/flowsched/work/a/b", "/r/work/a/b"),
        ("/flowsched/work/in/x", "/r/in/s/x"),
        ("/flowsched/workshop", "/flowsched/workshop"),
        ("file:///flowsched/work", "file:///flowsched/work"),
        ("/dev/termination-log", "/run/log"),
        ("/etc/passwd", "/etc/passwd"),
    ],
)
def test_paths_in_volumes_become_folders_of_this_machine(path: str, here: str) -> None:
    """The longest mount decides; what only begins with the same letters is something else."""
    container, ground = of_one({"volumeMounts": MOUNTS})
    assert relocated(path, container, ground) == here


def test_values_are_moved_and_commands_are_not() -> None:
    """A command reaches its paths by its environment; a signed order is left as it was written, for it would not verify."""
    container, ground = of_one(
        {
            "command": ["tool", "$(DATA)", "/flowsched/work/x", "peer.g.ns.svc"],
            "env": [
                {"name": "DATA", "value": "/flowsched/work/x"},
                {"name": "PEER", "value": "peer.g.ns.svc:80"},
                {"name": "FLOWSCHED_ORDER", "value": "/flowsched/work $(DATA) peer.g.ns.svc"},
            ],
            "volumeMounts": MOUNTS,
        }
    )
    env = environment(container, ground)
    assert env["DATA"] == "/r/work/x"
    assert env["PEER"] == "127.96.48.9:80"
    assert env["FLOWSCHED_ORDER"] == "/flowsched/work /r/work/x peer.g.ns.svc"
    assert env["FLOWSCHED_TERMINATION_LOG"] == "/run/log"
    assert command(container, env, ["entry"]) == ["tool", "/r/work/x", "/flowsched/work/x", "peer.g.ns.svc"]


@pytest.fixture
def addresses() -> Iterator[Addresses]:
    """A block of them."""
    held = Addresses()
    yield held
    held.close()


def test_two_processes_have_no_address_in_common(addresses: Addresses) -> None:
    """The block is claimed by a socket that listens; freed, it may be had again."""
    other = Addresses()
    try:
        mine = {addresses.node(), addresses.pod("n", "", "p")}
        assert mine.isdisjoint({other.node(), other.pod("n", "", "p")})
    finally:
        other.close()


def test_a_gang_members_address_is_known_by_its_name(addresses: Addresses) -> None:
    """Whether its pod or somebody's environment comes first; other names are left alone."""
    text = addresses.resolved("a.gang.ns.svc:1,b.gang.ns.svc.cluster.local/x c.svc a.gang.ns.svcs svc.ns.svc")
    a, b = addresses.pod("ns", "gang", "a"), addresses.pod("ns", "gang", "b")
    assert text == f"{a}:1,{b}/x c.svc a.gang.ns.svcs svc.ns.svc"
    assert a != addresses.pod("other", "gang", "a")


def test_named_addresses_are_not_given_to_others(addresses: Addresses) -> None:
    """Also when all addresses have been given once."""
    named = addresses.pod("ns", "gang", "a")
    assert named not in {addresses.pod("ns", "", "p") for _ in range(25_000)}
