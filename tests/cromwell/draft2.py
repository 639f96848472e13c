"""What Cromwell does with a config backend's commands, written from its source (develop of 2026) and held against a real one.

Each of submit, submit-docker, kill, kill-docker and check-alive is the command of a draft-2 WDL task. Cromwell evaluates its
`${…}` expressions (wdl.draft2: WdlParser, ValueEvaluator, ParameterCommandPart), takes common indentation off (StringUtil),
writes `#!/bin/bash` and the result to a file, and runs that with /bin/bash (ConfigAsyncJobExecutionActor).

Only what such a template may reasonably use is here; anything else is an error, so that a template that Cromwell might read
differently does not pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyhocon

#: What pyhocon cannot read: Cromwell's own defaults, from its jar.
CLASSPATH = 'include required(classpath("application"))\n'


class WdlError(Exception):
    """Cromwell would refuse this, or fail the call with it."""


class NotSupplied(WdlError):
    """An optional without a value was added to something: the whole placeholder becomes the empty text."""


class Long(int):
    """What Cromwell makes of `memory_<unit>` and `disk_<unit>`, though they are declared as Int: it cannot be added to a text."""


@dataclass(frozen=True)
class Maybe:
    """A value of an optional type (`String?`): Cromwell boxes it even where it is there."""

    value: str | int | None


Value = str | int | bool | Maybe


def whole(path: Path) -> Any:
    """All that a file says itself."""
    text = path.read_text(encoding="utf-8")
    assert CLASSPATH in text, "without Cromwell's defaults no server starts"
    return pyhocon.ConfigFactory.parse_string(text.replace(CLASSPATH, ""))


def provider(path: Path) -> Any:
    """A file's only provider: its actor factory and its config."""
    backend = whole(path)["backend"]
    return backend["providers"][backend["default"]]


def config(path: Path) -> Any:
    """The `config` block of a file's only provider."""
    return provider(path)["config"]


# ------------------------------------------------------------------------------------------ lexing

_STRING = r"""[^\\{q}\n]|\\[\\"'nrbtfav?]|\\[0-7]{{1,3}}|\\x[0-9a-fA-F]+|\\[uU][0-9a-fA-F]{{4}}(?:[0-9a-fA-F]{{4}})?"""
_TOKEN = re.compile(
    rf"""\s+|(?P<string>"(?:{_STRING.format(q='"')})*"|'(?:{_STRING.format(q="'")})*')"""
    r"""|(?P<word>[a-zA-Z][a-zA-Z0-9_]*)|(?P<integer>[0-9]+)|(?P<mark>[+(),])"""
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|([0-3]?[0-7]{1,2})|(.))", re.DOTALL)
_PLAIN = {"n": "\n", "r": "\r", "b": "\b", "t": "\t", "f": "\f"}


def unescaped(text: str) -> str:
    """As StringEscapeUtils.unescapeJava: an escape that it does not know loses its backslash."""

    def one(found: re.Match[str]) -> str:
        if found[1]:
            return chr(int(found[1], 16))
        if found[2]:
            return chr(int(found[2], 8))
        return _PLAIN.get(found[3], found[3])

    return _ESCAPE.sub(one, text)


def _tokens(text: str, start: int) -> tuple[list[tuple[str, str]], int]:
    """The tokens of one expression, and the position behind the } that ends it."""
    found: list[tuple[str, str]] = []
    position = start
    while position < len(text):
        if text[position] == "}":
            return found, position + 1
        match = _TOKEN.match(text, position)
        if match is None:
            raise WdlError(f"no token at {text[position : position + 40]!r}")
        position = match.end()
        if re.fullmatch(r"(?:if|then|else)\w+", match[0]):
            raise WdlError(
                f"{match[0]} is read as a keyword and a rest: Cromwell asks for no end of the word there"
            )
        if match.lastgroup is not None:
            found.append((match.lastgroup, match[0]))
    raise WdlError("an expression has no end")


