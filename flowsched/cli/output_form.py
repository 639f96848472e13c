"""The forms in which answers are printed; apart from `output` so that help needs no rich."""

from __future__ import annotations

from enum import StrEnum


class Form(StrEnum):
    """How answers are printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
