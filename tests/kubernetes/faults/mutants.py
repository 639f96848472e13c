"""Seeded faults: each breaks a promise in how pods are made, bound and looked at, and the named tests must notice.

FLOWSCHED_FAULT_MUTANT=unasked pytest tests/kubernetes/faults/test_deposed.py
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

#: The mutant of a run of these tests.
ENVIRONMENT: Final = "FLOWSCHED_FAULT_MUTANT"


@dataclass(frozen=True, slots=True)
class Mutant:
    """A seeded fault.

    Args:
        seed: Changes the code of this process.
        caught_by: Tests (`-k` expression) of which at least one must fail.
    """

    seed: Callable[[], None]
    caught_by: str


def unasked() -> None:
    """A write goes out whether this process leads or not."""
    from flowsched.cluster.kubernetes import executor

    def client(connection: Any, *, may_write: object, in_flight: int) -> Any:
        return made(connection, in_flight=in_flight)

    made = executor.Client
    executor.Client = client  # type: ignore[misc, assignment]


def unread() -> None:
    """What the watch does not show was not launched."""
    from flowsched.cluster.kubernetes.pods.pod_api import PodApi

    async def read(self: PodApi, name: str, explain: object) -> None:
        return None

    PodApi.read = read  # type: ignore[assignment]


def ungated() -> None:
    """Another scheduler may place a pod as soon as it is there."""
    from flowsched.cluster.kubernetes.pods import manifest

    spec = manifest._spec

    def without(*arguments: Any) -> Any:
        return {key: value for key, value in spec(*arguments).items() if key != "schedulingGates"}

    manifest._spec = without


def unswept() -> None:
    """Objects of gangs are removed by the process that made them, or never."""
    from flowsched.cluster.kubernetes.pods.gang_objects import GangObjects

    async def sweep(self: GangObjects, living: object) -> None:
        return None

    GangObjects.sweep = sweep  # type: ignore[assignment]


def unbound() -> None:
    """A pod is made on its node: the create lets it run."""
    from flowsched.cluster.kubernetes.pods import manifest

    spec = manifest._spec

    def placed(pod: Any, *arguments: Any) -> Any:
        return {**spec(pod, *arguments), "nodeName": pod.node}

    manifest._spec = placed


ALL: Final[dict[str, Mutant]] = {
    "unasked": Mutant(unasked, "after_the_take_over or between_create_and_bind or nothing_beside_pods"),
    "unread": Mutant(unread, "does_not_show_yet"),
    "ungated": Mutant(ungated, "hand_over"),
    "unswept": Mutant(unswept, "swept or taken_away"),
    "unbound": Mutant(unbound, "lands_after_the_take_over_never_runs"),
}
