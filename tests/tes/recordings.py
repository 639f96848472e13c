"""Where recordings of real clients are, if they are there: in `shared` beside the checkout, or beside its worktrees' folder."""

from __future__ import annotations

from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PLACES = [folder / "shared" / "recordings" for folder in (_ROOT.parent, _ROOT.parent.parent)]
RECORDINGS = next((place for place in _PLACES if place.is_dir()), _PLACES[0])
