"""A harness that catches nothing proves nothing: seeded faults, each of which the default budget must find."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.conftest import SEED
from tests.crash.harness import POINTS, Campaign, Nursery, Report
from tests.crash.mutants import ALL

#: mutant -> which lists of the report may tell of it. A pod that is left alone leaks, or still runs beside its successor:
#: whichever the kills bring out first.
CAUGHT = {
    "act_before_commit": ("broken",),
    "adopt_gives_up_what_runs": ("doubled",),
    "recovery_forgets_open_intents": ("lost",),
    "answer_before_commit": ("lost",),
    "keys_are_forgotten": ("doubled",),
    "released_pods_are_left_alone": ("leaked", "doubled"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", ALL)
async def test_a_seeded_fault_is_caught(
    tmp_path: Path, nursery: Nursery, mutant: str, tell: Callable[[str], None]
) -> None:
    """The same plan as for the real service tells of the promise that the mutant breaks."""
    campaign = Campaign(tmp_path, nursery, kills=len(POINTS) + 12, seed=SEED, mutant=mutant, still_s=10)
    report: Report = await campaign.run()
    told = [f"{which}: {line}" for which in CAUGHT[mutant] for line in getattr(report, which)]
    tell(f"mutant {mutant}: {report.kills.total()} kills, {(told or ['NOT CAUGHT'])[0][:90]}")
    assert told, report.faults
