"""What a task is told, in literals."""

from __future__ import annotations

import json

import pytest

from flowsched.cluster.node.environment import Paths, environment, expand, folded, gang_files
from flowsched.executor.protocol import GangSeat, InputFile, OutputFile, Roster
from tests.executors.executor_contract import pod

PATHS = Paths("/a", "/a/work", {"reads": "/a/work/inputs/reads/x.fq", "all-bams": "/m"}, "/venv/bin:/bin")


def test_a_plain_task() -> None:
    """Everything it finds, and nothing else."""
    task = pod(
        "fs-germline-align-3-2",
        "align",
        "$(FLOWSCHED_INPUT_READS)",
        "--out=$(FLOWSCHED_OUTPUT_BAM)",
        "$(MODE)$(NOT_SET)$$(MODE)",
        workflow="germline",
        stage="align",
        index=7,
        shard=3,
        attempt=2,
        cpu_millicores=2500,
        memory_bytes=3 << 30,
        env={"MODE": "fast", "OMP_NUM_THREADS": "1", "FLOWSCHED_STAGE": "forged"},
        item="L003",
        inputs=(InputFile("reads", ("s3://x",)), InputFile("all-bams", ("s3://y",), manifest=True)),
        outputs=(OutputFile("bam", "out/aligned.bam", "flowsched:x"),),
    )
    env, argv = environment(task, PATHS)
    assert argv == [
        "align",
        "/a/work/inputs/reads/x.fq",
        "--out=/a/work/out/aligned.bam",
        "fast$(NOT_SET)$(MODE)",
    ]
    assert env == {
        "PATH": "/venv/bin:/bin",
        "HOME": "/a/work",
        "PWD": "/a/work",
        "TMPDIR": "/a/work/tmp",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "MODE": "fast",
        "CUDA_VISIBLE_DEVICES": "",
        "FLOWSCHED_FOLDER": "/a",
        "FLOWSCHED_WORKFLOW": "germline",
        "FLOWSCHED_STAGE": "align",
        "FLOWSCHED_INDEX": "3",
        "FLOWSCHED_ITEM": "L003",
        "FLOWSCHED_ATTEMPT": "2",
        "FLOWSCHED_CPU": "3",
        "FLOWSCHED_MEMORY": "3221225472",
        "FLOWSCHED_INPUT_READS": "/a/work/inputs/reads/x.fq",
        "FLOWSCHED_INPUT_ALL_BAMS": "/m",
        "FLOWSCHED_OUTPUT_BAM": "/a/work/out/aligned.bam",
    }


def test_a_member_of_a_gang() -> None:
    """Rank order everywhere; roles by name."""
    seat = GangSeat(
        role="worker",
        role_index=1,
        rank=2,
        number=2,
        roster=Roster((("ps", 0, 1), ("worker", 1, 2))),
        token="t0ken",
        master_port=31000,
    )
    env, argv = environment(pod("x", "train", "$(RANK)/$(WORLD_SIZE)", gang=seat, gpu_ids=(2, 5)), PATHS)
    assert argv == ["train", "2/3"]
    told = {
        "FLOWSCHED_HOSTS": "127.64.0.0,127.64.0.1,127.64.0.2",
        "FLOWSCHED_HOSTS_PS": "127.64.0.0",
        "FLOWSCHED_HOSTS_WORKER": "127.64.0.1,127.64.0.2",
        "FLOWSCHED_ROLE": "worker",
        "FLOWSCHED_ROLE_INDEX": "1",
        "FLOWSCHED_ADDRESS": "127.64.0.2",
        "FLOWSCHED_GANG_TOKEN": "t0ken",
        "FLOWSCHED_HOSTFILE": "/a/work/hostfile",
        "FLOWSCHED_CLUSTER_FILE": "/a/work/cluster.json",
        "RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.64.0.0",
        "MASTER_PORT": "31000",
        "CUDA_VISIBLE_DEVICES": "2,5",
    }
    assert {key: env[key] for key in told} == told
    assert json.loads(env["TF_CONFIG"]) == {
        "cluster": {"ps": ["127.64.0.0:31000"], "worker": ["127.64.0.1:31000", "127.64.0.2:31000"]},
        "task": {"type": "worker", "index": 1},
    }


def test_a_hostfile_leaves_launchers_out() -> None:
    """They start the others over it."""
    roster = Roster((("launcher", 0, 1), ("worker", 7, 2)))
    texts = gang_files(roster, 4, 29500, lambda member: f"h{member.number}")
    assert texts == {
        "hostfile": "h7 slots=4\nh8 slots=4\n",
        "cluster.json": '{"launcher": ["h0:29500"], "worker": ["h7:29500", "h8:29500"]}',
    }


@pytest.mark.parametrize(
    ("argument", "expanded"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)z", "x1y2 3z"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$$(A)"),
        ("$(NONE)", "$(NONE)"),
        ("$A ${A} $(A", "$A ${A} $(A"),
        ("$()", "$()"),
        ("`id`; $(id -u)", "`id`; $(id -u)"),
    ],
)
def test_references_in_arguments(argument: str, expanded: str) -> None:
    """As in Kubernetes: no shell, unknown names stay."""
    assert expand(argument, {"A": "1", "B": "2 3"}) == expanded


def test_names_fold_into_variables() -> None:
    """Upper-case; whatever is no letter or digit becomes an underscore."""
    assert folded("my-bam.v2 é") == "MY_BAM_V2__"


def member_of(size: int) -> GangSeat:
    return GangSeat("worker", 1, 1, 1, Roster((("worker", 0, size),)), "t0ken")


def test_the_longest_list_of_members_fits_a_variable() -> None:
    """512 names of 192 bytes, as long as Kubernetes has them; Linux takes 128 KiB with the variable's name."""
    env, _ = environment(pod("x", gang=member_of(512)), PATHS, lambda member: f"{member.number:0192}")
    sizes = {len(name) + 1 + len(value) for name, value in env.items()}
    assert 100_000 < max(sizes) < 128 << 10
    assert len(json.loads(env["TF_CONFIG"])["cluster"]["worker"]) == 512


def test_a_larger_gang_has_its_lists_in_files_alone() -> None:
    """Nothing of its environment grows with it, and the document's own variables stay."""
    own = {"TF_CONFIG": "mine"}
    env, _ = environment(pod("x", gang=member_of(10_000), env=own), PATHS)
    assert max(map(len, env.values())) < 100
    assert {name for name in env if "HOSTS" in name or name == "TF_CONFIG"} == {"TF_CONFIG"}
    assert (env["TF_CONFIG"], env["WORLD_SIZE"], env["MASTER_ADDR"]) == ("mine", "10000", "127.64.0.0")
    assert env["FLOWSCHED_ADDRESS"] == "127.64.0.1"
