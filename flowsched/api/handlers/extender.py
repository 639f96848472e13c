"""The extender of a stock kube-scheduler over HTTP: filter and prioritize (k8s.io/kube-scheduler/extender/v1).

Go writes and reads these documents without regard to the case of names, so we do, too. Values that flowsched does not
understand pass: nodes that it does not know stay in, and a list that is not there is not answered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Final, TypeVar

import msgspec

from flowsched.api.parameters import read_body
from flowsched.api.routes import Call, Query
from flowsched.aside import aside
from flowsched.errors import InvalidRequest, TooLarge
from flowsched.workflow.document.limits import Limits as DocumentLimits
from flowsched.workflow.json_pieces import Malformed, Span, Structure
from flowsched.workflow.views import encode

T = TypeVar("T")

#: Without `nodeCacheCapable` a question holds every node as an object: 5,000 of them are 10 to 30 MB.
LARGEST_QUESTION: Final = 64 << 20
#: A pod, or any member that flowsched does not know. etcd takes objects of 1.5 MiB.
LARGEST_OBJECT: Final = 2 << 20
#: Nodes of one question: ten times what Kubernetes is tested with.
MOST_NODES: Final = 50_000
#: Members of the question, and of its list of nodes: kube-scheduler writes three.
MOST_MEMBERS: Final = 100
LIMITS: Final = DocumentLimits(
    document_bytes=LARGEST_QUESTION, depth=100, objects=4_000_000, values=8_000_000
)
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


class Question(msgspec.Struct, frozen=True):
    """A question as it came.

    Args:
        raw: The whole question.
        pod: The object.
        names: Of all nodes asked about; None where no list was given.
        nodes: Where the list of objects stands in `raw`; None where there are only names.
        items: Where each object stands, in the order of `names`.
    """

    raw: bytes
    pod: bytes
    names: Sequence[str] | None
    nodes: Span | None = None
    items: Sequence[Span] = ()


class _Metadata(msgspec.Struct):
    name: str = ""


class _Object(msgspec.Struct):
    metadata: _Metadata = msgspec.field(default_factory=_Metadata)


_OBJECTS: Final = msgspec.json.Decoder(list[_Object])
_NAMES: Final = msgspec.json.Decoder(list[str])


async def filter_nodes(call: Call[Query]) -> bytes:
    """Which of these nodes the pod may have."""
    question = await _question(call)
    refused = await call.service.refused_nodes(question.pod)
    return await aside(len(question.raw), lambda: encode(filtered(question, refused)))


async def prioritize_nodes(call: Call[Query]) -> bytes:
    """Which of these nodes rather."""
    question = await _question(call)
    names = question.names or ()
    points = await call.service.node_scores(question.pod, names)

    def answer() -> bytes:
        return encode([HostPriority(name, score) for name, score in zip(names, points, strict=True)])

    return await aside(len(question.raw), answer)


def read_question(raw: bytes) -> Question:
    """Take a question apart, piece by piece. Of nodes only the names are read.

    Raises:
        InvalidRequest: It is none.
        TooLarge: It has too many nodes, or a part of it is too large.
    """
    structure = Structure(raw, LIMITS)
    try:
        parts = _members(structure, structure.whole, "the question")
        if "pod" not in parts:
            raise InvalidRequest("the question has no Pod")
        for name, part in parts.items():
            if name not in ("nodes", "nodenames"):
                _check_object(structure, part, name)
        pod, nodes, names = structure.text(parts["pod"]), parts.get("nodes"), parts.get("nodenames")
        if names is not None and structure.text(names) != _NULL:
            _check_list(structure, names)
            return Question(raw, pod, list(_read(structure, names, _NAMES)))
        if nodes is None or structure.text(nodes) == _NULL:
            return Question(raw, pod, None)
        items = _members(structure, nodes, "Nodes", lower=False).get("items")
        if items is None or structure.text(items) == _NULL:
            return Question(raw, pod, [], nodes)
        _check_list(structure, items)
        found = [each.metadata.name for each in _read(structure, items, _OBJECTS)]
        return Question(raw, pod, found, nodes, structure.entries(items))
    except Malformed:
        raise InvalidRequest(
            "not a question of a kube-scheduler: it is no JSON object of the right form"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"not a question of a kube-scheduler: {error}") from error


def _members(structure: Structure, span: Span, what: str, *, lower: bool = True) -> dict[str, Span]:
    """An object's members by name; by its small letters, as Go reads it."""
    if not structure.is_object(span):
        raise Malformed
    if structure.count(span) > MOST_MEMBERS:
        raise TooLarge(f"{what} has {structure.count(span):,} members; it may have {MOST_MEMBERS}")
    made = {}
    for entry in structure.entries(span):
        key, value = structure.member(entry)
        name = msgspec.json.decode(structure.text(key), type=str)
        made[name.lower() if lower else name] = value
    return made


def _check_object(structure: Structure, span: Span, name: str) -> None:
    """Refuse a member that is too large or is no JSON. It is read elsewhere, or not at all."""
    size = span.end - span.start
    if size > LARGEST_OBJECT:
        raise TooLarge(f"{name[:60]!r} has {size:,} bytes; it may have {LARGEST_OBJECT:,}")
    msgspec.json.decode(structure.text(span), type=msgspec.Raw)


def _check_list(structure: Structure, span: Span) -> None:
    """Refuse what is no list of nodes or names, or too long a list."""
    if structure.is_object(span):
        raise Malformed
    if structure.count(span) > MOST_NODES:
        raise TooLarge(f"the question has {structure.count(span):,} nodes; it may have {MOST_NODES:,}")


def _read(structure: Structure, span: Span, decoder: msgspec.json.Decoder[list[T]]) -> Iterator[T]:
    """The entries of a list, some at a time: a decoder keeps other threads waiting until it ends."""
    for piece, count in structure.pieces(span):
        found = decoder.decode(b"[" + structure.text(piece) + b"]")
        if len(found) != count:
            raise Malformed
        yield from found


def filtered(question: Question, refused: Mapping[str, str]) -> ExtenderFilterResult:
    """The answer: what is left of the nodes asked about, each as it came."""
    names = question.names
    if names is None:
        return ExtenderFilterResult()
    refusals = {name: refused[name] for name in names if name in refused}
    if question.nodes is None:
        passed = [name for name in names if name not in refusals]
        return ExtenderFilterResult(node_names=passed, failed_and_unresolvable_nodes=refusals)
    raw = question.raw
    nodes = raw[question.nodes.start : question.nodes.end]
    if refusals:
        left = [
            raw[at.start : at.end]
            for name, at in zip(names, question.items, strict=True)
            if name not in refusals
        ]
        nodes = b'{"metadata":{},"items":[' + b",".join(left) + b"]}"
    return ExtenderFilterResult(nodes=msgspec.Raw(nodes), failed_and_unresolvable_nodes=refusals)


async def _question(call: Call[Query]) -> Question:
    raw = await read_body(call.request, LARGEST_QUESTION, call.serving.limits)
    return await aside(len(raw), read_question, raw)
