"""First come, first served, on the emptiest node; data are fetched to node disks from wherever they are."""

from __future__ import annotations

from bench.rivals.opponent import Opponent


class Blind(Opponent):
    """Node-local disks; the policy does not ask which node holds which data."""

    def decide(self) -> None:
        """In order of readiness, each on the node with most free cores; a task that does not fit holds up no other task."""
        free = self.world.free
        for task in list(self.ready):
            cores = self.job(task).whole_cores
            node = max(range(len(free)), key=lambda n: (free[n], -n))
            if free[node] < cores:
                continue
            files = self.missing(self.inputs(task), node)
            self.start(task, node, [(file[1], self.sources(file)[0]) for file in files])
