"""The variables of the environment whose names begin with FLOWSCHED_, and those of that form that flowsched does not know.

Options of commands that read one name it themselves, and so do the settings of `cluster.kubernetes`. All others are here, with
their meaning; docs/reference/settings.md is written from these tables.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from typing import Final

PREFIX: Final = "FLOWSCHED_"
#: Variables that a task finds in its environment: name -> meaning.
OF_TASKS: Final[Mapping[str, str]] = {
    "FLOWSCHED_FOLDER": "The folder of this attempt",
    "FLOWSCHED_WORKFLOW": "The id of the workflow",
    "FLOWSCHED_STAGE": "The name of the stage",
    "FLOWSCHED_INDEX": "The number of the shard, from 0",
    "FLOWSCHED_ATTEMPT": "The number of the attempt, from 0: the second try is attempt 1",
    "FLOWSCHED_CPU": "Whole cores that the task asked for, at least 1; `OMP_NUM_THREADS` has the same value",
    "FLOWSCHED_MEMORY": "The bytes of memory that the task asked for, with what `memory_factor` of `retry` has added; not set "
    "where it asked for none",
    "FLOWSCHED_ITEM": "With `scatter.items`: the item of this shard",
    "FLOWSCHED_INPUT_NAME": "For each input: its path, or with `match: all` and `chunk` the path of a manifest with "
    "one path per line. "
    "`NAME` is the input's name in upper case; other characters than letters and digits become `_`",
    "FLOWSCHED_OUTPUT_NAME": "For each output: the path at which the task writes it",
    "FLOWSCHED_CONTENT_NUMBER": "On Kubernetes, in stage-in: the text of an input with `content`",
    "FLOWSCHED_HOSTS": "Gangs of at most 512 members: the addresses of all members by rank, separated by commas",
    "FLOWSCHED_HOSTS_ROLE": "Gangs of at most 512 members: the addresses of one role; `ROLE` is its name in upper case, with `_` "
    "as in names of inputs",
    "FLOWSCHED_ROLE": "Gangs: the role of this member",
    "FLOWSCHED_ROLE_INDEX": "Gangs: the number of this member within its role, from 0",
    "FLOWSCHED_ADDRESS": "Gangs: the address of this member. Listen on it, not on 0.0.0.0",
    "FLOWSCHED_GANG_TOKEN": "Gangs: a secret that the members of this attempt share, and no other task has",
    "FLOWSCHED_HOSTFILE": "Gangs: the path of an MPI hostfile; launchers are left out",
    "FLOWSCHED_CLUSTER_FILE": "Gangs: the path of a JSON file with the host and port of each member, by role: the `cluster` of "
    "`TF_CONFIG`",
}
#: Variables that people set, which are neither an option of a command nor a setting for Kubernetes.
BESIDE_OPTIONS: Final[Mapping[str, str]] = {
    "FLOWSCHED_FAILPOINTS": "For tests: `POINT=kill`, `POINT=sleep:SECONDS` or `POINT=raise:TEXT`, each with `@N` for "
    "the Nth passage only, several with commas. The service then dies, waits or fails at a named point",
}
#: Variables that one process of flowsched sets for another. Users set none of them.
BETWEEN_PROCESSES: Final[Mapping[str, str]] = {
    "FLOWSCHED_ACCEPTED_FD": "supervisor → service: the pipe on which the service reports that its configuration is accepted",
    "FLOWSCHED_CREDENTIALS_FD": "supervisor → service: the file in memory that holds the secrets",
    "FLOWSCHED_AGENT": "service → steps of a pod: the URL of the node's agent; empty where there is none",
    "FLOWSCHED_ORDER": "service → steps of a pod: what to lay out and to publish",
    "FLOWSCHED_SIGNATURE": "service → steps of a pod: the signature of the order",
    "FLOWSCHED_CONTAINER": "service → steps of a pod: the files of a container task",
    "FLOWSCHED_STEP": "service → a step of a container task: where the step notes how it ended",
    "FLOWSCHED_INPUTS": "service → steps of a pod: where the inputs are mounted",
    "FLOWSCHED_WORK": "service → steps of a pod: where the working folder is mounted",
    "FLOWSCHED_SCHEMES": "steps of a pod without an agent: schemes of origins that they may read (`http,https,s3`)",
    "FLOWSCHED_NETWORKS": "steps of a pod without an agent: private ranges that HTTP origins may lie in, separated by spaces",
    "FLOWSCHED_MESSAGE_BYTES": "service → steps of a pod: how long a termination message may be",
    "FLOWSCHED_PATIENCE_S": "steps of a pod: seconds for which they ask an agent that does not answer",
    "FLOWSCHED_VALUE_NUMBER": "runner → the shell of an image: a value that no file of variables carries to a container engine",
    "FLOWSCHED_TERMINATION_LOG": "steps of a pod: the file of the termination message, if it is not the cluster's own",
}
#: Variables that tests and builds read (CONTRIBUTING.md).
OF_TESTS: Final = frozenset(
    f"{PREFIX}{name}"
    for name in (
        "REQUIRE_POSTGRES", "REQUIRE_KUBE", "REQUIRE_NODES", "REQUIRE_CLIENTS", "REQUIRE_IMAGES", "REQUIRE_BROWSER", "RERUN_FAILED",
        "SOAK", "KILLS", "CRASH_SEED", "FEASIBLE_PODS", "FEASIBLE_SEED", "FAULT_MUTANT", "RECORD", "PG_BIN", "CLIENTS",
        "TEST_IMAGES", "BROWSER", "BUILD_UI", "SPARK_PYTHON", "CROMWELL_JAR", "TEST_ENGINE", "TEST_TASK_IMAGE", "HOLLOW_CONTAINER",
        "WITHOUT", "RERUN_REPORTS",
    )
)  # fmt: skip
#: Names that end with one of the user's own: `FLOWSCHED_INPUT_READS`.
FAMILIES: Final = tuple(f"{PREFIX}{kind}_" for kind in ("INPUT", "OUTPUT", "HOSTS", "CONTENT", "VALUE"))
#: The variables that Kubernetes sets in each pod of a namespace for a Service with the name flowsched, or flowsched-….
_SERVICE_LINK: Final = re.compile(r"\w+_SERVICE_(HOST|PORT\w*)|\w+_PORT(_\d+_\w+)?")
_FIXED: Final = OF_TASKS.keys() | BESIDE_OPTIONS.keys() | BETWEEN_PROCESSES.keys() | OF_TESTS
#: How alike two names must be, without the prefix (`difflib`).
_ALIKE: Final = 0.7


def unclaimed(environment: Mapping[str, str]) -> list[str]:
    """Names of the form FLOWSCHED_… that no table here has. Variables of Kubernetes for a Service are left out."""
    return sorted(
        name
        for name, value in environment.items()
        if name.startswith(PREFIX)
        and name not in _FIXED
        and not name.startswith(FAMILIES)
        and not (_SERVICE_LINK.fullmatch(name) and _of_service(name, value))
    )


def _of_service(name: str, value: str) -> bool:
    return "_SERVICE_" in name or "://" in value or re.search(r"_PORT_\d+_", name) is not None


def warning(name: str, variables: Collection[str], options: Collection[str]) -> str:
    """The warning of a variable that flowsched does not know.

    Args:
        name: Its name.
        variables: The variables that users set.
        options: Long options of commands, such as `--port`.
    """
    settable = {each.removeprefix(PREFIX): each for each in [*variables, *BESIDE_OPTIONS]}
    near = difflib.get_close_matches(name.removeprefix(PREFIX), settable, 1, _ALIKE)
    option = f"--{name.removeprefix(PREFIX).lower().replace('_', '-')}"
    if option in options:
        hint = f"there is only the option {option}"
    elif near:
        hint = f"did you mean {settable[near[0]]}?"
    else:
        hint = "docs/reference/settings.md lists those that there are"
    return f"flowsched knows no variable {name}, and does not use it: {hint}"
