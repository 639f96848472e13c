"""Statement lives at the bottom of the house, since runs need it too."""

from __future__ import annotations

from flowsched.statement import Statement

__all__ = ["Statement"]
