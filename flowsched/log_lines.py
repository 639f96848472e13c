"""Log lines of the service and of the node agent: to standard error, for people or as JSON."""

from __future__ import annotations

import logging
import sys
from typing import Any, Final, TextIO, cast

#: From the most to the least that is written.
LEVELS: Final = ("debug", "info", "warning", "error", "critical")


class Log:
    """The log of one module.

    Its first line loads structlog, which loads rich and Pygments for tracebacks: 0.02 s. A short run writes no line.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, event: str, **fields: Any) -> None:
        """A developer would ask."""
        self._write("debug", "debug", event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """A user would ask."""
        self._write("info", "info", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Someone may need to act."""
        self._write("warning", "warning", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Something does not work."""
        self._write("error", "error", event, fields)

    def exception(self, event: str, **fields: Any) -> None:
        """An error, with the traceback of the exception that is being handled."""
        self._write("error", "exception", event, fields)

    def _write(self, level: str, method: str, event: str, fields: dict[str, Any]) -> None:
        global _wanted
        if _wanted is not None:
            if LEVELS.index(level) < LEVELS.index(_wanted[0]):
                return
            wanted, _wanted = _wanted, None
            _configure(*wanted)
        import structlog

        getattr(structlog.get_logger(self._name), method)(event, **fields)


def get_logger(name: str) -> Log:
    """The log of a module."""
    return Log(name)


#: Level and form that the first line will configure; None = structlog is configured, or has its own defaults.
_wanted: tuple[str, bool] | None = None


def configure_logging(level: str, *, as_json: bool) -> None:
    """Let log lines go to standard error.

    Args:
        level: The least that is written: one of `LEVELS`; another is `info`.
        as_json: One JSON object a line; else lines for people, in colours on a terminal.
    """
    global _wanted
    level = level.lower() if level.lower() in LEVELS else "info"
    if "structlog" in sys.modules:
        _configure(level, as_json)
    else:
        _wanted = level, as_json
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)


def _configure(level: str, as_json: bool) -> None:
    """Let structlog write to standard error."""
    import structlog

    renderer: structlog.typing.Processor
    if as_json:
        renderer = structlog.processors.JSONRenderer()
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.PrintLoggerFactory(file=cast("TextIO", _LogFile(sys.stderr))),
    )


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
