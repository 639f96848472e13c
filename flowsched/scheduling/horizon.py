"""How long nodes are busy, as a fluid: for decisions that look further than the ends of what runs now.

The calendar of `reservation` knows when present pods end, not what comes after them. Here a node's work is one amount of
core-milliseconds, of what runs and of what has been promised to it, spread over its cores.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from flowsched.scheduling.delay import Wait, without
from flowsched.scheduling.ledger import EMPTY
from flowsched.scheduling.placement import Ints
from flowsched.scheduling.plan import Reason, ReasonCode
from flowsched.scheduling.pricing import Fit
from flowsched.scheduling.reservation import expected_ends
from flowsched.scheduling.snapshot import AXES, ClaimKind, Snapshot

_CPU: Final = AXES.index("cpu")
#: Who has waited so many times longer than going elsewhere would cost does not wait any more.
_PATIENCE: Final = 20


class Horizon:
    """The work of each node in one cycle.

    Args:
        snapshot: Nodes and claims.
        default_runtime_ms: Of work of which nothing is known.
        now: Wall-clock ms.
    """

    def __init__(self, snapshot: Snapshot, default_runtime_ms: int, now: int) -> None:
        self.now = now
        ledger = snapshot.ledger
        held = np.flatnonzero((ledger.kind != EMPTY) & (ledger.kind != ClaimKind.STAGING))
        self.work = np.zeros(len(snapshot), dtype=np.int64)  #: milli-core ms
        self.cores: Ints = np.maximum(snapshot.allocatable[:, _CPU], 1)
        self.coming: dict[int, int] = {}  #: node -> bytes that this cycle's pods will bring home there
        if len(held):
            left = expected_ends(snapshot, held, default_runtime_ms, now) - now
            np.add.at(self.work, ledger.node[held], ledger.amount[held][:, _CPU] * left)

    def add(self, nodes: Ints, cpu: int, runtime_ms: int) -> None:
        """Pods will run there for so long."""
        np.add.at(self.work, nodes, cpu * runtime_ms)

    def wait_ms(self, node: int) -> int:
        """When a node will have done all its work, from now on."""
        return int(self.work[node] // self.cores[node])

    def at_home(self, fit: Fit, runtime_ms: int, nic_in: Ints, inbound: Ints) -> Wait | None:
        """Whether (some pods of) a bag should wait for the node where their outputs will be gathered.

        A pod that runs elsewhere has its output home when it has ended, what is on its way there before has come, and its own
        has come too; a pod that waits, when the node has done its work and the pod's. What is sooner is chosen, pod by pod.
        """
        group = fit.offer.group
        home = group.home
        if home is None or not fit.offer.tables[0].allowed[home.node]:
            return None
        nodes = fit.spots[0].nodes
        away = np.flatnonzero(nodes != home.node)
        cpu, rate = group.roles[0].shape.requests[_CPU], max(1, int(nic_in[home.node]))
        coming = self.coming.get(home.node, home.coming_bytes + int(inbound[home.node]))
        waited = self.now - group.ready_ms
        extra = len(nodes) - len(away)
        start = self.wait_ms(home.node) + extra * cpu * runtime_ms // int(self.cores[home.node])
        first, dearest, waiting = start, 0, 0
        for _ in range(len(away)):
            gone = max(runtime_ms, coming * 1000 // rate) + home.output_bytes * 1000 // rate
            if start + runtime_ms < gone and waited < _PATIENCE * gone:
                waiting += 1
                dearest = max(dearest, gone)
                start += cpu * runtime_ms // int(self.cores[home.node])
            else:
                coming += home.output_bytes
        self.coming[home.node] = coming
        if not waiting:
            return None
        self.work[home.node] += waiting * cpu * runtime_ms
        seconds = (first + 999) // 1000
        text = f"its output is gathered on a node that has room in about {seconds} s; elsewhere it would be there later"
        reason = Reason(
            group.key, ReasonCode.WAITING_FOR_LOCALITY, text, {"wait_ms": first, "copy_ms": dearest}, self.now + first
        )
        keep = without(fit, away[len(away) - waiting :])
        return Wait(reason, replace(fit.offer.wanting(1)), keep)
