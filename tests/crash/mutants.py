"""Seeded faults: each breaks one promise in the running service, and the harness must catch it within its default budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def act_before_commit() -> None:
    """Ask the executor first and write the intent down afterwards (P3, row 1)."""
    from flowsched.control.leading.dispatch import Dispatcher

    commit, act = Dispatcher._commit, Dispatcher._act

    async def acting(self: Any, result: Any) -> None:
        await act(self, result)
        await commit(self, result)

    async def nothing(self: Any, result: Any) -> None:
        return None

    Dispatcher._commit, Dispatcher._act = acting, nothing  # type: ignore[method-assign]


def adopt_gives_up_what_runs() -> None:
    """Call every adopted attempt without an end lost, although its runner lives: the next attempt runs beside it (P2)."""
    from flowsched.cluster.local.executor import LocalCluster
    from flowsched.executor.protocol import PodGone

    adopt = LocalCluster.adopt

    async def hasty(self: Any, pods: Any) -> None:
        self._runners.refresh()
        running = {life.name for life, _ in self._runners.unended()}
        for pod in pods:
            if pod.name in running:
                self._site.report(PodGone(pod.name, self._site.clock(), "RunnerLost", started=True))
        await adopt(self, [pod for pod in pods if pod.name not in running])

    LocalCluster.adopt = hasty  # type: ignore[method-assign]


def recovery_forgets_open_intents() -> None:
    """Do not ask what became of attempts whose end is not known (P1, rows 2 and 9)."""
    from flowsched.control.leading import leader
    from flowsched.values import replace

    recover = leader.recover

    async def forgetful(*given: Any) -> Any:
        return replace(await recover(*given), pods=[])

    leader.recover = forgetful  # type: ignore[attr-defined]


def answer_before_commit() -> None:
    """Answer a submission before it is durable (P1)."""
    import asyncio

    from flowsched.store.requests import Submitted
    from flowsched.store.writer import GroupWriter

    submit = GroupWriter.submit
    late: set[Any] = set()

    async def eager(self: Any, submission: Any) -> Submitted:
        async def write() -> None:
            await asyncio.sleep(0.3)
            await submit(self, submission)

        late.add(asyncio.ensure_future(write()))
        return Submitted(submission.id, True, 0)

    GroupWriter.submit = eager  # type: ignore[method-assign]


def keys_are_forgotten() -> None:
    """Take a submission that is sent again for a new one (row 6)."""
    from flowsched.store.writer import GroupWriter
    from flowsched.values import replace

    submit = GroupWriter.submit

    async def forgetful(self: Any, submission: Any) -> Any:
        return await submit(self, replace(submission, idempotency_key=None))

    GroupWriter.submit = forgetful  # type: ignore[method-assign]


def released_pods_are_left_alone() -> None:
    """Say of a released attempt that it is gone, and leave its processes (P5, P8)."""
    from flowsched.cluster.local.executor import LocalCluster
    from flowsched.executor.protocol import PodGone

    async def idle(self: Any, names: Any, grace_ms: int) -> None:
        for name in names:
            self._watch.lives.pop(name, None)
            self._site.report(PodGone(name, self._site.clock(), "Released", started=True))

    LocalCluster.release = idle  # type: ignore[method-assign]


ALL: dict[str, Callable[[], None]] = {
    mutant.__name__: mutant
    for mutant in (
        act_before_commit,
        adopt_gives_up_what_runs,
        recovery_forgets_open_intents,
        answer_before_commit,
        keys_are_forgotten,
        released_pods_are_left_alone,
    )
}
