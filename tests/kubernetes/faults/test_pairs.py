"""Every two of eight faults at once, while 40 gangs and 200 tasks run: 0 lost, 0 doubled, 0 stuck, 0 objects left.

`make test` has four of the pairs, and fewer gangs and tasks.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from tests.crash.harness import Nursery
from tests.kubernetes.conftest import require
from tests.kubernetes.conftest import running as started
from tests.kubernetes.definitions import apply_crds
from tests.kubernetes.faults import mutants
from tests.kubernetes.faults.pairs import FAULTS, STUCK_S, Installation, Load, Outcome, strike
from tests.kubernetes.faults.services import nursing
from tests.kubernetes.hollow.controlplane import CONTROLLER_MANAGER, ControlPlane
from tests.postgres import Server, start_or_skip
from tests.soak import SOAK

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.postgresql,
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(900),
]

#: In `make test`: each fault once.
FEW = [("killed", "api"), ("quota", "rights"), ("stopped", "database"), ("node", "clock")]
PAIRS = list(itertools.combinations(FAULTS, 2)) if SOAK else FEW
#: Mutant -> the pair that brings it out.
CAUGHT = {"recovery_forgets_open_intents": ("killed", "node"), "unswept": ("killed", "rights")}
SEED = int(os.environ.get("FLOWSCHED_CRASH_SEED", "1"))


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane for these tests alone, whose controller manager counts quotas."""
    require(CONTROLLER_MANAGER)
    plane = started(ControlPlane())
    yield plane
    plane.stop()


@pytest.fixture(scope="module")
def database() -> Iterator[Server]:
    """A server for these tests alone: they kill and stop it."""
    server = start_or_skip()
    yield server
    server.remove()


@pytest.fixture
async def nursery() -> AsyncIterator[Nursery]:
    async with nursing() as nursery:
        yield nursery


class Ground:
    """Where pairs strike, one after the other."""

    def __init__(self, plane: ControlPlane, database: Server, nursery: Nursery, folder: Path) -> None:
        self.plane, self.database, self.nursery, self.folder = plane, database, nursery, folder

    async def strike(
        self, names: tuple[str, str], load: Load, stuck_s: float = STUCK_S, seed: int = SEED
    ) -> Outcome:
        """Have an installation, and let two faults hit it."""
        if CONTROLLER_MANAGER not in self.plane.programs:
            await self.plane.controller_manager(("resourcequota-controller",))
        rng = random.Random(f"{names} {seed}")
        space = f"pair-{'-'.join(names)}-{secrets.token_hex(2)}"
        folder = self.folder / space
        folder.mkdir()
        given = (self.plane, self.database, self.nursery, folder, space, rng)
        async with Installation(*given, short=not SOAK) as world:
            await apply_crds(world.talk.client)
            outcome = await strike(world, names, load, rng, stuck_s=stuck_s)
            if not outcome.good:
                outcome.words += [each.service.tail() for each in world.replicas]
            return outcome


@pytest.fixture
def ground(plane: ControlPlane, database: Server, nursery: Nursery, tmp_path: Path) -> Ground:
    return Ground(plane, database, nursery, tmp_path)


@pytest.mark.parametrize("names", PAIRS, ids="+".join)
async def test_two_faults_at_once(
    names: tuple[str, str], ground: Ground, tell: Callable[[str], None]
) -> None:
    """All work succeeds, none of it twice at a time, and nothing is left of it. The seed is FLOWSCHED_CRASH_SEED."""
    outcome = await ground.strike(names, Load(20 if SOAK else 4))
    tell(f"{outcome.HEAD}\n{outcome.line()}")
    assert outcome.good, "\n".join([outcome.line(), *outcome.words])


@pytest.mark.skipif(not SOAK, reason="a harness that catches nothing proves nothing: make soak")
@pytest.mark.parametrize("mutant", CAUGHT)
async def test_a_seeded_fault_is_caught(mutant: str, ground: Ground, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness tells of the promise that the service breaks, at one of three moments: not each brings the fault out."""
    monkeypatch.setenv(mutants.ENVIRONMENT, mutant)
    for seed in range(SEED, SEED + 3):
        outcome = await ground.strike(CAUGHT[mutant], Load(6), stuck_s=30, seed=seed)
        if not outcome.good:
            return
    pytest.fail(f"{mutant} was not noticed")
