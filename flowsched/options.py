"""How a field of settings is given on the command line. `cli.options` makes a command's options from the fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Option:
    """The annotation of a field.

    Args:
        help: The field's meaning; `--help` and docs/reference/cli.md show it.
        flag: The option's name; "" = the field's own.
        variable: The variables of the environment that stand for the option, the first that is set; "" = none.
        metavar: The word for its value.
        least, most: Bounds of a number.
        repeated: The option may be given several times; the field is a tuple.
        parse: Makes the field's value, or one of its values, from a text. It raises ValueError with what is wrong.
    """

    help: str
    flag: str = ""
    variable: str = ""
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    repeated: bool = False
    parse: Callable[[str], Any] | None = None
