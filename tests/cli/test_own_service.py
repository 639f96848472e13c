"""The service in the process of `flowsched run`, asked without HTTP: what a client does there, it does here."""

from __future__ import annotations

import pytest

from flowsched.cli.own_service import OwnService
from flowsched.client import Client, session
from flowsched.errors import NotFound, Unavailable


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
