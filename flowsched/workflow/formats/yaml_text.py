"""YAML text as plain values, or one clear refusal. JSON is YAML too. PyYAML is loaded when something is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from flowsched.errors import InvalidRequest, TooLarge

#: A configuration that is longer is none.
LONGEST_BYTES: Final = 1 << 20
#: Lists and objects inside each other. PyYAML looks at each of them again for each token.
DEEPEST: Final = 64


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
    except ValueError as error:  # from int(): 5,000 digits
        raise InvalidRequest(f"not YAML: {error}") from None


#: The plain words that are not text; all others are, as they are written: 010, 1_000, 1.50, 12:30, 0x1F, 1e3, 2026-01-02, yes.
_WORDS: Final = {
    "null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "bool": (r"true|True|TRUE|false|False|FALSE", [*"tTfF"]),
    "int": (r"0|-?[1-9][0-9]*", [*"-0123456789"]),
    "merge": (r"<<", ["<"]),
}
_TAG: Final = "tag:yaml.org,2002:"


def _loader() -> Any:
    """A loader of YAML 1.2's core schema, but for numbers that are not written as JSON writes whole numbers: these are text.

    A key for a number with a fraction accepts its text too ("1.50"), and a key for text gets exactly the characters that were
    written. Keys are texts. The loader refuses a key that occurs twice, which most loaders accept silently.
    """
    import yaml

    class Strict(yaml.SafeLoader):  # type: ignore[misc]
        yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}
        yaml_constructors: ClassVar[dict[str | None, Any]] = {
            **{
                f"{_TAG}{kind}": yaml.SafeLoader.yaml_constructors[f"{_TAG}{kind}"]
                for kind in ("null", "bool", "int", "float", "str", "seq", "map")
            },
            None: yaml.SafeLoader.construct_undefined,
        }

        def fetch_flow_collection_start(self, token: Any) -> None:
            super().fetch_flow_collection_start(token)
            self._check_depth()

        def add_indent(self, column: int) -> bool:
            added: bool = super().add_indent(column)
            self._check_depth()
            return added

        def _check_depth(self) -> None:
            if self.flow_level + len(self.indents) > DEEPEST:
                raise yaml.scanner.ScannerError(
                    None, None, f"nested too deeply, more than {DEEPEST} levels", self.get_mark()
                )

        def compose_node(self, parent: Any, index: Any) -> Any:
            node = super().compose_node(parent, index)
            is_key = index is None and isinstance(parent, yaml.MappingNode)
            if isinstance(node, yaml.ScalarNode) and is_key != (node.tag == f"{_TAG}merge"):
                node.tag = f"{_TAG}str"
            return node

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode) and key.tag != f"{_TAG}merge":
                    if key.value in keys:
                        raise yaml.constructor.ConstructorError(
                            None,
                            None,
                            f"the key {key.value[:64]!a} occurs twice in one object",
                            key.start_mark,
                        )
                    keys.add(key.value)
            return super().construct_mapping(node, deep)

    for kind, (pattern, first) in _WORDS.items():
        Strict.add_implicit_resolver(f"{_TAG}{kind}", re.compile(f"(?:{pattern})$"), first)
    return Strict


def lines_of(raw: bytes, paths: Sequence[Sequence[str | int]]) -> list[int]:
    """The line of each path (keys and numbers of entries) in a YAML text, from 1.

    A path that does not exist has the line of the object that should hold it.

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
