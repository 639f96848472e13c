"""Wildcards of outputs: the ones of POSIX, and `**` and `{a,b}`, which engines send as users write them.

    *  ?  [abc]  [!a-c]   within one name
    **                    across folders: files alone
    {bam,bai}             one of them

As in a shell, only a dot matches the dot at the beginning of a name. Standard library only: the runner and the steps of pods
use it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_WILD = re.compile(r"[*?\[]|\{[^{},]*,[^{}]*\}")
_BRACES = re.compile(r"\{([^{},]*,[^{}]*)\}")
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
    matched = set()
    for each in alternatives(pattern):
        for path in _matches(each.strip("/").split("/"), listed, is_folder):
            if path not in matched:
                matched.add(path)
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


def _compiled(pattern: str) -> Callable[[str], bool]:
    """A predicate: whether a text fits a pattern without braces. Its time grows with text times pattern, whatever they hold.

    It follows all places of the pattern that a text can have reached at once (Thompson 1968). A match that goes back and tries
    again takes exponential time for `*a*a*a*a`.
    """
    #: By place: which character it takes, whether it then stays, and the places (relative) that are reached without a character.
    places: list[tuple[Callable[[str], object], bool, tuple[int, ...]]] = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        closing = pattern.find("]", at + 2) if character == "[" else -1
        if pattern.startswith("**/", at):  # folders and their slash, or nothing at all
            places += [(_is_none, False, (1, 3)), (_is_any, True, (1,)), ("/".__eq__, False, ())]
            at += 3
        elif pattern.startswith("**", at):
            places.append((_is_any, True, (1,)))
            at += 2
        elif character in "*?":
            places.append((_is_inner, True, (1,)) if character == "*" else (_is_inner, False, ()))
            at += 1
        elif closing > 0:
            places.append((_one_of(pattern[at + 1 : closing]), False, ()))
            at = closing + 1
        else:
            places.append((character.__eq__, False, ()))
            at += 1
    end = len(places)

    def reached_from(found: list[int]) -> set[int]:
        reached: set[int] = set()
        while found:
            place = found.pop()
            if place not in reached:
                reached.add(place)
                found += [place + skip for skip in places[place][2]] if place < end else []
        return reached

    def fits_it(text: str) -> bool:
        reached = reached_from([0])
        for character in text:
            taken = [place for place in reached if place < end and places[place][0](character)]
            reached = reached_from([place if places[place][1] else place + 1 for place in taken])
        return end in reached

    return fits_it


def _is_none(_: str) -> bool:
    return False


def _is_any(_: str) -> bool:
    return True


def _is_inner(character: str) -> bool:
    return character != "/"


def _one_of(inner: str) -> Callable[[str], object]:
    """A predicate: whether a character is one of `[inner]`."""
    inner = inner.replace("\\", "\\\\").replace("[", "\\[")
    try:
        return re.compile(f"[^/{inner[1:]}]" if inner[0] in "!^" else f"[{inner}]", re.DOTALL).fullmatch
    except re.error:  # a range such as [z-a] fits nothing
        return lambda _: None
