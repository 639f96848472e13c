"""The two keys of the node agents, derived from the one secret that the service and all agents share. Standard library alone.

    bearer    the service and other agents send it as `Authorization: Bearer`
    signing   the HMAC key of orders

The service and the agents never send the secret itself. Agents speak plain HTTP inside the cluster, so an attacker may read the
bearer from a connection. The bearer signs no order, and neither key reveals the other or the secret.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

_BEARER: Final = b"flowsched agents: bearer, 1"
_SIGNING: Final = b"flowsched agents: orders, 1"


def bearer_of(secret: bytes) -> str:
    """The bearer token of an agent's callers: 64 hexadecimal digits."""
    return hmac.new(secret, _BEARER, hashlib.sha256).hexdigest()


def signing_key_of(secret: bytes) -> bytes:
    """The HMAC key that signs orders."""
    return hmac.new(secret, _SIGNING, hashlib.sha256).digest()
