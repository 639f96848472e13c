"""The rules of a kubelet that hollow nodes keep without any server: environments, admission, logs, addresses, fates."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.kubernetes.hollow.addresses import Addresses
from tests.kubernetes.hollow.admission import Refusal, Room, amounts, requested
from tests.kubernetes.hollow.environment import (
    Ground,
    Unresolved,
    command,
    environment,
    expand,
    references,
    relocated,
)
from tests.kubernetes.hollow.logs import CriLog, entries, last_lines
from tests.kubernetes.hollow.simulated import Fate, annotated
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


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("$(A)", "a"),
        ("x$(A)y$(B)z", "xaybz"),
        ("$(NONE)", "$(NONE)"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$a"),
        ("$$", "$"),
        ("$", "$"),
        ("cost $5", "cost $5"),
        ("$(A", "$(A"),
        ("$(A-B.c)", "ok"),
        ("$($(A))", "$($(A))"),
        ("", ""),
        ("é$(A)é", "éaé"),
    ],
)
def test_references_are_expanded_as_a_kubelet_does(written: str, read: str) -> None:
    """The cases of Kubernetes' own expansion: `$$` is one `$`, an unknown or unfinished reference stays."""
    assert expand(written, {"A": "a", "B": "b", "A-B.c": "ok"}) == read


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metadata.name", "p"),
        ("metadata.namespace", "ns"),
        ("metadata.uid", "u1"),
        ("metadata.labels['tier']", "gold"),
        ("metadata.labels['none']", ""),
        ("metadata.annotations['a.b/c']", "note"),
        ("spec.nodeName", "node-1"),
        ("spec.serviceAccountName", "robot"),
        ("status.hostIP", "127.96.0.1"),
        ("status.podIP", "127.96.48.0"),
    ],
)
def test_fields_of_the_pod_reach_the_environment(field: str, value: str) -> None:
    """The downward API's names."""
    variable = {"name": "V", "valueFrom": {"fieldRef": {"fieldPath": field}}}
    container, ground = of_one({"env": [variable]}, labels={"tier": "gold"}, annotations={"a.b/c": "note"})
    assert environment(container, ground)["V"] == value


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.cpu", "0", "2"),
        ("limits.cpu", "1m", "1500"),
        ("requests.memory", "0", "1073741824"),
        ("requests.memory", "1Mi", "1024"),
        ("limits.memory", "1Mi", "0"),
    ],
)
def test_resources_reach_the_environment_rounded_up(resource: str, divisor: str, value: str) -> None:
    """One and a half cores are 2 in whole cores."""
    source = {"resourceFieldRef": {"resource": resource, "divisor": divisor}}
    resources = {"limits": {"cpu": "1500m"}, "requests": {"memory": "1Gi"}}
    container, ground = of_one({"env": [{"name": "V", "valueFrom": source}], "resources": resources})
    assert environment(container, ground)["V"] == value


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


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"secretKeyRef": {"name": "none", "key": "k"}}, 'not found: secret "none"'),
        ({"secretKeyRef": {"name": "s", "key": "none"}}, 'couldn\'t find key none in secret "s"'),
        ({"configMapKeyRef": {"name": "none", "key": "k"}}, 'not found: configmap "none"'),
        ({"fieldRef": {"fieldPath": "spec.nonsense"}}, "unsupported fieldPath: spec.nonsense"),
    ],
)
def test_what_is_not_there_is_said(source: dict[str, Any], words: str) -> None:
    """The container waits with this as its reason; an optional key is just not set."""
    container, ground = of_one({"env": [{"name": "V", "valueFrom": source}]})
    with pytest.raises(Unresolved, match=words):
        environment(container, ground)
    for ref in source.values():
        ref["optional"] = True
    if "fieldRef" not in source:
        container, ground = of_one({"env": [{"name": "V", "valueFrom": source}]})
        assert "V" not in environment(container, ground)