# ------------------------------------------------------------------------------------------ evaluating


class _Expression:
    """A recursive descent over tokens, evaluated at once: `if` is lazy as in Cromwell."""

    def __init__(self, tokens: Sequence[tuple[str, str]], values: Mapping[str, Value]) -> None:
        self._tokens = list(tokens)
        self._values = values

    def result(self) -> Value:
        value = self._sum()()
        if self._tokens:
            raise WdlError(f"more behind the expression: {self._tokens[0][1]}")
        return value

    def _next(self, expected: str | None = None) -> tuple[str, str]:
        if not self._tokens:
            raise WdlError("an expression breaks off")
        token = self._tokens.pop(0)
        if expected is not None and token[1] != expected:
            raise WdlError(f"expected {expected}, found {token[1]}")
        return token

    def _peek(self) -> str:
        return self._tokens[0][1] if self._tokens else ""

    def _sum(self) -> Callable[[], Value]:
        if self._peek() == "if":
            self._next("if")
            condition = self._sum()
            self._next("then")
            yes = self._sum()
            self._next("else")
            no = self._sum()
            return lambda: yes() if _truth(condition()) else no()
        left = self._term()
        while self._peek() == "+":
            self._next("+")
            left = self._added(left, self._term())
        return left

    @staticmethod
    def _added(left: Callable[[], Value], right: Callable[[], Value]) -> Callable[[], Value]:
        return lambda: _add(left(), right())

    def _term(self) -> Callable[[], Value]:
        kind, text = self._next()
        if kind == "string":
            literal = unescaped(text[1:-1])
            if "${" in literal:
                raise WdlError("a literal with ${ is evaluated once more: not for us")
            return lambda: literal
        if kind == "integer":
            return lambda: int(text)
        if kind == "word" and self._peek() == "(":
            return self._call(text)
        if kind == "word":
            if text not in self._values:
                raise WdlError(f"no such variable: {text}")
            return lambda: self._values[text]
        raise WdlError(f"no expression begins with {text}")

    def _call(self, name: str) -> Callable[[], Value]:
        self._next("(")
        arguments = [self._sum()]
        while self._peek() == ",":
            self._next(",")
            arguments.append(self._sum())
        self._next(")")
        if name == "defined" and len(arguments) == 1:
            return lambda: arguments[0]() != Maybe(None)
        if name == "sub" and len(arguments) == 3:
            return lambda: _sub(*map(_supplied, arguments))
        raise WdlError(f"no function {name} of {len(arguments)} arguments")


def _supplied(argument: Callable[[], Value]) -> Value:
    """A function's argument: here an empty optional is no longer forgiven."""
    try:
        return argument()
    except NotSupplied as error:
        raise WdlError("Invalid parameters for engine function sub") from error


def _truth(value: Value) -> bool:
    if not isinstance(value, bool):
        raise WdlError(f"'if' expression must be given a boolean argument but got: {value!r}")
    return value


def _add(left: Value, right: Value) -> Value:
    """WomString.add: an optional is unpacked, an empty one fails."""
    if not isinstance(left, str):
        raise WdlError(f"{left!r} + {right!r}: only texts are added here")
    if isinstance(right, Maybe):
        if right.value is None:
            raise NotSupplied("+")
        right = right.value
    if isinstance(right, bool | Long):
        raise WdlError(f"Cannot perform operation: {left} + {right!r}")
    return left + str(right)


def _sub(text: Value, pattern: Value, replacement: Value) -> Value:
    """WdlStandardLibraryFunctions.sub: no optionals, and Scala's replaceAllIn, which is Java's replaceAll."""
    if not (isinstance(text, str) and isinstance(pattern, str) and isinstance(replacement, str)):
        raise WdlError(f"Invalid parameters for engine function sub: {text!r}, {pattern!r}, {replacement!r}")
    return replace_all(text, pattern, replacement)


