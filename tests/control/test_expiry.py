"""What ended long ago is removed: rows, logs and datasets; what is young or alive stays."""

from __future__ import annotations

import json
from pathlib import Path

from flowsched.app import Settings, assembled, now_ms, running
from flowsched.control.expiry import Expiry

DOCUMENT = json.dumps(
    {
        "name": "one",
        "stages": [
            {
                "name": "write",
                "command": ["sh", "-c", "echo said; echo kept > out.txt"],
                "outputs": [{"name": "out", "path": "out.txt"}],
            }
        ],
    }
).encode()


async def ended(service: object, ident: str) -> None:
    async for _ in service.events(ident, 0):  # type: ignore[attr-defined]
        pass


async def test_an_old_workflow_leaves_nothing_and_a_young_one_stays(tmp_path: Path) -> None:
    """With a clock forty days ahead of the first workflow's end and just ahead of the second's."""
    settings = Settings(port=0, root=tmp_path, log_level="error", keep_days=0)
    async with running(settings) as up:
        service = up.service
        old = (await service.submit(DOCUMENT)).id
        await ended(service, old)
        between = now_ms() + 1
        young = (await service.submit(DOCUMENT)).id
        await ended(service, young)
        days = 30 * 86_400_000
        expiry = Expiry(
            service._database,
            service._leader.dispatcher,
            up.executor,
            keep_days=30,
            clock=lambda: between + days,
        )
        assert await expiry.once() == 1
        left = [view.id for view in (await service.list_workflows()).workflows]
        assert left == [young]
        logs, _ = await service.logs(young, "write", 0)
        assert logs == b"said\n"
        said = [path for path in tmp_path.rglob("*") if path.is_file() and path.read_bytes() == b"kept\n"]
        assert len(said) == 1
        assert await expiry.once() == 0


async def test_nothing_leads_before_it_is_asked_to(tmp_path: Path) -> None:
    """Assembling a service opens its database and starts no loop."""
    async with assembled(Settings(root=tmp_path, log_level="error")) as (service, leader, _, _):
        assert service.ready() == (False, "leader: waiting for the lease")
        assert leader.dispatcher is None
