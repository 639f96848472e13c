"""Metrics of a node agent in Prometheus' text format: its cache, its transfers, and the load of its disk and network card."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from flowsched.cluster.kubernetes.agent.agent import Agent
from flowsched.cluster.kubernetes.agent.streams import Streams
from flowsched.version import VERSION

#: Name without its prefix, help text, value.
Sample = tuple[str, str, int]


async def text(agent: Agent, streams: Streams) -> str:
    """All of them. One without labels each, but for the version."""
    pages = [(uid, agent.ledger.page(uid)) for uid, _ in agent.ledger.pods()]
    unpublished = [uid for uid, page in pages if page is not None and page.outcome is None]
    pods = await asyncio.to_thread(lambda: sum(map(agent.volumes.has, unpublished)))
    lines = [
        "# HELP flowsched_agent_build_info The version of this agent.\n"
        "# TYPE flowsched_agent_build_info gauge\n"
        f'flowsched_agent_build_info{{version="{VERSION}"}} 1\n'
    ]
    for short, about, value in (*_samples(agent, streams), ("pods", _PODS, pods)):
        name = f"flowsched_agent_{short}"
        kind = "counter" if name.endswith("_total") else "gauge"
        lines.append(f"# HELP {name} {about}\n# TYPE {name} {kind}\n{name} {value}\n")
    return "".join(lines)


_PODS = "Pods of tasks on this node: their inputs were asked for, and their outputs are not published yet."


def _samples(agent: Agent, streams: Streams) -> Iterator[Sample]:
    cache, coming, settings = agent.cache, agent.transfers, agent.settings
    yield "cache_bytes", "Bytes of the datasets in the cache.", cache.used_bytes
    yield "cache_limit_bytes", "Bytes that the cache may hold; 0 = no limit.", cache.limit_bytes
    yield "cache_datasets", "Datasets in the cache.", len(cache.entries)
    yield "cache_partial_datasets", "Datasets of which only pieces are there.", len(cache.partials.all)
    yield (
        "cache_partial_bytes",
        "Bytes that these will take when they are whole.",
        cache.partials.reserved_bytes,
    )
    yield "evicted_datasets_total", "Datasets that were removed to make room.", agent.evicted_datasets
    yield "evicted_bytes_total", "Bytes of those datasets.", agent.evicted_bytes
    yield "received_bytes_total", "Bytes that copies brought here.", coming.in_bytes
    yield "sent_bytes_total", "Bytes that other agents and the service read here.", agent.out_bytes
    yield "transfers_done_total", "Copies to this node that ended well.", coming.done
    yield "transfers_failed_total", "Copies to this node that failed.", coming.failed
    yield "pieces_done_total", "Of the copies that ended well, those of pieces.", coming.pieces
    yield "transfers_waiting", "Copies that are under way, or wait for their turn.", coming.waiting
    yield "readers", "Readers of datasets now.", streams.readers
    yield (
        "followers",
        "Services that follow this agent's events now: 1 while the leader is connected.",
        streams.followers,
    )
    yield (
        "follows_total",
        "How often a service began to follow: more than once is a reconnect.",
        streams.follows,
    )
    yield (
        "disk_rate_bytes_per_second",
        "Bytes/s that copies may use of the disk; 0 = no limit.",
        settings.disk_rate,
    )
    yield (
        "network_rate_bytes_per_second",
        "Bytes/s that copies may use of the network card; 0 = no limit.",
        settings.nic_rate,
    )
    measured = agent.measured
    yield (
        "disk_bytes_total",
        "Bytes that the node's disk carried for all programs; 0 where it is not measured.",
        measured.disk_bytes,
    )
    yield (
        "network_received_bytes_total",
        "Bytes that came over the node's network card for all programs.",
        measured.came_bytes,
    )
    yield (
        "network_sent_bytes_total",
        "Bytes that went over the node's network card for all programs.",
        measured.went_bytes,
    )
