"""Text from elsewhere, made safe for a terminal: what a terminal would obey is shown by its code. Imports nothing heavy."""

from __future__ import annotations

import codecs
import re
from typing import Final

_CONTROL: Final = "\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_IN_A_LOG: Final = re.compile(f"[{_CONTROL}]")
_IN_A_LINE: Final = re.compile(f"[{_CONTROL}\t\n\r\u2028\u2029]")


def line(text: str) -> str:
    """One line: everything that is not a visible character or a space is shown by its code."""
    return _IN_A_LINE.sub(_code, text)


def block(text: str) -> str:
    """Several lines: line ends and tabs stay; a lone carriage return, which would overwrite, ends the line too."""
    return _IN_A_LOG.sub(_code, text.replace("\r\n", "\n").replace("\r", "\n"))


def json_text(text: str) -> str:
    """JSON stays JSON: what it holds unescaped and a terminal would obey is escaped."""
    return _IN_A_LOG.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_SHORT: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r"}


def _code(found: re.Match[str]) -> str:
    if found[0] in _SHORT:
        return _SHORT[found[0]]
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


class LogText:
    """A log for a terminal, from bytes that may be cut anywhere."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._return = False

    def feed(self, chunk: bytes, *, final: bool = False) -> str:
        """The next piece. A carriage return at its end waits for what follows."""
        text = ("\r" if self._return else "") + self._decoder.decode(chunk, final)
        self._return = text.endswith("\r") and not final
        return block(text[:-1] if self._return else text)
