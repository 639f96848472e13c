"""The version of flowsched, as packages, the API, the CLI and recordings name it."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
