"""Which addresses may be fetched from: a user names the origin, and the agent's place in the network is not his.

Names are not looked at but the addresses that they turn out to have, at the moment of the connection: so neither a
redirect nor a name that changes its mind (DNS rebinding) gets past.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

#: Where clouds tell a node about itself, its credentials included. Some of them are ordinary public addresses.
METADATA: Final = frozenset(
    map(
        ipaddress.ip_address,
        (
            "169.254.169.254",  # AWS, Azure, Google, OpenStack, DigitalOcean …
            "169.254.170.2",  # AWS, of containers
            "169.254.170.23",  # AWS, of EKS pods
            "fd00:ec2::254",  # AWS
            "fd00:ec2::23",  # AWS, of EKS pods
            "fd20:ce::254",  # Google
            "100.100.100.200",  # Alibaba
            "168.63.129.16",  # Azure
            "192.0.0.192",  # Oracle
        ),
    )
)

#: IPv6 that carries an IPv4 address to a translator.
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class Forbidden(OSError):
    """An address that inputs may not come from."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Lets public addresses pass, and those in `networks`.

    Args:
        networks: Private ranges that origins may lie in. A metadata address must be named alone (/32, /128), since it
            lies in ranges that people open for other reasons.
    """

    networks: tuple[str, ...] = ()

    def check(self, host: str) -> None:
        """Let an address pass.

        Raises:
            Forbidden: It is neither public nor in one of the networks.
        """
        address = true_address(host)
        allowed = [network for network in self._networks() if address in network]
        if address in METADATA:
            passes = any(network.prefixlen == network.max_prefixlen for network in allowed)
        elif address.is_link_local:
            passes = any(network.is_link_local for network in allowed)
        else:
            public = address.is_global and not (address.is_multicast or address.is_reserved)
            passes = bool(allowed) or public
        if not passes:
            raise Forbidden(f"{host} is not an address that inputs may come from")

    def _networks(self) -> Sequence[Network]:
        return [ipaddress.ip_network(network) for network in self.networks]

    def socket_factory(self, info: tuple[Any, ...]) -> socket.socket:
        """Make the socket for one address that a name has; aiohttp asks before each connection."""
        family, kind, protocol, _, address = info
        self.check(address[0])
        return socket.socket(family, kind, protocol)

    async def __call__(self, **options: Any) -> Any:
        """Make fsspec's HTTP session, all of whose connections are looked at."""
        import aiohttp

        connector = aiohttp.TCPConnector(socket_factory=self.socket_factory)
        return aiohttp.ClientSession(connector=connector, **options)


def true_address(host: str) -> Address:
    """The address a connection would really go to: out of what IPv6 wraps it in."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return address.ipv4_mapped
        if address.sixtofour is not None:
            return address.sixtofour
        if address.teredo is not None:
            return address.teredo[1]
        if address in _NAT64:
            return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address
