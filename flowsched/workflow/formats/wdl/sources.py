"""The sources of a WDL workflow in memory: imports as a zip file or by name, and how an import statement finds one.

Bytes in, texts out: nothing here opens a file. Sizes are limited while they are read, since a zip file says of itself what it
likes.
"""

from __future__ import annotations

import io
import posixpath
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from flowsched.errors import InvalidRequest, TooLarge

#: One source. The largest of WARP and BioWDL have 100 KiB.
SOURCE_BYTES: Final = 1 << 20
#: All sources together, decompressed.
SOURCES_BYTES: Final = 16 << 20
ZIP_ENTRIES: Final = 5_000
MAIN: Final = "main.wdl"


class Sources(msgspec.Struct, frozen=True):
    """A workflow and what it may import, by name.

    Args:
        main: Name of the workflow's own source.
        texts: Name -> source. Names are relative paths with `/`, or URLs.
    """

    main: str
    texts: Mapping[str, str] = msgspec.field(default_factory=dict)

    def find(self, uri: str, importer: str | None) -> str | None:
        """The name that an import statement means; None if it is not there."""
        return next((name for name in names_of(uri, importer or "") if name in self.texts), None)


def names_of(uri: str, importer: str) -> list[str]:
    """The names that an import statement may mean, the best first.

    A path is seen from the importer's folder, else from the root. A URL is that URL, or the end of it: the longest one that there
    is, also below a folder with the name of its repository. So a clone, or a copy of a single file, stands in for what it names.
    """
    if "://" not in uri and "://" not in importer:
        return [beside(importer, uri), posixpath.normpath(uri).lstrip("/")]
    url = uri if "://" in uri else beside(importer, uri)
    parts = posixpath.normpath("/" + url.partition("://")[2].partition("?")[0]).split("/")[1:]
    repository = parts[2:3]  # of host/owner/repository/branch/…
    names = [url]
    for start in range(len(parts)):
        ends = parts[start:]
        names += ["/".join(each) for each in ([*repository, *ends] if start > 2 else ends, ends)]
    return list(dict.fromkeys(names))


def beside(importer: str, uri: str) -> str:
    """A relative name, seen from the folder of another one (which may be a URL)."""
    scheme, mark, rest = importer.rpartition("://")
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(rest), uri))
    return f"{scheme}{mark}{joined}"


class Files(msgspec.Struct, frozen=True):
    """The known facts about files that inputs name. Both functions answer None for a file that they do not know.

    Args:
        size: Bytes of a file, by its URI or path: what `size()` answers.
        content: Its text: what `read_lines()` and its like read.
    """

    size: Callable[[str], int | None]
    content: Callable[[str], str | None]


def files_of(sizes: Mapping[str, int], contents: Mapping[str, str]) -> Files:
    """Files of which the caller gives the size or the text."""

    def size(name: str) -> int | None:
        return sizes[name] if name in sizes else len(contents[name].encode()) if name in contents else None

    return Files(size, contents.get)


def sources(main: str, imports: Mapping[str, str] | bytes = b"", name: str = MAIN) -> Sources:
    """Gather and check the sources of one workflow.

    Args:
        main: The workflow's own source.
        imports: A zip file, or sources by name.
        name: The name of `main` in messages.

    Raises:
        TooLarge: A source, or all of them, are beyond a limit.
        InvalidRequest: The zip file is none.
    """
    imported = unzipped(imports) if isinstance(imports, bytes) else dict(imports)
    if name in imported:
        name = f"{name.removesuffix('.wdl')}-submitted.wdl"
    texts = {
        **{posixpath.normpath(key) if "://" not in key else key: text for key, text in imported.items()},
        name: main,
    }
    total = 0
    for key, text in texts.items():
        size = len(text.encode("utf-8", "surrogatepass"))
        total += size
        if size > SOURCE_BYTES:
            raise TooLarge(f"{key} has {size} bytes; one WDL source may have {SOURCE_BYTES}")
    if total > SOURCES_BYTES:
        raise TooLarge(f"the sources have {total} bytes together; they may have {SOURCES_BYTES}")
    return Sources(name, texts)


def unzipped(packed: bytes) -> dict[str, str]:
    """The WDL sources in a zip file; nothing at all is an empty one.

    Raises:
        TooLarge: Too many entries, or too many bytes once decompressed.
        InvalidRequest: It is no zip file, it is encrypted, or an entry is no UTF-8 or lies outside.
    """
    if not packed:
        return {}
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            entries = archive.infolist()
            if len(entries) > ZIP_ENTRIES:
                raise TooLarge(
                    f"the zip file of imports has {len(entries)} entries; it may have {ZIP_ENTRIES}"
                )
            return _texts(
                archive,
                [entry for entry in entries if entry.filename.endswith(".wdl") and not entry.is_dir()],
            )
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError) as error:
        raise InvalidRequest(f"the imports are no zip file that can be read: {error}") from error


def _texts(archive: zipfile.ZipFile, entries: list[zipfile.ZipInfo]) -> dict[str, str]:
    found: dict[str, str] = {}
    left = SOURCES_BYTES
    for entry in entries:
        name = posixpath.normpath(entry.filename)
        if name.startswith(("/", "../")):
            raise InvalidRequest(
                f"the zip file of imports has an entry outside of itself: {entry.filename!r}"
            )
        with archive.open(entry) as file:
            raw = file.read(min(SOURCE_BYTES, left) + 1)
        if len(raw) > SOURCE_BYTES:
            raise TooLarge(
                f"{name} in the zip file of imports has more than {SOURCE_BYTES} bytes, which one WDL source may have"
            )
        left -= len(raw)
        if left < 0:
            raise TooLarge(
                f"the zip file of imports has more than {SOURCES_BYTES} bytes of sources, which is the limit"
            )
        try:
            found[name] = raw.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{name} in the zip file of imports is not UTF-8: {error}") from error
    return found
