"""The version of flowsched, as packages, the API, the CLI and recordings name it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

VERSION: Final = "0.1.0"
