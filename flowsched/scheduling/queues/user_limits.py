"""Limits on all tasks of one user of a queue together: cores and tasks, as the profile of the queue declares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from flowsched.scheduling.plan import Reason, ReasonCode
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.ordering import minimum_of
from flowsched.scheduling.state.claims import ClaimKind
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.scheduling.state.usage import Payer

_HOLDING = (ClaimKind.RUNNING, ClaimKind.RELEASING)


class UserLimits:
    """The limits of users in one cycle, and each user's usage with the placements. Without limits nothing is counted."""

    def __init__(self, profile: Profile, snapshot: Snapshot) -> None:
        self._profile, self._snapshot = profile, snapshot
        every = (profile, *profile.queues.values())
        self._exist = any(each.max_cores_per_user or each.max_tasks_per_user for each in every)
        self._more: Counter[tuple[Payer, str]] = Counter()
        self._running: Counter[Payer] | None = None

    def bind(self, queue: str) -> bool:
        """Whether users of a queue have a limit."""
        own = self._profile.of(queue)
        return self._exist and bool(own.max_cores_per_user or own.max_tasks_per_user)

    def allowed(self, group: PodGroup, most: int) -> int:
        """How many pods of a bag its user may have more: 0..most."""
        asked = _asked(group.roles[0].shape.requests[0], 1)
        for what, (limit, used) in self._limits(group).items():
            most = min(most, max(0, limit - used) // asked[what]) if asked[what] else most
        return most

    def refusal(self, group: PodGroup) -> Reason | None:
        """The limit that forbids the smallest start of a group; None = none does."""
        if not self.bind(group.queue):
            return None
        least = minimum_of(group, len(self._snapshot.axes))
        asked = _asked(least[0], sum(role.minimum for role in group.roles) if group.gang else 1)
        for what, (limit, used) in self._limits(group).items():
            if used + asked[what] <= limit:
                continue
            field = f"max_{what}_per_user"
            numbers = {f"limit_{what}": limit, f"used_{what}": used, f"need_{what}": asked[what]}
            who = f"user {group.user}" if group.user else "work without a user"
            text = f"{who} may have {_amount_text(what, limit)} in queue {group.queue} ({field} of the profile); "
            if asked[what] > limit:
                text += f"this needs {_amount_text(what, asked[what])}"
                return Reason(group.key, ReasonCode.LARGER_THAN_QUEUE, text, numbers)
            text += f"it has {_amount_text(what, used)}, and this needs {_amount_text(what, asked[what])}"
            return Reason(group.key, ReasonCode.USER_LIMIT, text, numbers)
        return None

    def allows(self, group: PodGroup, millicores: int, pods: int) -> bool:
        """Whether a user may have so many pods more, of so many milli-CPU in all."""
        asked = _asked(millicores, pods)
        return all(used + asked[what] <= limit for what, (limit, used) in self._limits(group).items())

    def charge(self, group: PodGroup, millicores: int, pods: int) -> None:
        """The cycle gives a user so many pods, of so many milli-CPU in all."""
        if self._exist:
            for what, amount in _asked(millicores, pods).items():
                self._more[Payer(group.queue, group.user), what] += amount

    def _limits(self, group: PodGroup) -> Mapping[str, tuple[int, int]]:
        """By limit: how much the group's user may have, and how much it has."""
        if not self._exist:
            return {}
        own, payer = self._profile.of(group.queue), Payer(group.queue, group.user)
        found = {}
        if own.max_cores_per_user:
            booked = self._snapshot.usage.of_payer(payer)
            used = (booked[0] if booked else 0) + self._more[payer, "cores"]
            found["cores"] = own.max_cores_per_user * 1000, used
        if own.max_tasks_per_user:
            if self._running is None:
                claims = self._snapshot.claims.values()
                self._running = Counter(Payer(c.queue, c.user) for c in claims if c.kind in _HOLDING)
            found["tasks"] = own.max_tasks_per_user, self._running[payer] + self._more[payer, "tasks"]
        return found


def _asked(millicores: int, pods: int) -> dict[str, int]:
    return {"cores": millicores, "tasks": pods}


def _amount_text(what: str, amount: int) -> str:
    if what == "cores":
        whole, rest = divmod(amount, 1000)
        return f"{whole}" + (f".{rest:03d}".rstrip("0") if rest else "") + " CPU"
    return f"{amount:,} running task{'' if amount == 1 else 's'}"
