"""What disks, network cards and shared storages were measured to carry: news for the engine, told by whoever can measure it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """Bytes/s at one place since the last measurement: a node's disk (by its name), one way of its network card (name/in,
    name/out), or a shared storage (name/read, name/write; by its `name` or its `source`).

    `ours`: what of `rate` is our pods', of a network card our copies'; -1 = nobody can tell.
    """

    name: str
    rate: int
    ours: int = -1


@dataclass(frozen=True, slots=True)
class LoadMeasured:
    """What disks and network cards of nodes and shared storages really carried. Told every few seconds by who can measure it."""

    nodes: tuple[Load, ...] = ()
    storages: tuple[Load, ...] = ()
    links: tuple[Load, ...] = ()
