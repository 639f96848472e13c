"""A divisible bundle of resources laid onto nodes: what `min_resources` asks for beyond the pods that exist."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from flowsched.scheduling.placement import Ints
#: Parts of a divisible bundle are counted in these; rounding favours the gang by less than one part per node.
MILLION: Final = 1_000_000


def bundle_on(left: Sequence[Ints], rest: Sequence[int], allowed: NDArray[np.bool_]) -> list[Ints] | None:
    """Spread a bundle over nodes in index order, in millionths; None if there is not room for all of it."""
    if max(rest, default=0) <= 0:
        return [np.zeros_like(have) for have in left]
    parts = np.where(allowed, MILLION, 0)
    for have, amount in zip(left, rest, strict=True):
        if amount > 0:
            shift = max(0, amount.bit_length() - 40)  # keeps the product below 2 ** 63
            share = np.clip(have, 0, amount) >> shift
            parts = np.minimum(parts, -(-share * MILLION // (amount >> shift)))
    before = np.cumsum(parts) - parts
    parts = np.clip(MILLION - before, 0, parts)
    if int(parts.sum()) < MILLION:
        return None
    laid = []
    for have, amount in zip(left, rest, strict=True):
        whole, more = divmod(max(amount, 0), MILLION)  # the product itself may have more than 64 bits
        laid.append(np.minimum(np.maximum(have, 0), parts * whole - (-parts * more // MILLION)))
    return laid
