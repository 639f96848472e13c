"""The service in the process of `flowsched run`, asked without HTTP: what a client does there, it does here."""

from __future__ import annotations

import pytest

from flowsched.cli.own_service import OwnService
from flowsched.client import Client, session
from flowsched.errors import FlowschedError, NotFound, Unavailable


class Waits:
    """A service whose database is away for the first question."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def document(self, workflow: str) -> bytes:
        self.asked.append(workflow)
        if len(self.asked) == 1:
            raise Unavailable("the database is locked")
        if workflow == "w2":
            raise NotFound("there is no workflow w2")
        return b"{}"


async def test_a_service_that_waits_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As over HTTP; a refusal is the service's own."""
    monkeypatch.setattr(session, "FIRST_WAIT_S", 0.01)
    service = Waits()
    client = Client(session=OwnService(service))  # type: ignore[arg-type]
    assert await client.document("w/1") == b"{}"
    assert service.asked == ["w/1", "w/1"]
    with pytest.raises(NotFound, match="there is no workflow w2"):
        await client.document("w2")


async def test_a_fault_of_the_service_is_an_error_as_over_http() -> None:
    """Not a traceback, and no other exit code: the log has the cause under a number."""

    class Broken:
        async def document(self, workflow: str) -> bytes:
            return {}[workflow]

    client = Client(session=OwnService(Broken()))  # type: ignore[arg-type]
    with pytest.raises(
        FlowschedError, match=r"Something broke inside flowsched; its log has the cause under [0-9a-f]{12}"
    ):
        await client.document("w")


async def test_a_service_that_starts_is_asked_for_as_long_as_over_http(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its database may be away for seconds: five attempts alone would be over before."""
    monkeypatch.setattr("flowsched.cli.own_service.back_off", lambda _: 0.001)
    monkeypatch.setattr(session, "START_S", 10.0)
    asked = 0

    class Starts:
        async def document(self, workflow: str) -> bytes:
            nonlocal asked
            asked += 1
            if asked < 20:
                raise Unavailable("the database is locked")
            return b"{}"

    assert await Client(session=OwnService(Starts())).document("w") == b"{}"  # type: ignore[arg-type]
    asked = 0
    monkeypatch.setattr(session, "START_S", 0.0)
    with pytest.raises(Unavailable):
        await Client(session=OwnService(Starts())).document("w")  # type: ignore[arg-type]
    assert asked == session.ATTEMPTS
