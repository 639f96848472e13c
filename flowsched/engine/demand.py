"""What a task asks of disks where nobody said it: learned from others of its kind.

A task that computes for a while and moves bytes for the rest uses, on average, its bytes over both times together. Half of
that counts in the budget of a node's disk, as of bytes that were said: tasks read and write in bursts. What was learned of it
changes with every sample, shapes must not: amounts are rounded to three binary digits, so that a kind has few shapes in its
life and most look at the backlog meets the last.

Source: I/O-aware batch scheduling (Herbein et al. 2016): jobs are admitted by what they demand of shared bandwidth.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from flowsched.engine.state import EngineState
from flowsched.scheduling.explain import quantity
from flowsched.workflow.estimates import DISK
from flowsched.workflow.run import StageRun, WorkflowRun
from flowsched.workflow.spec import StageSpec, Traffic
from flowsched.workflow.trend import ENOUGH

#: What uses less than this part of a disk is not counted: it could not fill one with a hundred of its kind.
_SLIGHT: Final = 128
#: So many leading binary digits of an amount count.
_DIGITS: Final = 3
_PERCENT: Final = 100
#: Budgets of whole averages leave disks idle while tasks compute; 2 to 3 served best on mixed work (bench/budgets.py).
_BURSTS: Final = 2


class Demand(NamedTuple):
    """Of one pod.

    `rate`: bytes/s in the budget of its node's disk. `moved`: bytes it reads from it and writes to it.
    """

    rate: int
    moved: int


def learned_demand(
    state: EngineState, run: WorkflowRun, stage: StageRun, inputs: tuple[int, ...]
) -> Demand | None:
    """What a task of a stage that reads these datasets is taken to use of a disk.

    None where somebody said it, where too little is known (of gangs of several roles nothing is: samples do not say of which
    role they are), where no node states its disk's rate, and where it would be too little to count.
    """
    spec, profile = stage.spec, state.profile.of(run.spec.queue)
    fill = state.profile.io_fill_percent
    if not fill or not profile.contention or len(spec.roles) > 1 or spec.says_io:
        return None
    if state.mounted and not profile.locality:  # it reads and writes elsewhere
        return None
    kind = (run.spec.name, spec.name)
    moved, disk = state.estimates.trend(*kind, DISK), fastest_disk(state)
    if moved is None or moved.samples < ENOUGH or not disk:
        return None
    size = sum([state.catalogue.sizes[dataset] for dataset in inputs])
    cores = -(-spec.roles[0].resources.cpu_millicores // 1000)
    rate = state.estimates.io_rate(*kind, size, cores, disk)
    if rate is None or rate * _SLIGHT < disk:
        return None
    return Demand(rounded(rate * _PERCENT // (fill * _BURSTS)), rounded(moved.at(size)))


def demand_text(state: EngineState, run: WorkflowRun, stage: StageRun, inputs: tuple[int, ...]) -> str:
    """For people, to be added to what is said of its runtime; "" where nothing was learned that counts."""
    demand = learned_demand(state, run, stage, inputs)
    moved = state.estimates.trend(run.spec.name, stage.spec.name, DISK)
    if demand is None or moved is None:
        return ""
    return f"; {quantity('io', demand.rate)} are counted for it, learned from {moved.samples} that ended"


def fastest_disk(state: EngineState) -> int:
    """Bytes/s of the fastest disk of any node; 0 where none says. On a slower one a pod asks for all it has at the most."""
    cache = state.snapshot.cache
    if "fastest disk" not in cache:
        cache["fastest disk"] = int(state.snapshot.disk_rate.max(initial=0))
    found: int = cache["fastest disk"]
    return found


def rounded(amount: int) -> int:
    """To the nearest number of three binary digits: within a tenth."""
    shift = max(0, amount.bit_length() - _DIGITS)
    return (amount + (1 << shift >> 1)) >> shift << shift


def said_demand(stage: StageSpec, role: int) -> Demand:
    """What its document says of a pod of a role: of the role, else of its stage; 0 where it says nothing."""
    io = traffic_of(stage, role)
    return Demand(io_rate(io, stage.estimate.runtime_ms), io.read_bytes + io.write_bytes)


def traffic_of(stage: StageSpec, role: int) -> Traffic:
    """What a pod of a role is said to read and write: by its role, else by its stage."""
    own = stage.roles[role].io
    if own is not None:
        return own
    return Traffic(stage.io_read_bytes, stage.io_write_bytes, stage.io_read_rate, stage.io_write_rate)


def io_rate(io: Traffic, expected_ms: int | None) -> int:
    """Bytes/s of disk one pod is expected to use: what the user said, else half of its bytes over its runtime: tasks read and
    write in bursts, and disks idle where they are filled to the brim by averages.
    """
    if io.read_rate or io.write_rate:
        return io.read_rate + io.write_rate
    total = io.read_bytes + io.write_bytes
    return total * 1000 // (2 * expected_ms) if total and expected_ms else 0
