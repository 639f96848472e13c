"""Misbehaving on purpose: rules that look at a request before, or instead of, or after its handling."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from tests.kubernetes.fake.replies import status_body
from tests.kubernetes.fake.requests import Request

Match: TypeAlias = Callable[[Request], bool]
#: What is answered in place of the truth: (status, body, headers). None: let it pass.
Rule: TypeAlias = Callable[[Request], tuple[int, bytes, Mapping[str, str]] | None]


def when(verb: str | None = None, resource: str | None = None, name: str | None = None) -> Match:
    """Requests of a verb, on a resource ("pods/binding"), of a name; what is not given does not matter."""

    def matches(request: Request) -> bool:
        return (
            (verb is None or request.verb == verb)
            and (resource is None or request.resource == resource)
            and (name is None or request.name == name)
        )

    return matches


def answering(match: Match, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> Rule:
    """The same answer to all such requests."""
    return lambda request: (status, body, headers or {}) if match(request) else None


def too_many(match: Match, retry_after_s: int = 1) -> Rule:
    """429, as priority and fairness answers when a queue is full."""
    body = status_body(429, "too many requests, please try again later")
    return answering(match, 429, body, {"Retry-After": str(retry_after_s)})


def over_quota(match: Match, quota: str = "pods") -> Rule:
    """403, as a ResourceQuota that is used up."""

    def refuses(request: Request) -> tuple[int, bytes, Mapping[str, str]] | None:
        if not match(request):
            return None
        name = (msgspec.json.decode(request.body).get("metadata") or {}).get("name", "")
        why = f"exceeded quota: {quota}, requested: pods=1, used: pods=2, limited: pods=2"
        about = {"name": name, "kind": request.plural}
        return 403, status_body(403, f'{request.plural} "{name}" is forbidden: {why}', details=about), {}

    return refuses


def webhook_denies(match: Match, message: str, status: int = 400, webhook: str = "check.example.com") -> Rule:
    """A validating webhook that says no, with the status it chooses."""
    told = f'admission webhook "{webhook}" denied the request: {message}'
    return answering(match, status, status_body(status, told, reason="" if status == 400 else None))


def webhook_fails(match: Match, webhook: str = "check.example.com") -> Rule:
    """500: a webhook whose failure policy is Fail cannot be reached."""
    why = f'Internal error occurred: failed calling webhook "{webhook}": failed to call webhook: context deadline exceeded'
    return answering(match, 500, status_body(500, why))


def database_full(match: Match) -> Rule:
    """500: etcd has no space left."""
    return answering(match, 500, status_body(500, "etcdserver: mvcc: database space exceeded", reason=""))


@dataclass(slots=True)
class Gate:
    """Where a request stands until somebody lets it pass.

    Attributes:
        open: Let it pass.
        passed: It has been carried out.
    """

    match: Match
    taken: bool = False
    open: asyncio.Event = field(default_factory=asyncio.Event)
    passed: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(slots=True)
class Faults:
    """What goes wrong at present. Nothing at first.

    `times` limits how often something goes wrong; 0 = for ever.

    Attributes:
        rules: Asked in order; the first that answers, answers.
        lines: What becomes of the lines that a watch is told.
    """

    rules: list[Rule] = field(default_factory=list)
    lines: Callable[[Request, list[bytes]], list[bytes]] | None = None
    _lost: list[tuple[Match, list[int]]] = field(default_factory=list)
    _dropped: list[tuple[Match, list[int]]] = field(default_factory=list)
    _delays: list[tuple[Match, list[int], float]] = field(default_factory=list)
    _gates: list[Gate] = field(default_factory=list)

    def refuse(self, rule: Rule, times: int = 0) -> None:
        """Add a rule."""
        left = [times]

        def counted(request: Request) -> tuple[int, bytes, Mapping[str, str]] | None:
            if times and not left[0]:
                return None
            found = rule(request)
            if found is not None:
                left[0] -= 1
            return found

        self.rules.append(counted)

    def lose(self, match: Match, times: int = 1) -> None:
        """Carry such requests out, then break the connection instead of answering."""
        self._lost.append((match, [times]))

    def drop(self, match: Match, times: int = 1) -> None:
        """Break the connection of such requests, and do nothing."""
        self._dropped.append((match, [times]))

    def delay(self, match: Match, seconds: float, times: int = 0) -> None:
        """Handle such requests later."""
        self._delays.append((match, [times or -1], seconds))

    def hold(self, match: Match) -> Gate:
        """Handle the first such request when its gate is opened."""
        self._gates.append(Gate(match))
        return self._gates[-1]

    def clear(self) -> None:
        """All is well again."""
        self.rules.clear()
        self._lost.clear()
        self._dropped.clear()
        self._delays.clear()
        self.lines = None

    def gate(self, request: Request) -> Gate | None:
        """Where this request has to wait."""
        for gate in self._gates:
            if not gate.taken and gate.match(request):
                gate.taken = True
                return gate
        return None

    def answer(self, request: Request) -> tuple[int, bytes, Mapping[str, str]] | None:
        """What is answered in place of the truth."""
        return next((found for rule in self.rules if (found := rule(request)) is not None), None)

    def loses(self, request: Request) -> bool:
        """Whether this answer is lost."""
        return _counted(self._lost, request)

    def drops(self, request: Request) -> bool:
        """Whether this request is lost."""
        return _counted(self._dropped, request)

    def delay_s(self, request: Request) -> float:
        """How long this request waits."""
        for match, left, seconds in self._delays:
            if left[0] and match(request):
                left[0] -= 1
                return seconds
        return 0.0


def _counted(rules: list[tuple[Match, list[int]]], request: Request) -> bool:
    for match, left in rules:
        if left[0] and match(request):
            left[0] -= 1
            return True
    return False


def duplicated(request: Request, lines: list[bytes]) -> list[bytes]:
    """Every event twice."""
    return [each for line in lines for each in (line, line)]


class Shuffled:
    """Events out of order, and old ones again after newer ones."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._told: list[bytes] = []

    def __call__(self, request: Request, lines: list[bytes]) -> list[bytes]:
        """Disturb some lines."""
        again = [line for line in self._told[-20:] if self._random.random() < 0.3]
        self._told += lines
        mixed = lines + again
        self._random.shuffle(mixed)
        return mixed


class Spoiled:
    """Between good events some that nobody can read: `{"type":"MODIFIED","object":{"metadata":7}}`, half a line, noise."""

    RUBBISH = (
        b'{"type":"MODIFIED","object":{"metadata":7}}\n',
        b'{"type":"ADDED","object":{"kind":"Pod","metadata":\n',
        b"\x00\xff nothing\n",
        b'{"type":"SOMETHING","object":{}}\n',
        b'{"object":{}}\n',
        b"[]\n",
    )

    def __init__(self) -> None:
        self.told = 0

    def __call__(self, request: Request, lines: list[bytes]) -> list[bytes]:
        """Put rubbish before each line."""
        spoiled: list[bytes] = []
        for line in lines:
            spoiled += [self.RUBBISH[self.told % len(self.RUBBISH)], line]
            self.told += 1
        return spoiled
