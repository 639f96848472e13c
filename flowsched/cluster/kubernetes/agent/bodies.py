"""What comes in a request: bodies of bounded size that arrive in bounded time, and parameters."""

from __future__ import annotations

import asyncio
from typing import Final, TypeVar

import msgspec
from aiohttp import web

from flowsched.cluster.kubernetes.agent import orders

T = TypeVar("T")

LARGEST: Final = 16 << 20
#: Of what anybody may send: a pod's order, and what JSON makes of its quotes.
LARGEST_ASKING: Final = 2 * orders.LARGEST_TEXT + 4096
_ARRIVES_S: Final = 30.0


class BadRequest(Exception):
    """A request that cannot be understood: (status, message)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Source(msgspec.Struct, frozen=True):
    """Another agent."""

    node: str
    url: str


class Wanted(msgspec.Struct, frozen=True):
    """A dataset that shall come."""

    uri: str
    size_bytes: int = 0
    source: Source | None = None
    offset: int = 0
    whole: bool = True  #: else only `size_bytes` from `offset` on, of `version` if that is known
    version: str = ""


class Orders(msgspec.Struct, frozen=True):
    """POST /v1/transfers."""

    orders: list[Wanted]


class KeptPod(msgspec.Struct, frozen=True):
    """A pod whose logs shall stay."""

    namespace: str
    pod: str
    uid: str
    name: str = ""


class Keep(msgspec.Struct, frozen=True):
    """POST /v1/logs/keep."""

    pods: list[KeptPod]


class Asking(msgspec.Struct, frozen=True):
    """POST /v1/pods/{uid}/inputs and /outputs: the order as it was signed, and where the pod has the volume."""

    order: str
    signature: str
    inputs_path: str = "/flowsched/inputs"
    work_path: str = "/flowsched/work"
    delivered: str = ""  #: the files that a container task's pod has delivered itself, packed: told to whoever asks for its outputs


async def body_of(request: web.Request, kind: type[T], limit: int = LARGEST) -> T:
    """Read a request's body.

    Raises:
        BadRequest: It is too large, too slow, or no such thing.
    """
    if request.content_length is not None and request.content_length > limit:
        raise BadRequest(413, f"a body may have {limit} bytes at most")
    body = bytearray()
    try:
        async with asyncio.timeout(_ARRIVES_S):
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > limit:
                    raise BadRequest(413, f"a body may have {limit} bytes at most")
    except TimeoutError:
        raise BadRequest(408, f"the body did not arrive within {_ARRIVES_S:g} s") from None
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest(400, str(error)) from None


def uri_of(request: web.Request) -> str:
    """The dataset that a request is about.

    Raises:
        BadRequest: None is named.
    """
    uri = request.query.get("uri", "")
    try:
        orders.check_uri(uri)
    except orders.BadOrder as error:
        raise BadRequest(400, str(error)) from None
    return uri


def number_of(request: web.Request, name: str, default: int | None = None, most: int = 1 << 62) -> int:
    """A whole number from a request's parameters, not negative.

    Raises:
        BadRequest: It is no such number.
    """
    given = request.query.get(name)
    if given is None and default is not None:
        return default
    if given is None or not (given.isascii() and given.isdigit()) or len(given) > 19:
        raise BadRequest(400, f"{name} is to be a whole number")
    return min(int(given), most)
