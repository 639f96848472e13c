"""Pods of our own for these tests: settings, samples, random tasks, and what a kubelet would make of a manifest."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgspec

from flowsched.cluster.kubernetes.objects.podgroup import Form
from flowsched.cluster.kubernetes.objects.release import (
    GpuSettings,
    GroupRef,
    Owner,
    ReleaseSettings,
)
from flowsched.cluster.kubernetes.pods.container_task import kubelet_expand
from flowsched.cluster.kubernetes.pods.manifest import pod_manifest
from flowsched.cluster.node.container_paths import Refusal, SharedVolume
from flowsched.executor.protocol import GangSeat, InputFile, OutputFile, Pod, Roster
from flowsched.workflow.spec import Resources, Rules, Toleration

SETTINGS = ReleaseSettings(
    namespace="lab",
    our_image="registry.test/flowsched:1",
    default_image="registry.test/task:1",
    agent_key=b"key",
)
GIB = 1 << 30


def task(name: str = "fs-w1-align-0-1", *command: str, **changes: Any) -> Pod:
    """A plain task."""
    fields: dict[str, Any] = {
        "workflow": "w1",
        "stage": "align",
        "index": 0,
        "shard": 0,
        "attempt": 1,
        "epoch": 4,
        "node": "n1",
        "env": {},
        "image": None,
        "cpu_millicores": 1500,
        "memory_bytes": GIB,
        "gpu_millis": 0,
        **changes,
    }
    return Pod(name=name, command=command or ("true",), **fields)


def seat(role: str = "worker", role_index: int = 1, rank: int = 2) -> GangSeat:
    """A place among one parameter server and two workers."""
    return GangSeat(role, role_index, rank, 1 + rank, Roster((("ps", 1, 1), ("worker", 2, 2))), "t0ken")


GANG = GroupRef(
    "fs-w1-train-0-g1",
    Form.VOLCANO,
    Owner("scheduling.volcano.sh/v1beta1", "PodGroup", "fs-w1-train-0-g1", "u-1"),
)


def written(
    pod: Pod,
    settings: ReleaseSettings = SETTINGS,
    group: GroupRef | None = None,
    expires_ms: int = 0,
) -> dict[str, Any]:
    """The manifest of a pod that there can be."""
    told = pod_manifest(pod, settings, group, expires_ms)
    assert not isinstance(told, Refusal), told
    return msgspec.json.decode(told)


def written_or_refused(pod: Pod, group: GroupRef | None = None) -> dict[str, Any] | Refusal:
    """Either."""
    told = pod_manifest(pod, SETTINGS, group)
    return told if isinstance(told, Refusal) else msgspec.json.decode(told)


def refused(pod: Pod, settings: ReleaseSettings = SETTINGS, group: GroupRef | None = None) -> Refusal:
    """Why there can be no such pod."""
    told = pod_manifest(pod, settings, group)
    assert isinstance(told, Refusal)
    return told


def container(manifest: Mapping[str, Any], name: str) -> dict[str, Any]:
    """One of its containers, of whatever kind."""
    spec = manifest["spec"]
    return next(each for each in (*spec["initContainers"], *spec["containers"]) if each["name"] == name)


def started(
    manifest: Mapping[str, Any], name: str, secrets: Mapping[str, str]
) -> tuple[dict[str, str], list[str]]:
    """Environment and command of a container as a kubelet resolves them, its Secrets being `name/key` -> value."""
    services = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_PORT": "443"}
    env: dict[str, str] = {}
    made = container(manifest, name)
    for variable in made["env"]:
        source = variable.get("valueFrom")
        if source is None:
            env[variable["name"]] = kubelet_expand(variable["value"], services | env)
        elif "fieldRef" in source:
            env[variable["name"]] = f"<{source['fieldRef']['fieldPath']}>"
        else:
            key = source["secretKeyRef"]
            env[variable["name"]] = secrets[f"{key['name']}/{key['key']}"]
    env = services | env
    return env, [kubelet_expand(part, env) for part in made.get("command", [])]


WORDS = [
    "align", "Align_Reads", "--out=$(FLOWSCHED_OUTPUT_O0)", "$(MODE)", "kill $$", "x=$(cat $(FLOWSCHED_INPUT_I0))", "$$(MODE)",
    "$(id -u)", "é", "a b", "", "$(KUBERNETES_PORT)", "'; rm -rf /", "$(TOKEN)", "$(FLOWSCHED_GANG_TOKEN)", "\n", "{{ .x }}",
]  # fmt: skip


def random_task(rng: random.Random) -> tuple[Pod, ReleaseSettings, GroupRef | None]:
    """A task with any of the things that tasks may have."""
    stage = rng.choice(["align", "Sort_2", "x" * 63, "a-b"])
    index, attempt = rng.randrange(1000), rng.randrange(1, 5)
    ganged = rng.random() < 0.4
    gpus = rng.choice([0, 0, 250, 1000, 2000])
    pod = Pod(
        name=f"fs-w1-{stage}-{index}-{attempt}",
        workflow="w1",
        stage=stage,
        index=index,
        shard=index,
        attempt=attempt,
        epoch=rng.randrange(1, 9),
        node=rng.choice(["", "n1"]),
        command=tuple(rng.choices(WORDS, k=rng.randrange(1, 6))),
        env={name: rng.choice(WORDS) for name in rng.sample(["MODE", "A.B", "PATH", "OMP_NUM_THREADS", "x-y"], 3)},
        image=rng.choice([None, "ubuntu:24.04", "registry.test/a/b@sha256:" + "0" * 64]),
        cpu_millicores=rng.choice([100, 1000, 2500, 4000]),
        memory_bytes=rng.choice([1 << 20, GIB, 8 * GIB]),
        gpu_millis=gpus,
        item=rng.choice([None, "L001", "$(MODE)"]),
        inputs=tuple(
            InputFile(f"i{n}", tuple(f"s3://lab/{n}/{k}.fq.gz" for k in range(1 + many * 3)), manifest=many)
            for n, many in enumerate(rng.choices([False, True], k=rng.randrange(3)))
        ),
        outputs=tuple(
            OutputFile(f"o{n}", f"out/{n}.bam", f"flowsched:w1/{stage}/{index}/{attempt}/o{n}", rng.random() < 0.5)
            for n in range(rng.randrange(3))
        ),
        timeout_ms=rng.choice([None, 1, 90_500]),
        gang=seat() if ganged else None,
        gpu_ids=tuple(range(max(1, gpus // 1000))) if gpus else (),
        secrets={"TOKEN": "team-token/key"} if rng.random() < 0.5 else {},
        memory_limit_bytes=rng.choice([None, 9 * GIB]),
        disk_bytes=rng.choice([0, GIB]),
        extended={"example.org/fpga": rng.randrange(2)},
        limits=Resources(cpu_millicores=rng.choice([0, 1000, 9000])),
        rules=Rules(tolerations=(Toleration("dedicated", "Equal", "batch", "NoExecute"),)) if rng.random() < 0.5 else None,
    )  # fmt: skip
    return pod, random_settings(rng), GANG if ganged else None


def random_settings(rng: random.Random) -> ReleaseSettings:
    """An installation with any of the things that may be set."""
    return ReleaseSettings(
        namespace="lab",
        our_image="registry.test/flowsched:1",
        default_image="registry.test/task:1",
        agent_key=b"key",
        agent_port=rng.choice([0, 8475]),
        user=rng.choice([1000, 65534]),
        service_account=rng.choice(["", "tasks"]),
        hand_over=rng.choice([None, "volcano", "default-scheduler"]),
        gang_addresses=rng.choice(["dns", "seat"]),
        shared=(SharedVolume("reference", "/ref", True), SharedVolume("scratch", "/scratch")) if rng.random() < 0.5 else (),
        gpu=GpuSettings(rng.choice(["", "nvidia.com/gpu"]), rng.choice(["cuda", "runtime"])),
    )  # fmt: skip
