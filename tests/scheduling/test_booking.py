"""What claims change: rows, sums, accounts, and what is left once they are undone."""

from __future__ import annotations

import random
from typing import Any

import pytest
from msgspec import structs

from flowsched.executor.nodes import ALIGNED, PLENTY, NodeInfo, Zone
from flowsched.scheduling.state.claims import Claim, ClaimKind
from flowsched.scheduling.state.snapshot import Snapshot
from flowsched.statement import Statement

GIB = 1 << 30
KINDS = (ClaimKind.STAGING, ClaimKind.RUNNING, ClaimKind.RELEASING, ClaimKind.NOMINATED)


def four_nodes() -> Snapshot:
    """Two of them with GPUs, one with a slow disk; the past of accounts is kept."""
    snapshot = Snapshot()
    for at in range(4):
        gpus = 2_000 if at < 2 else 0
        disk = 100 if at == 3 else 1_000
        snapshot.put_node(
            NodeInfo(f"n{at}", 16_000, 64 * GIB, gpu_millis=gpus, disk_rate=disk, extended={"x": 4})
        )
    snapshot.usage.begin(1_000, 64_000)
    return snapshot


def some_claims(rng: random.Random) -> list[Claim]:
    """Claims of all kinds; some say less than all axes, some hold GPUs, some are as another of the same owner was."""
    found = []
    for at in range(rng.randint(1, 12)):
        amount = (rng.randint(0, 3) * 500, rng.randint(0, 2) * GIB, 0)
        if rng.random() < 0.6:
            amount = (*amount, rng.choice((0, 0, 0, 500, 1_000)), rng.choice((0, 300)), rng.randint(0, 2))
        found.append(
            Claim(
                owner=f"p{at}",
                node=rng.randint(0, 3),
                amount=amount,
                kind=rng.choice(KINDS),
                queue=rng.choice("ab"),
                since_ms=at,
                until_ms=rng.choice((None, 90)),
                io_bytes=rng.choice((0, 10)),
                late_ms=rng.choice((None, 99)),
                unit=rng.choice(("", "u1", "u2")),
                priority=rng.randint(0, 1),
                qos=rng.randint(0, 2),
                started_ms=rng.choice((None, 5)),
                user=rng.choice(("", "ann")),
                direct=rng.choice(((), (("s/read", 7),))),
                learned=rng.choice((None, None, ("w", "s", 1_000))),
                elastic=rng.choice((None, (0, 1, 1))),
            )
        )
    return found


def seen(snapshot: Snapshot) -> list[Any]:
    """All that claims change."""
    ledger = snapshot.ledger
    columns = (
        "node",
        "amount",
        "devices",
        "since",
        "until",
        "late",
        "kind",
        "unit",
        "queue",
        "priority",
        "qos",
    )
    accounts = [(payer, snapshot.usage.of_payer(payer)) for payer in snapshot.usage.payers()]
    return [
        snapshot.used.tolist(),
        snapshot.staging.tolist(),
        snapshot.io_tasks.tolist(),
        snapshot.any_staging,
        snapshot.lowest_takeable,
        list(snapshot.claims.items()),
        list(ledger.owner),
        [getattr(ledger, name).tolist() for name in (*columns, "elastic", "started")],
        dict(snapshot.direct.rates),
        sorted(snapshot.direct.claims),
        [(name, list(snapshot.usage.of_queue(name))) for name in snapshot.usage.queues],
        [(payer, list(held)) for payer, held in accounts],
        snapshot.devices.free(4).tolist(),
    ]


def by_owner(state: list[Any]) -> list[Any]:
    """As `seen`, but for the order of claims and of accounts."""
    return [sorted(each, key=str) if number in (5, 10, 11) else each for number, each in enumerate(state)]


@pytest.mark.parametrize("seed", range(150))
def test_other_terms_of_a_claim_are_as_a_claim_anew(seed: int) -> None:
    """Its unit, priority, class and start: in rows and sums as if it had been made again; and all is undone."""
    rng = random.Random(seed)
    before = some_claims(rng)
    anew, on_other_terms = four_nodes(), four_nodes()
    for snapshot in (anew, on_other_terms):
        snapshot.claim_all(before, Statement())
    was = seen(on_other_terms)
    first, second = Statement(), Statement()
    held = [claim for claim in on_other_terms.claims.values() if claim.kind is not ClaimKind.STAGING]
    for claim in rng.choices(held, k=6) if held else ():
        fresh = structs.replace(
            anew.claims[claim.owner],
            unit=rng.choice(("", "u1", "u2", "u3")),
            priority=rng.randint(0, 1),
            qos=rng.randint(0, 2),
            started_ms=rng.choice((None, 7)),
            elastic=rng.choice((None, (0, 1, 1))),
        )
        anew.claim(fresh, first)
        on_other_terms.restake(fresh, second)
    assert by_owner(seen(on_other_terms)) == by_owner(seen(anew))
    first.rollback()
    second.rollback()
    assert by_owner(seen(on_other_terms)) == by_owner(seen(anew))
    assert by_owner(seen(on_other_terms))[:6] == by_owner(was)[:6]


def test_claims_of_one_look_are_rows_in_their_order() -> None:
    """Slots, units and sums as literals."""
    snapshot = four_nodes()
    statement = Statement()
    some = [
        Claim(f"p{at}", at % 2, (1_000, GIB, 0, 0, 0, 0), ClaimKind.RUNNING, "a", 5, 60, unit=f"u{at}")
        for at in range(4)
    ]
    snapshot.claim_all(some, statement)
    assert snapshot.used[:, 0].tolist() == [2_000, 2_000, 0, 0]
    assert snapshot.ledger.owner[:4] == ["p0", "p1", "p2", "p3"]
    assert snapshot.ledger.unit[:4].tolist() == [1, 2, 3, 4]
    assert snapshot.ledger.until[:4].tolist() == [60, 60, 60, 60]
    assert snapshot.queue_usage("a")[:2] == (4_000, 4 * GIB)
    statement.rollback()
    assert snapshot.used.sum() == 0
    assert snapshot.claims == {}
    assert snapshot.queue_usage("a")[:2] == (0, 0)


def test_claims_of_one_look_are_in_their_numa_zones() -> None:
    """Three zones of four cores, three pods of three in one look: no fourth finds room, though four cores more are free."""
    snapshot = Snapshot()
    zone = Zone({"cpu": 4_000}, {"cpu": 4_000})
    snapshot.put_node(NodeInfo("n0", 16_000, 64 * GIB, zones=(zone,) * 3, extended={ALIGNED: PLENTY}))
    three = (3_000, GIB, 0, 0, 0, 1)
    some = [Claim(f"p{at}", 0, three, ClaimKind.RUNNING, "a", 5, 60) for at in range(3)]
    assert snapshot.zones.most(three, 1).tolist() == [3]
    statement = Statement()
    snapshot.claim_all(some, statement)
    assert snapshot.zones.most(three, 1).tolist() == [0]
    statement.rollback()
    assert snapshot.zones.most(three, 1).tolist() == [3]