def test_all_that_an_environment_needs_is_named_beforehand() -> None:
    """So that it can be fetched in one go."""
    container, _ = of_one(
        {
            "envFrom": [{"secretRef": {"name": "a"}}, {"configMapRef": {"name": "b"}}],
            "env": [
                {"name": "X", "valueFrom": {"secretKeyRef": {"name": "c", "key": "k"}}},
                {"name": "Y", "valueFrom": {"configMapKeyRef": {"name": "d", "key": "k"}}},
                {"name": "Z", "value": "z"},
            ],
        }
    )
    assert list(references(container)) == [
        ("secrets", "a"),
        ("configmaps", "b"),
        ("secrets", "c"),
        ("configmaps", "d"),
    ]


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


def test_arguments_follow_the_images_entry_point() -> None:
    """A command takes its place."""
    container, _ = of_one({"args": ["a", "$(X)"]})
    assert command(container, {"X": "1"}, ["entry"]) == ["entry", "a", "1"]


def asking(cpu: str, **fields: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **fields}


@pytest.mark.parametrize(
    ("inits", "mains", "cpu"),
    [
        ([], ["1", "500m"], 1500),
        ([("2", "")], ["1"], 2000),
        ([("2", "")], ["3"], 3000),
        ([("1", "Always")], ["1"], 2000),
        ([("1", "Always"), ("3", "")], ["1"], 4000),
        ([("3", ""), ("1", "Always")], ["1"], 3000),
        ([("1", "Always"), ("1", "Always"), ("1", "")], ["1"], 3000),
    ],
)
def test_a_pod_asks_for_the_most_it_needs_at_a_time(
    inits: list[tuple[str, str]], mains: list[str], cpu: int
) -> None:
    """Init containers one by one with the sidecars before them, or all sidecars with the main containers."""
    pod = made(
        {
            "initContainers": [asking(amount, restartPolicy=policy) for amount, policy in inits],
            "containers": [asking(amount) for amount in mains],
        }
    )
    assert requested(pod)["cpu"] == cpu


