"""Folders with WDL sources: flowsched finds there the imports that a run's engine does not hand over.

Cromwell keeps the imports of draft-2 workflows only. The operator names the folders (`serve --wdl-path`). flowsched reads no other
file, whatever a source or a link names, and fetches nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from flowsched.errors import ConfigurationError, TooLarge
from flowsched.workflow.document.uris import file_path
from flowsched.workflow.formats.wdl.sources import MAIN, SOURCE_BYTES, SOURCES_BYTES, ZIP_ENTRIES, names_of

_IMPORT: Final = re.compile(r"""^\s*import\s+(?:"([^"\n]+)"|'([^'\n]+)')""", re.MULTILINE)


def folders(text: str) -> tuple[Path, ...]:
    """The folders that a setting names, separated by colons as in PATH.

    Raises:
        ConfigurationError: One of them is no folder.
    """
    found = tuple(Path(part).absolute() for part in text.split(os.pathsep) if part.strip())
    for each in found:
        if not each.is_dir():
            raise ConfigurationError(f"FLOWSCHED_WDL_PATH: {each} is no folder that can be read")
    return found


class WdlPath:
    """Reads the sources that a workflow imports.

    Args:
        allowed: Folders; `WdlPath` never reads files outside of them.
    """

    def __init__(self, allowed: Sequence[Path] = ()) -> None:
        self._allowed = tuple(each.resolve() for each in allowed)

    def imports(
        self, source: str, known: Mapping[str, str], url: str | None = None
    ) -> tuple[dict[str, str], list[str]]:
        """All sources that a workflow imports, and the imports that are not there. Reads files: not for an event loop.

        Each folder is a root of the imports, as Cromwell's zip file is; the workflow's own folder comes first.

        Args:
            source: The workflow's own source.
            known: Known imports, by name.
            url: The path or URL of the submission, if it has one.

        Raises:
            TooLarge: There are more sources than one plan may have.
        """
        own = file_path(url or "", os.path.lexists)
        bases = [*([] if own is None else [Path(own).parent]), *self._allowed]
        found = dict(known)
        missing: list[str] = []
        waiting = [(MAIN, source), *known.items()]
        size = 0
        while waiting:
            importer, text = waiting.pop()
            for uri in _imported(text):
                names = names_of(uri, importer)
                if any(name in found for name in names):
                    continue
                name, path = self._find(bases, names)
                if path is None:
                    missing.append(uri)
                    continue
                read = path.read_text(encoding="utf-8", errors="replace")
                size += len(read)
                if len(found) > ZIP_ENTRIES or size > SOURCES_BYTES:
                    raise TooLarge(
                        f"the workflow imports more than {ZIP_ENTRIES} files or {SOURCES_BYTES} bytes"
                    )
                found[name] = read
                waiting.append((name, read))
        return found, list(dict.fromkeys(missing))

    def find(self, uri: str, importer: str) -> Path | None:
        """The file below one of the folders that an import statement means; None if there is none."""
        return self._find(self._allowed, names_of(uri, importer))[1]

    def _find(self, bases: Sequence[Path], names: Sequence[str]) -> tuple[str, Path | None]:
        """The first of these names that is a file below one of the folders."""
        for name in names:
            for base in bases:
                path = (base / name).resolve()
                inside = any(path.is_relative_to(each) for each in self._allowed)
                if not inside or path.suffix != ".wdl" or not path.is_file():
                    continue
                if path.stat().st_size > SOURCE_BYTES:
                    raise TooLarge(
                        f"{path} has more than {SOURCE_BYTES} bytes, which one WDL source may have"
                    )
                return name, path
        return "", None


def _imported(source: str) -> Iterator[str]:
    for match in _IMPORT.finditer(source):
        yield match[1] or match[2]
