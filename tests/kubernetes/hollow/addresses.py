"""Loopback addresses for nodes and pods, so that a gang on one machine talks over as many addresses as it has members.

All of 127/8 is this machine on Linux; elsewhere only 127.0.0.1 is, and hollow nodes in exec mode need Linux. A service in a
pod must listen on the pod's address (`status.podIP`), as all pods share the machine's other ones.
"""

from __future__ import annotations

import ipaddress
import random
import re
import socket
from typing import Final

_FIRST: Final = int(ipaddress.IPv4Address("127.96.0.0"))
_BLOCKS: Final = 64
_BLOCK: Final = 1 << 15  # addresses of one process: 64 of them make 127.96.0.0/11
_NODES: Final = 12_288  # of these for nodes, the rest for pods
#: Whoever listens on this port of a block's first address has the block.
_CLAIM_PORT: Final = 8474

#: A member of a headless service: <hostname>.<subdomain>.<namespace>.svc, with or without the cluster's domain.
_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_MEMBER: Final = re.compile(
    rf"(?<![-.a-z0-9])({_LABEL})\.({_LABEL})\.({_LABEL})\.svc(?:\.cluster\.local)?(?![-.a-z0-9])"
)


class NoAddresses(Exception):
    """No address is left, or this machine has none but 127.0.0.1."""


class Addresses:
    """A block of addresses that no other hollow process on this machine uses meanwhile."""

    def __init__(self) -> None:
        self._claim, self._base = _claimed()
        self._nodes = self._pods = 0
        self._named: dict[tuple[str, str, str], str] = {}

    def close(self) -> None:
        """Let others have the block."""
        self._claim.close()

    def node(self) -> str:
        """The address of one more node."""
        self._nodes += 1
        if self._nodes >= _NODES:
            raise NoAddresses(f"{_NODES - 1} hollow nodes have addresses; there are no more")
        return str(ipaddress.IPv4Address(self._base + self._nodes))

    def pod(self, namespace: str, subdomain: str, hostname: str) -> str:
        """The address of a pod: one more, or the one that others of its gang know already by its name.

        An unnamed pod's address comes up again after some 20,000 other pods.
        """
        if not subdomain:
            return self._next()
        key = (namespace, subdomain, hostname)
        if key not in self._named:
            self._named[key] = self._next()
        return self._named[key]

    def resolved(self, text: str) -> str:
        """The text with every gang member's name replaced by its address, whether it runs yet or not."""
        return _MEMBER.sub(lambda found: self.pod(found[3], found[2], found[1]), text)

    def _next(self) -> str:
        held = set(self._named.values())
        for _ in range(_BLOCK - _NODES):
            address = str(ipaddress.IPv4Address(self._base + _NODES + self._pods % (_BLOCK - _NODES - 1)))
            self._pods += 1
            if address not in held:
                return address
        raise NoAddresses("all addresses of pods belong to members of gangs")


def _claimed() -> tuple[socket.socket, int]:
    """A block and the socket that says so."""
    blocks = list(range(_BLOCKS))
    random.SystemRandom().shuffle(blocks)
    for number in blocks:
        base = _FIRST + number * _BLOCK
        claim = socket.socket()
        try:
            claim.bind((str(ipaddress.IPv4Address(base)), _CLAIM_PORT))
            claim.listen(1)
        except OSError:
            claim.close()
            continue
        return claim, base
    raise NoAddresses("no block of 127.96.0.0/11 is free; only Linux has these addresses")