def replace_all(text: str, pattern: str, replacement: str) -> str:
    r"""Java's String.replaceAll for patterns that are one character: in the replacement, \ and $ are special."""
    if len(pattern) != 1 or pattern in r"\.[]{}()*+?^$|":
        raise WdlError(f"{pattern!r}: only single literal characters are known here")

    def expanded(_: re.Match[str]) -> str:
        found, rest = "", iter(replacement)
        for character in rest:
            if character == "\\":
                following = next(rest, None)
                if following is None:
                    raise WdlError("character to be escaped is missing")
                found += following
            elif character == "$":
                digit = next(rest, "")
                if digit != "0":
                    raise WdlError("Illegal group reference")
                found += pattern
            else:
                found += character
        return found

    return re.sub(re.escape(pattern), expanded, text)


# ------------------------------------------------------------------------------------------ commands


def instantiated(template: str, values: Mapping[str, Value]) -> str:
    """A command with its expressions evaluated. A } outside of one would end the task's command."""
    found, position = "", 0
    template = _margin_stripped(template)
    while position < len(template):
        start = template.find("${", position)
        literal = template[position : start if start >= 0 else len(template)]
        if "}" in literal:
            raise WdlError("a } ends the command")
        found += literal
        if start < 0:
            break
        tokens, position = _tokens(template, start + 2)
        try:
            value = _Expression(tokens, values).result()
        except NotSupplied:
            value = ""
        if isinstance(value, Maybe):
            value = "" if value.value is None else value.value
        found += str(value).lower() if isinstance(value, bool) else str(value)
    return found


def _margin_stripped(template: str) -> str:
    """The template is put into a text from which Scala's stripMargin takes what is before a leading |."""
    return re.sub(r"^[\x00-\x20]*\|", "", template, flags=re.MULTILINE)


def normalized(command: str, line_end: str = r"\r?\n") -> str:
    r"""StringUtil.normalize: outer empty lines off, common indentation off. Older Cromwells divide at [\r\n]+ instead."""
    lines = re.split(line_end, command.lstrip("\r\n").rstrip("\r\n \t"))
    indents = [
        len(line) - len(line.lstrip(" \t")) for line in lines if line.strip("".join(map(chr, range(33))))
    ]
    indent = min(indents, default=0)
    return "\n".join(line[indent:] for line in lines)


def script(template: str, values: Mapping[str, Value], line_end: str = r"\r?\n") -> str:
    """The file that /bin/bash runs."""
    return "#!/bin/bash\n" + normalized(instantiated(template, values), line_end) + "\n"


def declared(attributes: str) -> dict[str, Value]:
    """What `runtime-attributes` declares, with its defaults; optionals are empty."""
    found: dict[str, Value] = {}
    for line in filter(None, map(str.strip, attributes.splitlines())):
        match = re.fullmatch(r"(Int|String|Float|Boolean)(\??)\s+(\w+)(?:\s*=\s*([0-9]+))?", line)
        if match is None:
            raise WdlError(f"no declaration: {line}")
        unit = re.fullmatch(r"(memory|disk)_[kmgt]i?b?", match[3])
        if match[2] and (unit or match[3] == "cpu"):
            raise WdlError(
                f"invalid runtime attribute {unit[1] if unit else 'cpu'} = !! NOT FOUND !!: the ? is lost, a default is needed"
            )
        if match[2]:
            found[match[3]] = Maybe(None)
        elif match[4] is not None:
            found[match[3]] = Long(match[4]) if unit else int(match[4])
        else:
            raise WdlError(f"{match[3]} is required of every task")
    return found


def job_id(regex: str, output: str) -> str:
    """findFirstIn, and the match matched once more as a whole to take group 1."""
    first = re.search(regex, output)
    if first is None:
        raise WdlError("Could not find job ID from stdout file")
    again = re.fullmatch(regex, first[0])
    if again is None:
        raise WdlError("the match does not match itself")
    return again[1]
