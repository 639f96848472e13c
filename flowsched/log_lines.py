"""Log lines of the service and of the node agent: to standard error, for people or as JSON.

In a `flowsched run` the first line that is written loads structlog, which loads rich's tracebacks: a short run writes none.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any, Final, TextIO, cast

if TYPE_CHECKING:
    import structlog

#: From the most to the least that is written.
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
#: The level, the form and the file for structlog, until it is loaded: one at most.
_wanted: Final[list[tuple[str, bool, TextIO]]] = []


def get_logger(name: str) -> structlog.typing.FilteringBoundLogger:
    """The log of a module."""
    return cast("structlog.typing.FilteringBoundLogger", _Log(name))


class _Log:
    """Structlog's log of a module. While structlog is not loaded, it drops lines below the level."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):  # as `copy` and `pickle` ask
            raise AttributeError(method)
        for level, _, _ in _wanted:
            if method in LEVELS[: LEVELS.index(level)]:
                return lambda _event, **_fields: None
        return getattr(_loaded().get_logger(self._name), method)


def configure_logging(level: str, *, as_json: bool, lazily: bool = False) -> None:
    """Let log lines go to standard error.

    Args:
        level: The least that is written: one of `LEVELS`; another is `info`.
        as_json: One JSON object a line; else lines for people, in colours on a terminal.
        lazily: Structlog is loaded with the first line.
    """
    _wanted[:] = [(level.lower() if level.lower() in LEVELS else "info", as_json, sys.stderr)]
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    if not lazily or "structlog" in sys.modules:
        _loaded()


def _loaded() -> Any:
    """Structlog with its settings. Threads that load it at the same time give it the same ones."""
    import structlog

    for level, as_json, file in _wanted:
        renderer: structlog.typing.Processor
        if as_json:
            renderer = structlog.processors.JSONRenderer()
        else:
            renderer = structlog.dev.ConsoleRenderer(colors=file.isatty())
        structlog.configure(
            processors=[
                structlog.processors.add_log_level,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
                structlog.processors.format_exc_info,
                renderer,
            ],
            wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
            logger_factory=structlog.PrintLoggerFactory(file=cast("TextIO", _LogFile(file))),
        )
    _wanted.clear()
    return structlog


class _LogFile:
    """Standard error, of which a full disk or a closed terminal is no reason to stop: lines that are lost are counted, and told of
    by the first that can be written again.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lost = 0

    def write(self, text: str) -> None:
        """Write a line, if it can be."""
        lost, self._lost = self._lost, 0
        try:
            if lost:
                self._file.write(f"{lost} lines of this log could not be written\n")
            self._file.write(text)
            self._file.flush()
        except OSError:
            self._lost = lost + 1

    def flush(self) -> None:
        """Nothing is held back."""
