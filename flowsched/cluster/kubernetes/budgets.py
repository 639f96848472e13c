"""Disruption budgets: which pods they cover, and how many of those may go now. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from flowsched.cluster.kubernetes.metadata import LabelSelector, Metadata, Read, selects
from flowsched.cluster.kubernetes.watch import Batch
from flowsched.executor.foreign import BudgetSeen
from flowsched.executor.protocol import ClusterEvent

PATH = "/apis/policy/v1/poddisruptionbudgets"


class BudgetSpec(Read, frozen=True):
    """Which pods it covers."""

    selector: LabelSelector | None = None


class BudgetStatus(Read, frozen=True):
    """How many of them may go, by its controller."""

    disruptions_allowed: int = 0
    observed_generation: int = 0


class PodDisruptionBudget(Read, frozen=True):
    """A disruption budget."""

    metadata: Metadata = Metadata()
    spec: BudgetSpec = BudgetSpec()
    status: BudgetStatus = BudgetStatus()


@dataclass(frozen=True, slots=True)
class _Budget:
    selector: LabelSelector | None
    allowed: int


class Budgets:
    """All of them.

    Args:
        report: Takes events.
    """

    def __init__(self, report: Callable[[ClusterEvent], None]) -> None:
        self._report = report
        self._of: dict[str, dict[str, _Budget]] = {}  #: namespace -> name -> budget

    def everything(self) -> Iterator[ClusterEvent]:
        """What was told, once more."""
        for namespace, budgets in self._of.items():
            for name, budget in budgets.items():
                yield BudgetSeen(f"{namespace}/{name}", budget.allowed)

    def covering(self, namespace: str, labels: Mapping[str, str]) -> tuple[str, ...]:
        """Names of those that cover a pod, sorted."""
        budgets = self._of.get(namespace)
        if not budgets:
            return ()
        found = (name for name, budget in budgets.items() if selects(budget.selector, labels))
        return tuple(f"{namespace}/{name}" for name in sorted(found))

    def changed(self, batch: Batch[PodDisruptionBudget]) -> set[str]:
        """Budgets came, changed or went. Returns the namespaces in which others are covered now."""
        touched = set()
        if batch.replaced is not None:
            here = {(each.metadata.namespace, each.metadata.name) for each in batch.replaced}
            known = [(space, name) for space, budgets in self._of.items() for name in budgets]
            touched |= {
                space for space, name in known if (space, name) not in here and self._gone(space, name)
            }
        for change, each in (*(("ADDED", one) for one in batch.replaced or ()), *batch.changed):
            meta = each.metadata
            if change == "DELETED":
                other = self._gone(meta.namespace, meta.name)
            else:
                other = self._seen(each)
            if other:
                touched.add(meta.namespace)
        return touched

    def _seen(self, each: PodDisruptionBudget) -> bool:
        meta, status = each.metadata, each.status
        # One that its controller has not looked at yet allows nothing: the server says so too.
        allowed = status.disruptions_allowed if status.observed_generation >= meta.generation else 0
        budgets = self._of.setdefault(meta.namespace, {})
        known = budgets.get(meta.name)
        budgets[meta.name] = _Budget(each.spec.selector, allowed)
        if known is None or known.allowed != allowed:
            self._report(BudgetSeen(f"{meta.namespace}/{meta.name}", allowed))
        return known is None or known.selector != each.spec.selector

    def _gone(self, namespace: str, name: str) -> bool:
        budgets = self._of.get(namespace, {})
        if budgets.pop(name, None) is None:
            return False
        if not budgets:
            del self._of[namespace]
        self._report(BudgetSeen(f"{namespace}/{name}", None))
        return True