def test_limits_and_overhead_count_too() -> None:
    """A limit alone is a request as well; the runtime's overhead comes on top, and every pod is one of `pods`."""
    container = {"name": "c", "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}
    pod = made({"containers": [container], "overhead": {"cpu": "250m"}})
    assert requested(pod) == {"cpu": 1250, "memory": 1 << 30, "pods": 1}
    whole = made({"containers": [container], "resources": {"requests": {"cpu": "3"}}})
    assert requested(whole) == {"cpu": 3000, "memory": 1 << 30, "pods": 1}


def room(**labels: str) -> Room:
    return Room(amounts({"cpu": "2", "memory": "1Gi", "pods": "2", "nvidia.com/gpu": "1"}), labels)


def wanting(uid: str, quantities: dict[str, str], **spec: Any) -> Pod:
    return made({"containers": [{"name": "c", "resources": {"requests": quantities}}], **spec}, uid=uid)


@pytest.mark.parametrize(
    ("quantities", "reason"),
    [
        ({"cpu": "2001m"}, "OutOfcpu"),
        ({"memory": "2Gi"}, "OutOfmemory"),
        ({"nvidia.com/gpu": "2"}, "OutOfnvidia.com/gpu"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_resource(quantities: dict[str, str], reason: str) -> None:
    """A kubelet's words; what fits exactly fits."""
    refusal = room().admit(wanting("u", quantities))
    assert refusal is not None
    assert refusal.reason == reason
    assert room().admit(wanting("u", {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"})) is None


def test_a_resource_that_the_node_does_not_know_is_not_its_affair() -> None:
    """As in a kubelet: somebody else accounts for it."""
    assert room().admit(wanting("u", {"example.com/fpga": "5"})) is None


def test_a_node_takes_no_more_pods_than_it_may() -> None:
    """Two of them here; one that leaves makes room."""
    node = room()
    assert node.admit(wanting("a", {})) is None
    assert node.admit(wanting("b", {})) is None
    assert node.admit(wanting("c", {})) == Refusal(
        "OutOfpods", "Node didn't have enough resource: pods, requested: 1, used: 2, capacity: 2"
    )
    node.leave("a")
    assert node.admit(wanting("c", {})) is None


def test_selectors_and_ports_are_looked_at() -> None:
    """A label that the node lacks, and a port that another pod has."""
    node = room(disk="ssd")
    refusal = node.admit(wanting("a", {}, nodeSelector={"disk": "hdd"}))
    assert refusal is not None
    assert refusal.reason == "NodeAffinity"
    port = {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}
    assert node.admit(wanting("b", {}, nodeSelector={"disk": "ssd"}, **port)) is None
    refusal = node.admit(wanting("c", {}, **port))
    assert refusal is not None
    assert refusal.reason == "NodePorts"


@pytest.fixture
def addresses() -> Iterator[Addresses]:
    """A block of them."""
    held = Addresses()
    yield held
    held.close()


def test_addresses_are_all_different_and_on_this_machine(addresses: Addresses) -> None:
    """A socket can be bound to each."""
    nodes = [addresses.node() for _ in range(50)]
    pods = [addresses.pod("ns", "", f"p{number}") for number in range(300)]
    assert len(set(nodes + pods)) == 350
    block = ipaddress.ip_network("127.96.0.0/11")
    assert all(ipaddress.ip_address(one) in block for one in nodes + pods)
    for one in (nodes[0], nodes[-1], pods[0], pods[-1]):
        with socket.socket() as probe:
            probe.bind((one, 0))


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


def logged(path: Path, *pieces: tuple[str, bytes]) -> list[str]:
    """What is in the log file, without the times."""
    log = CriLog(path)
    for stream, data in pieces:
        log.feed(stream, data)
    log.close()
    return [line.split(" ", 1)[1] for line in path.read_bytes().decode().split("\n")[:-1]]


def test_logs_have_a_line_for_each_line_of_each_stream(tmp_path: Path) -> None:
    """However they were cut on their way; a carriage return is a part of a line, and an unfinished one is kept."""
    found = logged(
        tmp_path / "0.log",
        ("stdout", b"one\ntw"),
        ("stderr", b"err\n"),
        ("stdout", b"o\n\n50%\r100%\nend"),
    )
    assert found == [
        "stdout F one",
        "stderr F err",
        "stdout F two",
        "stdout F ",
        "stdout F 50%\r100%",
        "stdout F end",
    ]


def test_long_lines_are_written_in_parts_that_make_the_line_again(tmp_path: Path) -> None:
    """16 KiB a part, as container runtimes do."""
    text = bytes(range(32, 127)) * 400  # 38,000 bytes
    found = logged(tmp_path / "a.log", ("stdout", text[:20_000]), ("stdout", text[20_000:] + b"\nnext\n"))
    assert [line[:9] for line in found] == ["stdout P "] * 2 + ["stdout F "] * 2
    parts = [part for _, part in entries((tmp_path / "a.log").read_bytes())]
    assert b"".join(parts) == text + b"\nnext\n"


def test_the_last_lines_are_found_in_a_large_log(tmp_path: Path) -> None:
    """Without reading what is far from its end as text."""
    path = tmp_path / "0.log"
    log = CriLog(path)
    for number in range(50_000):
        log.feed("stdout", f"line {number}\n".encode())
    log.close()
    assert last_lines(path, lines=2, size=2048) == "line 49998\nline 49999"
    assert last_lines(path, lines=80, size=7) == "49999"
    assert last_lines(tmp_path / "none", lines=1, size=1) == ""


def test_a_pods_annotations_say_what_becomes_of_it() -> None:
    """Without any it runs for ever; what cannot be read is said."""
    assert annotated(made({})) == Fate(runtime_s=None)
    said = {
        "flowsched.io/hollow-runtime": "1m30s",
        "flowsched.io/hollow-start": "250ms",
        "flowsched.io/hollow-exit-code": "137",
        "flowsched.io/hollow-reason": "OOMKilled",
        "flowsched.io/hollow-messages": '{"stage-out": "{}"}',
    }
    assert annotated(made({}, annotations=said)) == Fate(90.0, 0.25, 137, "OOMKilled", {"stage-out": "{}"})
    for name, wrong in (("runtime", "soon"), ("exit-code", "none"), ("messages", "[]")):
        with pytest.raises(ValueError):
            annotated(made({}, annotations={f"flowsched.io/hollow-{name}": wrong}))
