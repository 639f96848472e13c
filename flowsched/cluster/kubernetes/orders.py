"""Orders: what a pod's steps may ask of the agent, signed by the service. Standard library only, no I/O.

An order travels through the pod's environment as text, and it is signed as it stands there. Linux takes at most 128 KiB
in one variable, and a manifest may name thousands of datasets: a long order is packed (`z:` and base64 of zlib).
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import posixpath
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from flowsched.cluster.node.cache import line_safe
from flowsched.cluster.node.safe_paths import Unsafe, parts_of

#: From here on an order is packed: the kernel's limit of one variable is 128 KiB, its name included.
PLAIN_TEXT: Final = 96 << 10
#: Longest text of an order, and longest order that may come out of a packed one.
LARGEST_TEXT: Final = 1 << 20
LARGEST: Final = 32 << 20
#: Longest name of a dataset.
LONGEST_URI: Final = 4096
_PACKED: Final = "z:"


#: How long after its signature an order may be shown for the first time: a pod may wait so long for its image. Agents remember
#: orders for as long (`--keep-days`), so a copy of an old one is either known as used, or expired.
LIFE_MS: Final = 7 * 24 * 3600 * 1000


class BadOrder(Exception):
    """An order that cannot be understood, or asks for what no order may."""


@dataclass(frozen=True, slots=True)
class Input:
    """An input: the datasets, and where its file, folder or manifest shall lie in the pod's `inputs` volume."""

    name: str
    uris: tuple[str, ...]
    manifest: bool
    path: str


@dataclass(frozen=True, slots=True)
class Output:
    """An output: where the task leaves it in its `work` volume, and the dataset that it becomes."""

    name: str
    path: str
    uri: str
    optional: bool
    value: bool


@dataclass(frozen=True, slots=True)
class Order:
    """All that the steps of one pod may ask for."""

    pod: str  #: the engine's name of it
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    folders: tuple[str, ...]  #: to be made in `work`
    hostfile: str | None
    expires_ms: int  #: wall clock; until then it can begin something

    @property
    def uris(self) -> tuple[str, ...]:
        """The datasets it reads, each once."""
        return tuple(dict.fromkeys(uri for given in self.inputs for uri in given.uris))


@dataclass(frozen=True, slots=True)
class Placed:
    """Where one dataset of an input shall lie in the `inputs` volume."""

    uri: str
    path: str


def pack(order: Mapping[str, Any]) -> str:
    """The text of an order, short enough for a variable where that is possible."""
    text = json.dumps(order, separators=(",", ":"))
    return text if len(text) <= PLAIN_TEXT else packed(order)


def packed(value: Any) -> str:
    """A value as a text that is as short as it can be; `unpacked` gives its JSON back."""
    text = json.dumps(value, separators=(",", ":"))
    return _PACKED + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def sign(key: bytes, text: str) -> str:
    """The signature of an order's text. The key is the one of `agent_keys.signing_key_of`."""
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def is_signed(key: bytes, text: str, signature: str) -> bool:
    """Whether this text was signed with the key. Takes the same time for every wrong signature."""
    given = signature.encode("utf-8", "surrogatepass")
    return hmac.compare_digest(sign(key, text).encode(), given)


def digest(text: str) -> str:
    """A digest that differs between orders."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def read(text: str) -> Order:
    """Understand an order, and check that everything it names stays where it belongs.

    Raises:
        BadOrder: It does not.
    """
    try:
        order = _order(json.loads(unpacked(text)))
        for path in (*order.folders, *(given.path for given in order.inputs)):
            parts_of(path)
        for output in order.outputs:
            parts_of(output.path)
            check_uri(output.uri)
        for uri in order.uris:
            check_uri(uri)
    except (ValueError, KeyError, TypeError, RecursionError, zlib.error) as error:
        raise BadOrder(f"this is no order: {type(error).__name__}: {error}"[:300]) from error
    except Unsafe as error:
        raise BadOrder(str(error)) from error
    if any(len(given.uris) != 1 and not given.manifest for given in order.inputs):
        raise BadOrder("an input without a manifest is one dataset")
    return order


def check_uri(uri: str) -> None:
    """Let the name of a dataset pass.

    Raises:
        BadOrder: It is empty, too long, or holds something that is not printed.
    """
    if not 0 < len(uri) <= LONGEST_URI or any(
        ord(char) < 0x20 or 0xD7FF < ord(char) < 0xE000 for char in uri
    ):
        raise BadOrder(f"not the name of a dataset: {uri[:100]!r}")


def placed(given: Input, names: Mapping[str, str]) -> Iterator[Placed]:
    """Where the datasets of an input go: the one to its path, those of a manifest each into a folder of its own.

    Args:
        given: The input.
        names: The file name of each dataset, by uri.
    """
    if not given.manifest:
        yield Placed(given.uris[0], given.path)
        return
    top = given.path.removesuffix(".manifest") + ".d"
    for number, uri in enumerate(given.uris):
        yield Placed(uri, f"{top}/{number}/{line_safe(names[uri])}")


def manifest(given: Input, names: Mapping[str, str], inputs_path: str) -> str:
    """The text of a manifest: where the task finds each file, one to a line, in the input's order."""
    return "".join(f"{inputs_path.rstrip('/')}/{file.path}\n" for file in placed(given, names))


def place_in(view: Iterable[Sequence[str]], path: str) -> str:
    """The place of a path of the container, by a view with the longest paths first; "" if it is the image's own."""
    path = tidy(path)
    for mounted, place in view:
        if path == mounted:
            return place
        if path.startswith(mounted.rstrip("/") + "/"):
            return f"{place}/{path[len(mounted.rstrip('/')) + 1 :]}"
    return ""


def tidy(path: str) -> str:
    """An absolute path without what it need not have."""
    return "/" + posixpath.normpath(path).lstrip("/")


def unpacked(text: str) -> str | bytes:
    """The JSON of a packed text; any other text as it is.

    Raises:
        ValueError, zlib.error: It is cut off, or far too long.
    """
    if not text.startswith(_PACKED):
        return text
    packed = base64.b64decode(text[len(_PACKED) :], validate=True)
    unpacking = zlib.decompressobj()
    whole = unpacking.decompress(packed, LARGEST)
    if not unpacking.eof:
        raise ValueError(f"it is cut off, or longer than {LARGEST} bytes")
    return whole


def _order(given: Any) -> Order:
    hostfile = given["hostfile"]
    return Order(
        pod=_text(given["pod"]),
        inputs=tuple(_input(each) for each in _list(given["inputs"])),
        outputs=tuple(_output(each) for each in _list(given["outputs"])),
        folders=tuple(_text(each) for each in _list(given["folders"]) if each not in ("", ".")),
        hostfile=None if hostfile is None else _text(hostfile),
        expires_ms=_number(given["expires_ms"]),
    )


def _input(given: Any) -> Input:
    uris = tuple(_text(uri) for uri in _list(given["uris"]))
    return Input(_text(given["name"]), uris, given["manifest"] is True, _text(given["path"]))


def _output(given: Any) -> Output:
    name, path, uri = (_text(given[key]) for key in ("name", "path", "uri"))
    return Output(name, path, uri, given["optional"] is True, given["value"] is True)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"found {type(value).__name__}, expected text")
    return value


def _number(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"found {type(value).__name__}, expected a whole number")
    return value


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"found {type(value).__name__}, expected a list")
    return value
