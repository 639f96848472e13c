"""YAML text as plain values, or one clear refusal. JSON is YAML too. PyYAML is loaded when something is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from flowsched.errors import InvalidRequest, TooLarge

#: A configuration that is longer is none.
LONGEST_BYTES: Final = 1 << 20


def read_yaml(raw: bytes, longest: int = LONGEST_BYTES) -> object:
    """Parse YAML strictly.

    Args:
        raw: The document.
        longest: Bytes that are read at most.

    Raises:
        InvalidRequest: Not YAML or not UTF-8, with line and column; several documents; a key twice in one object.
        TooLarge: It has more bytes than that.
    """
    import yaml

    if len(raw) > longest:
        raise TooLarge(f"the document has {len(raw):,} bytes; at most {longest:,} are read")
    try:
        return yaml.load(raw.decode("utf-8"), Loader=_loader())  # a SafeLoader
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"not UTF-8: byte {error.start} is {raw[error.start]:#04x}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
        raise InvalidRequest(f"not YAML: {error.problem or error.context}{where}") from None
    except yaml.YAMLError as error:
        raise InvalidRequest(f"not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise InvalidRequest("not YAML that can be read: it is nested too deeply") from None
    except ValueError as error:  # from int() and dates: 2026-13-45, or 5,000 digits
        raise InvalidRequest(f"not YAML: {error}") from None


def _loader() -> Any:
    """A SafeLoader that refuses what most keep to themselves: a key that occurs twice."""
    import yaml

    class Strict(yaml.SafeLoader):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                    if key.value in seen:
                        raise yaml.constructor.ConstructorError(
                            None,
                            None,
                            f"the key {key.value[:64]!a} occurs twice in one object",
                            key.start_mark,
                        )
                    seen.add(key.value)
            return super().construct_mapping(node, deep)

    return Strict


def lines_of(raw: bytes, paths: Sequence[Sequence[str | int]]) -> list[int]:
    """The line of each path (keys and numbers of entries) in a YAML text, from 1.

    What is not there has the line of what should hold it.

    Raises:
        ValueError: The text is not YAML.
    """
    import yaml

    try:
        top = yaml.compose(raw.decode(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error
    return [1 if top is None else _line(top, path) for path in paths]


def _line(node: Any, path: Sequence[str | int]) -> int:
    line = int(node.start_mark.line) + 1
    for step in path:
        if node.id == "mapping":
            member = next((pair for pair in node.value if pair[0].value == step), None)
            if member is None:
                return line
            line, node = int(member[0].start_mark.line) + 1, member[1]
        elif node.id == "sequence" and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = int(node.start_mark.line) + 1
        else:
            return line
    return line
