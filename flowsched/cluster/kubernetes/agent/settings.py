"""What a node agent is told at its start."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from flowsched.cluster.kubernetes.agent.guard import Guard
from flowsched.cluster.measuring import INTERVAL_S
from flowsched.cluster.origins import Origins
from flowsched.errors import ConfigurationError

PORT: Final = 8475
#: A key shorter than this could be guessed.
SHORTEST_KEY: Final = 16
#: How long logs and results are kept.
KEPT_DAYS: Final = 7.0
KEPT_LOG_BYTES: Final = 10 << 30


@dataclass(frozen=True, slots=True)
class Settings:
    """A node agent's settings.

    Args:
        node: Its node's name.
        key: The secret that the service and all agents share; see `keys` for what is derived from it.
        cache: The node's datasets. On one mount with `pods`, or nothing can be linked; link(2) minds the mount.
        pods: Where the kubelet has its pods' folders.
        logs: Where the kubelet has its pods' logs.
        state: What the agent remembers; beside the cache, on the same mount.
        kept_logs: Logs that outlive their pods.
        host, port: Where to listen; port 0 takes any free one.
        cache_bytes: How much the cache may hold; 0 = no limit. What is done about a full one is up to the service.
        disk_rate, nic_rate: Bytes/s; 0 = as fast as it goes.
        parallel: Transfers at a time.
        schemes: Of origins beside `file` that may be fetched from.
        roots: Folders of the node below which `file:` origins may lie.
        networks: Private ranges that HTTP origins may lie in; see `Guard`.
        copies: Copy inputs into pods, never link them: for nodes where SELinux is enforcing, since a runtime labels what lies
            in a pod's volume for that pod alone, and a linked file has one label for all.
        kept_days: How long logs and the results of pods are kept.
        kept_log_bytes: At most so much of them; the oldest go first. 0 = no limit.
        hold_s: How long a pod's step is kept waiting before it is told to ask again.
        heartbeat_s: How often a follower of events hears something.
        stall_s: A reader who takes nothing for so long is cut.
        sweep_s: How often the agent looks which pods are gone.
        host_root: Below which the host's /proc and /sys/fs/cgroup are, see `Meter`; None = nothing is measured.
        measure_s: How often the node's disk and network are measured.
    """

    node: str
    key: bytes = field(repr=False)
    cache: Path
    pods: Path
    logs: Path
    state: Path
    kept_logs: Path
    host: str = "127.0.0.1"
    port: int = PORT
    cache_bytes: int = 0
    disk_rate: int = 0
    nic_rate: int = 0
    parallel: int = 4
    schemes: frozenset[str] = frozenset({"http", "https", "s3"})
    roots: tuple[Path, ...] = ()
    networks: tuple[str, ...] = ()
    copies: bool = False
    kept_days: float = KEPT_DAYS
    kept_log_bytes: int = KEPT_LOG_BYTES
    hold_s: float = 20.0
    heartbeat_s: float = 10.0
    stall_s: float = 60.0
    sweep_s: float = 30.0
    host_root: Path | None = None
    measure_s: float = INTERVAL_S

    def __post_init__(self) -> None:
        """Refuse what cannot work.

        Raises:
            ConfigurationError: The key is too short, or a range is none.
        """
        if len(self.key) < SHORTEST_KEY or not self.key.isascii() or not self.key.decode().isprintable():
            raise ConfigurationError(
                f"the agents' key must have {SHORTEST_KEY} printable ASCII characters or more: `openssl rand -hex 32`"
            )
        for network in self.networks:
            try:
                ipaddress.ip_network(network)
            except ValueError as error:
                raise ConfigurationError(f"{network!r} is no range of addresses: {error}") from None

    @property
    def origins(self) -> Origins:
        """What may be fetched: by scheme, folder and address."""
        guarded = (("get_client", Guard(self.networks)),)
        return Origins(self.roots, self.schemes, options=(("http", guarded), ("https", guarded)))
