"""What a stock kube-scheduler asks as of its extender: which of these nodes, and which rather (k8s.io/kube-scheduler/extender/v1).

Go writes and reads these documents without regard to the case of names, so we do, too. Whatever is not understood here is let
pass: nodes that flowsched does not know stay in, a list that is not there is not answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, ParamSpec, TypeVar

import msgspec
from aiohttp import web

from flowsched.api.parameters import read_body
from flowsched.api.problems import encode
from flowsched.api.routes import Call, Query
from flowsched.errors import InvalidRequest

P = ParamSpec("P")
T = TypeVar("T")

#: Without `nodeCacheCapable` a question holds every node as an object: 5,000 of them are 10 to 30 MB.
LARGEST_QUESTION: Final = 64 << 20
#: Bigger questions are taken apart in a thread, so that the loop does not stall.
THREAD_BYTES: Final = 256 << 10
_NULL: Final = b"null"


class ExtenderArgs(msgspec.Struct, rename="pascal"):
    """The question: a pod, and nodes as objects or as names (`nodeCacheCapable`)."""

    pod: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]
    nodes: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": ["object", "null"]})] | None = None
    node_names: list[str] | None = None


class ExtenderFilterResult(msgspec.Struct, rename="pascal"):
    """The nodes that are left, in the form in which they came, and why the others are not.

    All refusals are of the kind that preemption does not help: who kills pods there gets no room that is held for others.
    """

    nodes: msgspec.Raw | None = None
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class HostPriority(msgspec.Struct, rename="pascal"):
    """How much a node is liked, 0 to 10."""

    host: str
    score: int


@dataclass(frozen=True, slots=True)
class Question:
    """A question as it came.

    Args:
        pod: The object.
        names: Of all nodes asked about; None where no list was given.
        nodes: The list of objects, in the order of `names`; None where there are only names.
    """

    pod: bytes
    names: Sequence[str] | None
    nodes: bytes | None = None


class _Metadata(msgspec.Struct):
    name: str = ""


class _Object(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


class _Names(msgspec.Struct):
    items: list[_Object] | None = None


class _Objects(msgspec.Struct):
    items: list[msgspec.Raw] | None = None


async def filter_nodes(call: Call[Query]) -> web.Response:
    """Which of these nodes the pod may have."""
    question, size = await _question(call)
    refused = await call.facade.refused_nodes(question.pod)
    return _answer(await _aside(size, filtered, question, refused))


async def prioritize_nodes(call: Call[Query]) -> web.Response:
    """Which of these nodes rather."""
    question, _ = await _question(call)
    names = question.names or ()
    points = await call.facade.node_scores(question.pod, names)
    return _answer([HostPriority(name, score) for name, score in zip(names, points, strict=True)])


def read_question(raw: bytes) -> Question:
    """Take a question apart. Of nodes only the names are read.

    Raises:
        InvalidRequest: It is none.
    """
    try:
        parts = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        parts = {name.lower(): part for name, part in parts.items()}
        if "pod" not in parts:
            raise InvalidRequest("the question has no Pod")
        pod, nodes, names = bytes(parts["pod"]), _given(parts, "nodes"), _given(parts, "nodenames")
        if names is not None:
            return Question(pod, msgspec.json.decode(names, type=list[str]))
        if nodes is None:
            return Question(pod, None)
        items = msgspec.json.decode(nodes, type=_Names).items or []
        return Question(pod, [each.metadata.name for each in items], nodes)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"not a question of a kube-scheduler: {error}") from error


def filtered(question: Question, refused: Mapping[str, str]) -> ExtenderFilterResult:
    """The answer: what is left of the nodes asked about, each as it came."""
    names = question.names
    if names is None:
        return ExtenderFilterResult()
    said = {name: refused[name] for name in names if name in refused}
    if question.nodes is None:
        kept = [name for name in names if name not in said]
        return ExtenderFilterResult(node_names=kept, failed_and_unresolvable_nodes=said)
    nodes = question.nodes
    if said:
        objects = msgspec.json.decode(nodes, type=_Objects).items or []
        left = [node for name, node in zip(names, objects, strict=True) if name not in said]
        nodes = b'{"metadata":{},"items":[' + b",".join(map(bytes, left)) + b"]}"
    return ExtenderFilterResult(nodes=msgspec.Raw(nodes), failed_and_unresolvable_nodes=said)


async def _question(call: Call[Query]) -> tuple[Question, int]:
    """The question, and how many bytes it has."""
    raw = await read_body(call.request, LARGEST_QUESTION, call.serving.limits)
    return await _aside(len(raw), read_question, raw), len(raw)


async def _aside(size: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    if size > THREAD_BYTES:
        return await asyncio.to_thread(function, *args, **kwargs)
    return function(*args, **kwargs)


def _given(parts: Mapping[str, msgspec.Raw], name: str) -> bytes | None:
    part = parts.get(name)
    return None if part is None or bytes(part) == _NULL else bytes(part)


def _answer(view: object) -> web.Response:
    return web.Response(body=encode(view), content_type="application/json")
