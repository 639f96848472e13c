"""The forms in which answers are printed. Apart from `output`, so that help needs neither rich nor msgspec."""

from __future__ import annotations

from enum import StrEnum


class Form(StrEnum):
    """How answers are printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
