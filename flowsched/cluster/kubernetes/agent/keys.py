"""The two keys of the node agents, derived from the one secret that the service and all agents share. Standard library alone.

    bearer    what the service and other agents send as `Authorization: Bearer`
    signing   the HMAC key of orders

The secret itself is sent to no one. A bearer that is read from a connection (agents speak plain HTTP inside the cluster) signs
no order, and neither key tells the other or the secret.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Final

_BEARER: Final = b"flowsched agents: bearer, 1"
_SIGNING: Final = b"flowsched agents: orders, 1"


def bearer_of(secret: bytes) -> str:
    """What a caller of an agent shows: 64 hexadecimal digits."""
    return hmac.new(secret, _BEARER, hashlib.sha256).hexdigest()


def signing_key_of(secret: bytes) -> bytes:
    """What orders are signed with."""
    return hmac.new(secret, _SIGNING, hashlib.sha256).digest()
