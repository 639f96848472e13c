"""Where recordings of real clients are, if they are there: in `shared` beside the checkout, or beside its worktrees' folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_PLACES = [folder / "shared" / "recordings" for folder in (_ROOT.parent, _ROOT.parent.parent)]
RECORDINGS = next((place for place in _PLACES if place.is_dir()), _PLACES[0])


def requests_of(name: str) -> list[dict[str, Any]]:
    """The lines of a recording; a test that needs one that is not there is skipped."""
    path = RECORDINGS / name
    if not path.is_file():
        pytest.skip(f"no {name}: the recordings are not beside this checkout")
    return [json.loads(line) for line in path.read_text().splitlines()]
