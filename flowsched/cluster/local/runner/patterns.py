"""Wildcards of outputs: the ones of POSIX, and `**` and `{a,b}`, which engines send as users write them.

    *  ?  [abc]  [!a-c]   within one name
    **                    across folders: files alone
    {bam,bai}             one of them

As in a shell, only a dot matches the dot at the beginning of a name. Standard library only: the runner and the steps of pods
use it.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WILD = re.compile(r"[*?\[]|\{[^{}]*,[^{}]*\}")
_BRACES = re.compile(r"\{([^{}]*,[^{}]*)\}")
#: `alternatives` stops at so many, because braces multiply.
_MOST_ALTERNATIVES = 1_000
#: `**` goes so many folders deep.
_DEEPEST = 100


def is_pattern(path: str) -> bool:
    """Whether a path has wildcards."""
    return _WILD.search(path) is not None


def fixed_part(pattern: str) -> str:
    """The folder that all matches of a pattern lie in; of a path without wildcards its folder."""
    found = _WILD.search(pattern)
    return pattern[: found.start() if found else len(pattern)].rpartition("/")[0] or "/"


def alternatives(pattern: str) -> list[str]:
    """A pattern without braces for each of their choices, in order."""
    done: list[str] = []
    rest = [pattern]
    while rest and len(done) < _MOST_ALTERNATIVES:
        each = rest.pop(0)
        found = _BRACES.search(each)
        if found is None:
            done.append(each)
            continue
        rest[:0] = [each[: found.start()] + choice + each[found.end() :] for choice in found[1].split(",")]
    return list(dict.fromkeys(done))


def fits(name: str, pattern: str) -> bool:
    """Whether a name fits a pattern."""
    return any(_compiled(each)(name) for each in alternatives(pattern))


def matches(
    pattern: str, listed: Callable[[str], list[str]], is_folder: Callable[[str], bool]
) -> Iterator[str]:
    """Paths that fit a pattern, each once.

    Args:
        pattern: An absolute path.
        listed: The names in a folder, in order; none where there is no such folder.
        is_folder: Whether a path is a folder and no link to one.
    """
    seen = set()
    for each in alternatives(pattern):
        for path in _matches(each.strip("/").split("/"), listed, is_folder):
            if path not in seen:
                seen.add(path)
                yield path


def _matches(
    parts: list[str], listed: Callable[[str], list[str]], is_folder: Callable[[str], bool]
) -> Iterator[str]:
    found = [""]
    for number, part in enumerate(parts):
        if "**" in part:
            for top in found:
                wanted = _compiled("/".join(parts[number:]))
                yield from (top + path for path in _below(top, "", listed, is_folder) if wanted(path[1:]))
            return
        if not is_pattern(part):
            found = [f"{path}/{part}" for path in found]
            continue
        wanted = _compiled(part)
        found = [
            f"{path}/{name}"
            for path in found
            for name in listed(path or "/")
            if wanted(name) and (part.startswith(".") or not name.startswith("."))
        ]
    yield from found


def _below(
    top: str, inner: str, listed: Callable[[str], list[str]], is_folder: Callable[[str], bool]
) -> Iterator[str]:
    """The files below a folder, by their paths in it."""
    if inner.count("/") > _DEEPEST:
        return
    for name in listed(f"{top}{inner}" or "/"):
        path = f"{inner}/{name}"
        if name.startswith("."):
            continue
        if is_folder(top + path):
            yield from _below(top, path, listed, is_folder)
        else:
            yield path


def _compiled(pattern: str) -> Callable[[str], object]:
    """A predicate: whether a text fits a pattern without braces."""
    made, at = "", 0
    while at < len(pattern):
        character = pattern[at]
        closing = pattern.find("]", at + 2) if character == "[" else -1
        if pattern.startswith("**/", at):
            made, at = made + "(?:.*/)?", at + 3
        elif pattern.startswith("**", at):
            made, at = made + ".*", at + 2
        elif character in "*?":
            made, at = made + ("[^/]*" if character == "*" else "[^/]"), at + 1
        elif closing > 0:
            inner = pattern[at + 1 : closing].replace("\\", "\\\\").replace("[", "\\[")
            made += f"[^/{inner[1:]}]" if inner[0] in "!^" else f"[{inner}]"
            at = closing + 1
        else:
            made, at = made + re.escape(character), at + 1
    try:
        return re.compile(made, re.DOTALL).fullmatch
    except re.error:  # a range such as [z-a] fits nothing
        return lambda _: None
