"""Orders: the permitted requests of a pod's steps to the agent, signed by the service. Standard library only, no I/O.

An order travels through the pod's environment as text (`packing`), and it is signed as it stands there.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, Final

from flowsched.cluster.kubernetes.packing import unpacked
from flowsched.cluster.local.runner.image_places import tidy
from flowsched.cluster.local.runner.safe_paths import Unsafe, parts_of
from flowsched.cluster.local.runner.uploads import is_s3
from flowsched.cluster.node.cache import line_safe

#: Longest text of an order.
LARGEST_TEXT: Final = 1 << 20
#: Members of the largest gang that an order may name.
MOST_MEMBERS: Final = 1 << 20
#: Longest name of a dataset.
LONGEST_URI: Final = 4096


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
class Gang:
    """The gang that the pod is a member of."""

    runs: tuple[tuple[str, int, int], ...]  #: of its roster (`executor.protocol.Roster`)
    service: str  #: below which its members are found; "" = they have loopback addresses
    slots: int  #: of each host in the hostfile
    port: int  #: MASTER_PORT


@dataclass(frozen=True)
class Order:
    """All that the steps of one pod may ask for."""

    pod: str  #: the engine's name of it
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    folders: tuple[str, ...]  #: to be made in `work`
    gang: Gang | None
    expires_ms: int  #: wall clock; until then it can begin something
    delivers: tuple[
        tuple[str, bool], ...
    ] = ()  #: the objects and paths that it may deliver; True = a folder is one dataset

    def may_deliver(self, uri: str) -> bool:
        """Whether an object of S3, or a path of a shared volume, is one of its outputs, or lies below one.

        A step may leave a folder where a file was named, as Nextflow's `path 'db'` does.
        """
        if not is_uri(uri) or (uri.startswith("/") and uri != tidy(uri)):
            return False
        above = accumulate(uri.split("/"), "{}/{}".format)
        return any(each in self.tops for each in above)

    @cached_property
    def tops(self) -> frozenset[str]:
        """The files and folders that it may deliver, without the slash."""
        return frozenset(top for uri, _ in self.delivers if is_target(top := uri.rstrip("/")))

    @property
    def uris(self) -> tuple[str, ...]:
        """The datasets it reads, each once."""
        return tuple(dict.fromkeys(uri for stage_input in self.inputs for uri in stage_input.uris))

    @property
    def output_records(self) -> list[dict[str, object]]:
        """The outputs, as `runner.outputs.find_outputs` takes them."""
        return [asdict(output) for output in self.outputs]


@dataclass(frozen=True, slots=True)
class Placed:
    """Where one dataset of an input shall lie in the `inputs` volume."""

    uri: str
    path: str


def sign(key: bytes, text: str) -> str:
    """The signature of an order's text. The key is the one of `agent_keys.signing_key_of`."""
    return hmac.new(key, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()


def is_signed(key: bytes, text: str, signature: str) -> bool:
    """Whether this text was signed with the key. Takes the same time for every wrong signature."""
    presented = signature.encode("utf-8", "surrogatepass")
    return hmac.compare_digest(sign(key, text).encode(), presented)


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
        for path in (*order.folders, *(stage_input.path for stage_input in order.inputs)):
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
    if any(len(stage_input.uris) != 1 and not stage_input.manifest for stage_input in order.inputs):
        raise BadOrder("an input without a manifest is one dataset")
    return order


def check_uri(uri: str) -> None:
    """Let the name of a dataset pass.

    Raises:
        BadOrder: It is empty, too long, or holds something that is not printed.
    """
    if not is_uri(uri):
        raise BadOrder(f"not the name of a dataset: {uri[:100]!r}")


def is_uri(text: str) -> bool:
    """Whether a text can be the name of a dataset."""
    return 0 < len(text) <= LONGEST_URI and not any(
        ord(char) < 0x20 or 0xD7FF < ord(char) < 0xE000 for char in text
    )


def is_target(uri: str) -> bool:
    """Whether a node's cache may keep what is delivered there: an object of S3, or a file of a shared volume."""
    return is_s3(uri) or uri.startswith("/")


def placed(stage_input: Input, names: Mapping[str, str]) -> Iterator[Placed]:
    """Where the datasets of an input go: the one to its path, those of a manifest each into a folder of its own.

    Args:
        stage_input: The input.
        names: The file name of each dataset, by uri.
    """
    if not stage_input.manifest:
        yield Placed(stage_input.uris[0], stage_input.path)
        return
    top = stage_input.path.removesuffix(".manifest") + ".d"
    for number, uri in enumerate(stage_input.uris):
        yield Placed(uri, f"{top}/{number}/{line_safe(names[uri])}")


def manifest(stage_input: Input, names: Mapping[str, str], inputs_path: str) -> str:
    """The text of a manifest: where the task finds each file, one to a line, in the input's order."""
    return "".join(f"{inputs_path.rstrip('/')}/{file.path}\n" for file in placed(stage_input, names))


def _order(raw: Any) -> Order:
    pod, gang = _text(raw["pod"]), raw["gang"]
    return Order(
        pod=pod,
        inputs=tuple(_input(each) for each in _list(raw["inputs"])),
        outputs=tuple(_output(each) for each in _list(raw["outputs"])),
        folders=tuple(_text(each) for each in _list(raw["folders"]) if each not in ("", ".")),
        gang=None if gang is None else _gang(gang),
        expires_ms=_number(raw["expires_ms"]),
        delivers=tuple((_text(uri), folder is True) for uri, folder in _list(raw.get("delivers", []))),
    )


def _gang(raw: Any) -> Gang:
    runs = tuple((_text(role), _number(first), _number(count)) for role, first, count in _list(raw["runs"]))
    if not 0 < sum(count for _, _, count in runs) <= MOST_MEMBERS or any(count < 1 for _, _, count in runs):
        raise ValueError(f"a gang has 1 to {MOST_MEMBERS} members")
    return Gang(runs, _text(raw["service"]), _number(raw["slots"]), _number(raw["port"]))


def _input(raw: Any) -> Input:
    uris = tuple(_text(uri) for uri in _list(raw["uris"]))
    return Input(_text(raw["name"]), uris, raw["manifest"] is True, _text(raw["path"]))


def _output(raw: Any) -> Output:
    name, path, uri = (_text(raw[key]) for key in ("name", "path", "uri"))
    return Output(name, path, uri, raw["optional"] is True, raw["value"] is True)


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
