"""A document of a call gets the rank that a plan gives it: the leader orders by what the document says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

import msgspec

from flowsched.workflow.spec import Call, WorkflowSpec


class Ranks(Protocol):
    """Who knows ranks: `plans.PlanBook`."""

    async def rank_ms(self, call: Call, labels: Mapping[str, str]) -> int | None:
        """See `PlanBook.rank_ms`."""
        ...


async def with_rank(spec: WorkflowSpec, raw: bytes, known: Ranks) -> tuple[WorkflowSpec, bytes]:
    """The document with `call.rank_ms`, where it is a call that says none and a plan does; else as it is."""
    if spec.call is None or spec.call.rank_ms:
        return spec, raw
    rank = await known.rank_ms(spec.call, spec.labels)
    if not rank:
        return spec, raw
    document = msgspec.json.decode(raw)
    document["call"]["rank_ms"] = rank
    return replace(spec, call=replace(spec.call, rank_ms=rank)), msgspec.json.encode(document)
