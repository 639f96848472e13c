"""Fair share: which queue and which of its users are served next, by a tournament over the queue tree.

At every level the first competitor that still has waiting groups wins (a tie goes to the lower name):

1. the one below its guarantee in what its next pod asks for, or with a queue below it that is; and one that waiting (2) has
   lifted above all priorities beside it;
2. the one of higher priority, one more for each `promote_ms` in which it asked and got nothing (`user_priority`: that of a user);
3. the one with the lowest weighted dominant share of what it has now and has had of late (`usage`).

Preemption takes room by the same keys in the same order. Otherwise a group that was served first would be taken away at once.

The dominant share of a queue without queues below it, and of a user, is Ghodsi's (2011): the largest share of any resource. For
a department, a queue with queues below it, that measure fails: one team's GPUs would keep another team's CPU pods waiting
behind all others for ever (Bhattacharya et al. 2013). Their cure is to scale each child's use down to that of the child that
was served least before adding up. With whole pods that goes wrong: of ten teams nine with a pod each count as nothing until the
tenth has one, so a department gets ten pods in a row; and any newcomer wipes out what its department has. Here a department is
measured on one resource, the one of which its next pod takes the largest share, and there everything it has counts. Its teams'
use of other resources does not stand in the way of that pod; on the resource that is wanted, departments get what their weights
say, to within one pod.

Users stand below their queue, weight one each, without a guarantee. Workflows that name no user count as one user. In a queue
of order "fifo" one user queue holds the groups of all users. Users of a department stand beside its queues, which know no
priority of documents: those users all have priority 0.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Final

from flowsched.scheduling.plan import Alike, Reason, ReasonCode
from flowsched.scheduling.pod_group import PodGroup
from flowsched.scheduling.policy.framework import Profile
from flowsched.scheduling.queues.ordering import minimum_of
from flowsched.scheduling.queues.tree import BILLION, QueueTree, Shares, largest_share
from flowsched.scheduling.state.usage import Payer, UsageBook

#: A group with one of these reasons waits until the cluster, its queue or a quota is changed, or other tasks of its user end. So
#: it holds up no other group.
_FOR_EVER: Final = frozenset(
    (
        ReasonCode.PAUSED,
        ReasonCode.NO_MATCHING_NODE,
        ReasonCode.LARGER_THAN_NODE,
        ReasonCode.LARGER_THAN_CLUSTER,
        ReasonCode.LARGER_THAN_QUEUE,
        ReasonCode.LARGER_THAN_QUOTA,
        ReasonCode.USER_LIMIT,
        ReasonCode.BACKLOG_WINDOW,
    )
)


class UserQueue:
    """Groups of one user in one queue (or of all its users), in their order.

    Attributes:
        queue: Name of the queue.
        groups: In the order in which the cycle considers them.
        at: How many of them are done with in this cycle.
        strict: Whether no group may pass the head.
        behind: The group that the remaining groups wait behind; None = they wait behind no group.
        node: Its competitor in the tournament; `FairShareOrder` sets it.
    """

    __slots__ = ("_highest", "at", "behind", "groups", "node", "queue", "strict")

    def __init__(self, queue: str, groups: Sequence[PodGroup], strict: bool) -> None:
        self.queue, self.groups, self.strict, self.at = queue, groups, strict, 0
        self._highest: Sequence[int] = ()
        self.behind: PodGroup | None = None
        self.node: _Node

    @property
    def head(self) -> PodGroup:
        """The group that is considered next."""
        return self.groups[self.at]

    def priority(self, aged: int) -> int:
        """The priority of the user whose groups these are: see `user_priority`."""
        self._highest = self._highest or highest_behind(self.groups)
        return user_priority(self.head, self._highest[self.at], aged)

    @property
    def left(self) -> Sequence[PodGroup]:
        """The groups that have not been considered."""
        return self.groups[self.at :]

    def block_behind(self, reasons: Sequence[Reason | Alike]) -> None:
        """No group passes the group considered last if that one waits (its reason is the last of `reasons`), and not for ever."""
        group, last = self.groups[self.at - 1], reasons[-1] if reasons else None
        waits = isinstance(last, Reason) and last.group == group.key and last.code not in _FOR_EVER
        if waits and not group.extra:
            self.behind = group

    def passed_over(self, text: str) -> list[Alike]:
        """Why the remaining groups were not considered: `text`, unless they wait behind a group."""
        left = self.left
        if not left:
            return []
        numbers: dict[str, int] = {}
        code, why = ReasonCode.BACKLOG_WINDOW, text
        if self.behind is not None:
            code, numbers = ReasonCode.QUEUE_ORDER, {"behind": self.behind.key}
            why = f"queue {self.queue} is first in, first out, and {self.behind.name} is before it"
        return [Alike(Reason(left[0].key, code, why, numbers), left)]


# ---- the tournament ----


def highest_behind(groups: Sequence[PodGroup]) -> list[int]:
    """(G,) the highest priority that each group, or one behind it in its user queue, declares."""
    return list(accumulate([group.priority for group in reversed(groups)], max))[::-1]


def user_priority(head: PodGroup, highest: int, aged: int) -> int:
    """The priority of a user beside the others of its queue.

    A group that waiting has put before one of higher priority counts as that one does. Otherwise a group of another user would
    start between the two, and the second would take its room.

    Args:
        head: The user's next group.
        highest: The highest priority that it, or a group behind it, declares.
        aged: Steps for which the user has got nothing.
    """
    return max(highest, head.priority + aged)


#: When a competitor was last given something, wall-clock ms, and its name: of equal ones the one that has waited longer is first.
Rank = tuple[int, str]
#: At one level: (0 below a guarantee or lifted above all, else 1; -priority; weighted share in billionths; rank).
LevelKey = tuple[int, int, int, Rank]


class _Node:
    """One competitor: a queue, or a user of one.

    Attributes:
        aged: Steps of priority for having got nothing.
        owed: It is below its guarantee in what its next pod asks for, or a queue below it is.
    """

    __slots__ = (
        "aged",
        "department",
        "guarantee",
        "heap",
        "key",
        "name",
        "owed",
        "parent",
        "past",
        "priority",
        "rank",
        "used",
        "user_queue",
        "weight",
    )

    def __init__(
        self, name: str, parent: _Node | None, used: list[int], past: Sequence[int], served_ms: int = 0
    ) -> None:
        self.name, self.parent, self.used, self.past = name, parent, used, past
        self.rank: Rank = (served_ms, name)
        self.heap: list[tuple[LevelKey, int, _Node]] = []
        self.key: LevelKey | None = None  #: where it stands beside its siblings; None = it asks for nothing
        self.user_queue: UserQueue | None = None
        self.weight, self.aged = 1, 0
        self.priority: int | None = 0  #: None = it is a user's: that of its user queue
        self.guarantee: Sequence[int] = ()
        self.department = self.owed = False

    def best(self) -> _Node | None:
        """The first of its children; entries that have moved since they were put into the heap are dropped on the way."""
        heap = self.heap
        while heap:
            key, _, child = heap[0]
            if child.key is key:
                return child
            heapq.heappop(heap)
        return None


def _priority(node: _Node, user_queue: UserQueue, aged: int) -> int:
    """The priority of a competitor, `aged` steps of waiting included."""
    return user_queue.priority(aged) if node.priority is None else node.priority + aged


class FairShareOrder:
    """The tournament of one cycle. Its caller asks it for the next user queue, reports the outcome, and owns the shares."""

    def __init__(
        self,
        waiting: Mapping[str, Sequence[PodGroup]],
        oldest: Mapping[Payer, int],
        tree: QueueTree,
        shares: Shares,
        usage: UsageBook,
        profile: Profile,
        now: int,
    ) -> None:
        self._tree, self._shares, self._usage, self._now = tree, shares, usage, now
        self._total, self._promote_ms = shares.total, profile.promote_ms
        self._oldest: dict[str, dict[str, int]] = {}  #: by queue and user
        for payer, ready_ms in oldest.items():
            self._oldest.setdefault(payer.queue, {})[payer.user] = ready_ms
        self._root = _Node("", None, [], ())
        self._nodes: dict[str, _Node] = {}
        self._serial = 0
        self._axes: dict[Sequence[int], int] = {}
        self._live = [(axis, total) for axis, total in enumerate(self._total) if total > 0]
        self._current: UserQueue | None = None
        self._highest: dict[str | None, int] = {}  #: by queue, the highest priority below it
        self._picky = tree.nested or tree.guarantees  #: whether the keys depend on what a pod asks for
        self.user_queues: list[UserQueue] = []
        for name, groups in waiting.items():
            self._enter(name, groups)
        for user_queue in self.user_queues:
            self._refresh(user_queue.node)

    # ---- the tree ----

    def _enter(self, name: str, groups: Sequence[PodGroup]) -> None:
        node = self._node(name)
        strict = self._tree.get(name).order == "fifo"
        alone = strict or len(self._oldest[name]) == 1
        if alone and not node.department:
            self._add(node, UserQueue(name, groups, strict))
            return
        by_user: dict[str, list[PodGroup]] = {}
        for group in () if strict else groups:
            by_user.setdefault(group.user, []).append(group)
        for user in sorted(by_user) or [""]:
            payer = Payer(name, user)
            served_ms = self._usage.served_users.get(payer, 0)
            child = _Node(
                user, node, self._shares.of_user(payer), self._shares.past_of_user(payer), served_ms
            )
            child.priority = 0 if node.department else None
            self._add(child, UserQueue(name, by_user.get(user, groups), strict), payer)

    def _add(self, node: _Node, user_queue: UserQueue, payer: Payer | None = None) -> None:
        """Add a user queue, and make all above it older."""
        node.user_queue, user_queue.node = user_queue, node
        self.user_queues.append(user_queue)
        by_user = self._oldest[user_queue.queue]
        oldest = min(by_user.values()) if payer is None or user_queue.strict else by_user[payer.user]
        if self._now - oldest < self._promote_ms:
            return
        above: _Node | None = node
        if payer is not None:
            node.aged = self._steps(max(oldest, self._usage.served_users.get(payer, 0)))
            above = node.parent
        while above is not None and above is not self._root:
            steps = self._steps(max(oldest, self._usage.served_queues.get(above.name, 0)))
            above.aged = max(above.aged, steps)
            above = above.parent

    def _steps(self, since: int) -> int:
        return max(0, self._now - since) // self._promote_ms

    def _node(self, name: str) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            queue = self._tree.get(name)
            parent = self._root if queue.parent is None else self._node(queue.parent)
            served_ms = self._usage.served_queues.get(name, 0)
            node = _Node(name, parent, self._shares.usage(name), self._shares.past(name), served_ms)
            node.weight, node.priority = queue.weight, queue.priority
            node.guarantee = queue.guarantee or ()
            node.department = self._tree.nested and bool(self._tree.below(name))
            self._nodes[name] = node
        return node

    # ---- the keys of the competitors ----

    def _refresh(self, node: _Node) -> None:
        """Put a competitor and all above it where they stand now."""
        root, above = self._root, node
        while above is not root:
            child = above.best() if above.user_queue is None else None
            user_queue = above.user_queue if child is None else self._user_queue_of(child)
            parent = above.parent or root
            if user_queue is None or user_queue.at >= len(user_queue.groups):
                above.key = None
            else:
                above.owed = self._is_owed(above, user_queue, child is not None and child.owed)
                above.key = self._level(above, user_queue, above.owed)
                self._serial += 1
                heapq.heappush(parent.heap, (above.key, self._serial, above))
            above = parent

    @staticmethod
    def _user_queue_of(node: _Node) -> UserQueue | None:
        while node.user_queue is None:
            child = node.best()
            if child is None:
                return None
            node = child
        return node.user_queue

    def _is_owed(
        self, node: _Node, user_queue: UserQueue, below: bool, more: Sequence[int] = (), times: int = 0
    ) -> bool:
        """Whether a competitor that had `times` `more` would be below its guarantee, or one below it (`below`)."""
        return below or (bool(node.guarantee) and self._below(node, self._asked(user_queue), more, times))

    def _level(
        self, node: _Node, user_queue: UserQueue, owed: bool, more: Sequence[int] = (), times: int = 0
    ) -> LevelKey:
        """The key of a competitor if it had `times` `more` than it has. Its next group is the user queue's head."""
        priority = _priority(node, user_queue, 0 if times else node.aged)
        if not self._picky:
            return 1, -priority, self._dominant(node, more, times), node.rank
        sated = 0 if owed or (not times and self._tops(node, priority)) else 1
        if not node.department:
            return sated, -priority, self._dominant(node, more, times), node.rank
        axis = self._largest(self._asked(user_queue))
        have = node.used[axis] + (node.past[axis] if node.past else 0)
        have += times * (more[axis] if axis < len(more) else 0)
        total = self._total[axis] * node.weight
        return sated, -priority, have * BILLION // total if total > 0 else 0, node.rank

    def _tops(self, node: _Node, priority: int) -> bool:
        """Whether waiting has lifted a competitor above every priority beside it. Then guarantees do not hold it off either."""
        if not node.aged or node.priority is None or not self._tree.guarantees:  # users have no guarantees
            return False
        above = None if node.parent is None else node.parent.name or None
        known = self._highest.get(above)
        if known is None:
            beside = [self._tree.get(name).priority for name in self._tree.below(above)]
            known = self._highest[above] = max(beside, default=0)
        return priority > max(known, 0)

    def _dominant(self, node: _Node, more: Sequence[int], times: int) -> int:
        """Its weighted dominant share in billionths."""
        share, used, past = 0, node.used, node.past
        for axis, total in self._live:
            have = used[axis]
            if past:
                have += past[axis]
            if times and axis < len(more):
                have += times * more[axis]
            if have > 0:
                part = have * BILLION // total
                if part > share:
                    share = part
        return share // node.weight

    @staticmethod
    def _below(node: _Node, asked: Sequence[int], more: Sequence[int], times: int) -> bool:
        """Whether it has less than its guarantee of everything that is guaranteed and asked for."""
        some = False
        for axis, (floor, need) in enumerate(zip(node.guarantee, asked, strict=False)):
            if floor > 0 and need > 0:
                have = node.used[axis] + (times * more[axis] if axis < len(more) else 0)
                if have >= floor:
                    return False
                some = True
        return some

    def _asked(self, user_queue: UserQueue) -> Sequence[int]:
        """(R,) what the user queue's head needs to start."""
        group = user_queue.head
        if group.gang:
            return minimum_of(group, len(self._total))
        return group.roles[0].shape.requests

    def _largest(self, asked: Sequence[int]) -> int:
        """The axis of which a request takes the largest share."""
        known = self._axes.get(asked)
        if known is None:
            known = self._axes[asked] = largest_share(asked, self._total)
        return known

    # ---- batches ----

    def first(self) -> UserQueue | None:
        """The user queue that is served next; None when none asks any more."""
        child = self._root.best()
        user_queue = None if child is None else child.user_queue or self._user_queue_of(child)
        self._current = user_queue
        return user_queue

    def batch_size(
        self, amount: Sequence[int], most: int, placed: int, spent: int, spare: Callable[[], int]
    ) -> int:
        """How many pods the first user queue gets now: 1..most.

        The batches of a long bag grow (to an eighth of what it has got), so that there are few of them; but only as long
        as the room that is left would let the other user queues catch up twice.

        Args:
            amount: (R,) what one pod asks for.
            most: No more than so many.
            placed: How many of the bag were placed in this cycle.
            spent: How many pods were placed in it in all, those included.
            spare: How many pods more there may be room for.
        """
        pods = self.pods_until_behind(amount, most)
        if pods < min(most, placed // 8):
            pods = max(pods, min(placed // 8, spare() * placed // (2 * spent)))
        return min(most, pods)

    def pods_until_behind(self, amount: Sequence[int], most: int) -> int:
        """How many pods of `amount` the first user queue gets until it stands behind a rival at some level: 1..most."""
        user_queue = self._current
        if user_queue is None:
            return most
        rivals = self._rivals(user_queue)
        if not any(rivals):
            return most
        low, high = 1, 1
        while high < most and not self._behind(user_queue, amount, rivals, high):
            low, high = high + 1, min(2 * high, most)
        while low < high:
            middle = (low + high) // 2
            if self._behind(user_queue, amount, rivals, middle):
                high = middle
            else:
                low = middle + 1
        return low

    def _rivals(self, user_queue: UserQueue) -> list[LevelKey | None]:
        """The key of the best rival at each level, from the first user queue's level upwards; None = it has no rival there.

        The user queue and all competitors above it have no key afterwards, until `moved` reports the outcome.
        """
        found: list[LevelKey | None] = []
        node: _Node | None = user_queue.node
        while node is not None and node is not self._root:
            node.key = None
            other = (node.parent or self._root).best()
            found.append(None if other is None else other.key)
            node = node.parent
        return found

    def _behind(
        self, user_queue: UserQueue, amount: Sequence[int], rivals: Sequence[LevelKey | None], times: int
    ) -> bool:
        node, owed = user_queue.node, False
        for rival in rivals:
            owed = self._is_owed(node, user_queue, owed, amount, times)
            key = self._level(node, user_queue, owed, amount, times)
            if rival is not None and key > rival:
                return True
            node = node.parent or self._root
        return False

    def moved(
        self, user_queue: UserQueue, done: bool, served: bool, reasons: Sequence[Reason | Alike]
    ) -> None:
        """The head of the user queue was considered.

        Args:
            user_queue: The user queue that was first.
            done: The head is done with for this cycle.
            served: The head got something. The user queue and the queues above it lose the priority that they gained by waiting.
            reasons: Why groups were refused, the head last.
        """
        node: _Node | None = user_queue.node
        while served and node is not None:
            node.aged = 0
            node = node.parent
        if done:
            user_queue.at += 1
            if user_queue.strict:
                user_queue.block_behind(reasons)
        if user_queue.at < len(user_queue.groups) and user_queue.behind is None:
            # Its key is the same if its usage is the same, and its next group cannot change it.
            if served or user_queue.node.key is None or self._picky or user_queue.node.priority is None:
                self._refresh(user_queue.node)
        else:
            self.leave(user_queue)

    def pass_by(
        self, user_queue: UserQueue, refusals: Callable[[UserQueue], Sequence[Alike]]
    ) -> Sequence[Alike]:
        """Pass by the groups behind a refused one as long as the refusal of each is known. Returns the refusals.

        `refusals`: of the next groups of a user queue, up to the first that may find room.
        """
        if user_queue.strict or user_queue.node.user_queue is None:
            return ()  # each group may be the one that the others wait behind; or it has left
        refused = refusals(user_queue)
        if not refused:
            return ()
        user_queue.at += sum([len(alike.groups) for alike in refused])
        if user_queue.at < len(user_queue.groups):
            self._refresh(user_queue.node)
        else:
            self.leave(user_queue)
        return refused

    def leave(self, user_queue: UserQueue) -> None:
        """The user queue asks for nothing more in this cycle. Its remaining groups stay in `user_queue.left`."""
        node = user_queue.node
        node.key = None
        node.user_queue = None
        if node.parent is not None and node.parent is not self._root:
            self._refresh(node.parent)

    def passed_over(self, text: str) -> list[Alike]:
        """Why the cycle did not consider the remaining groups, by queue: `text`, unless the queue's order is the reason."""
        return [alike for user_queue in self.user_queues for alike in user_queue.passed_over(text)]
