"""Documents for tests: small ones to spoil, and one that uses every key."""

import json
from typing import Any

from flowsched.errors import InvalidDocument
from flowsched.workflow.document.decode import decode_workflow

Json = dict[str, Any]


def stage(name: str = "a", **more: Any) -> Json:
    """A stage that is good; a value of None leaves a key out."""
    made = {"name": name, "command": ["true"], **more}
    return {key: value for key, value in made.items() if value is not None}


def document(*stages: Json, **more: Any) -> Json:
    """A document of these stages."""
    return {"name": "test", "stages": list(stages), **more}


def encoded(value: object) -> bytes:
    """The document as it is sent."""
    return json.dumps(value).encode()


def faults_of(value: object) -> list[tuple[str, str, str]]:
    """What is wrong with a document: (path, found, expected)."""
    try:
        decode_workflow(encoded(value))
    except InvalidDocument as error:
        return [(fault.path, fault.found, fault.expected) for fault in error.faults]
    return []


#: The example of the documentation.
GERMLINE: Json = {
    "name": "germline",
    "queue": "genomics",
    "priority": 0,
    "labels": {"sample": "NA18507"},
    "stages": [
        {
            "name": "align",
            "scatter": {"items": ["L001", "L002", "L003"]},
            "container": {"image": "bwa:0.7.17"},
            "command": ["./align.sh"],
            "resources": {"cpu": 4, "memory": "8Gi", "disk": "20Gi"},
            "inputs": [
                {"name": "reads", "uri": "s3://lab/{item}.fq.gz", "size": "12Gi"},
                {"name": "reference", "uri": "s3://ref/hg38.fa", "size": "3Gi"},
            ],
            "outputs": [{"name": "bam", "path": "aligned.bam"}],
            "estimate": {"runtime": "25m", "output": "9Gi"},
            "retry": {"attempts": 3, "memory_factor": 1.5},
        },
        {
            "name": "sort",
            "inputs": [{"name": "bam", "from": "align.bam", "match": "index"}],
            "outputs": [{"name": "bam", "path": "sorted.bam"}],
            "command": ["./sort.sh"],
        },
        {
            "name": "call",
            "inputs": [{"name": "bams", "from": "sort.bam", "match": "all"}],
            "command": ["./call.sh"],
        },
        {
            "name": "train",
            "needs": ["call"],
            "gang": True,
            "roles": {
                "ps": {"replicas": 2, "command": ["python", "ps.py"], "resources": {"cpu": 2}},
                "worker": {
                    "replicas": 4,
                    "command": ["python", "worker.py"],
                    "resources": {"cpu": 4, "gpu": 1},
                },
            },
        },
    ],
}

#: Every key there is, at least once.
EVERYTHING: Json = {
    "name": "every key",
    "queue": "lab.genomics",
    "user": "ann@example.org",
    "priority": -5,
    "labels": {"sample": "NA18507", "Größe": "ähnlich"},
    "stages": [
        {
            "name": "make",
            "scatter": {"items": ["x", 7, 0.5]},
            "container": {"image": "registry.example.org/tools@sha256:0123"},
            "command": ["make", ""],
            "resources": {"cpu": "500m", "memory": "1Gi", "disk": 0, "gpu": 0.5, "fpga.io/x": 2},
            "limits": {"cpu": 1, "memory": "2Gi"},
            "inputs": [
                {"name": "data", "uri": "https://example.org:8443/{item}/{index}?v=1"},
                {"name": "local", "uri": "/data/with space/{sample}"},
            ],
            "outputs": [
                {"name": "part", "path": "./out//part.txt"},
                {"name": "log.txt", "path": "log", "optional": True},
            ],
            "estimate": {"runtime": 90, "output": "1k"},
            "retry": {"attempts": 2, "memory_factor": 2},
            "timeout": "1h30m",
            "env": {"THREADS": "4"},
            "secrets": {"TOKEN": "lab/token"},
            "selector": {"disktype": "ssd"},
            "tolerations": [{"key": "dedicated", "operator": "Exists", "effect": "NoSchedule"}],
            "anti_affinity": "node",
            "topology": {"rack": "preferred"},
            "io": {"read": "3Gi", "write": "200Mi/s"},
            "cache": True,
        },
        {
            "name": "count",
            "command": ["count"],
            "scatter": {"count": 2},
            "inputs": [{"name": "parts", "from": "make.part", "match": "chunk", "manifest": True}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z1"]}]}
                        ]
                    }
                }
            },
        },
        {
            "name": "judge",
            "command": ["judge"],
            "inputs": [{"name": "logs", "from": "make.log.txt", "match": "all", "optional": True}],
            "outputs": [{"name": "verdict", "path": "verdict", "value": True}],
        },
        {
            "name": "gang",
            "gang": True,
            "command": ["serve"],
            "env": {"A": "1", "B": "1"},
            "resources": {"cpu": 2},
            "roles": {
                "ps": {"replicas": 2, "completes": False, "env": {"B": "2"}},
                "worker": {"replicas": 4, "min": 3, "command": ["work"], "secrets": {"A": "lab/a"}},
            },
            "outputs": [{"name": "model", "path": "model", "role": "worker"}],
            "min_resources": {"cpu": 8, "memory": "2Gi"},
            "needs": ["count"],
            "when": {"outcome": "success", "equals": {"judge.verdict": ["good", "fair"]}},
            "policies": [
                {"event": "PodEvicted", "action": "RestartJob"},
                {"on": "task_failed", "exit_codes": [137, 143], "action": "restart_task"},
                {"event": "task_pending", "timeout": "30m", "action": "abort_workflow"},
            ],
        },
        {"name": "mourn", "command": ["mail"], "needs": ["gang"], "when": "failure"},
    ],
}
