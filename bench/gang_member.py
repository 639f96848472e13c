"""A member of a gang that really needs the others: they meet over TCP, share some work, and learn the sum from rank 0.

It counts primes below LIMIT: rank 0 waits until all ranks have come (MASTER_ADDR:MASTER_PORT, strangers without the
gang's token are turned away), then says so; each other rank counts those of its share, works on for WORK_S seconds as
if there were more, and tells its count; rank 0 adds them up and tells the sum to all, who print it. Whoever is
missing, nobody counts. PATIENCE_S ends the wait with exit code 1; without it a member waits for ever. Standard
library alone, so that a hundred of them start quickly.
"""

from __future__ import annotations

import hmac
import os
import socket
import sys
import time

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TOKEN = os.environ["FLOWSCHED_GANG_TOKEN"].encode()
MEETING = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
LIMIT = int(os.environ.get("LIMIT", "20000"))
WORK_S = float(os.environ.get("WORK_S", "0"))
PATIENCE_S = float(os.environ.get("PATIENCE_S", "inf"))


def count() -> int:
    """Primes of this rank's share of the numbers below LIMIT."""
    mine = range(2 + RANK - 1, LIMIT, WORLD_SIZE - 1)
    return sum(all(number % by for by in range(2, int(number**0.5) + 1)) for number in mine)


def lead(deadline: float) -> int:
    """Rank 0: gather all, then their counts."""
    files = {}
    with socket.create_server(MEETING, backlog=128) as listener:
        while len(files) < WORLD_SIZE - 1:
            listener.settimeout(None if deadline == float("inf") else max(0.001, deadline - time.monotonic()))
            peer, _ = listener.accept()
            peer.settimeout(10.0)
            file = peer.makefile("rwb", buffering=0)
            token, _, rank = file.readline().strip().partition(b" ")
            if hmac.compare_digest(token, TOKEN) and int(rank) not in files:
                peer.settimeout(None)
                files[int(rank)] = file
    for file in files.values():
        file.write(b"all here\n")
    total = sum(int(file.readline()) for file in files.values())
    for file in files.values():
        file.write(b"%d\n" % total)
    return total


def follow(deadline: float) -> int:
    """Any other rank: come, wait for the others, count, and learn the sum."""
    while True:
        try:
            peer = socket.create_connection(MEETING, timeout=5)
            break
        except OSError:
            if time.monotonic() > deadline:
                raise TimeoutError from None
            time.sleep(0.1)
    peer.settimeout(None if deadline == float("inf") else max(0.001, deadline - time.monotonic()))
    file = peer.makefile("rwb", buffering=0)
    file.write(b"%s %d\n" % (TOKEN, RANK))
    if file.readline() != b"all here\n":
        sys.exit(f"rank {RANK}: rank 0 was lost")
    peer.settimeout(None)
    mine = count()
    time.sleep(WORK_S)
    file.write(b"%d\n" % mine)
    return int(file.readline())


def main() -> None:
    """Meet, count, and say the sum."""
    deadline = time.monotonic() + PATIENCE_S
    try:
        total = lead(deadline) if RANK == 0 else follow(deadline)
    except TimeoutError:
        sys.exit(f"rank {RANK}: waited {PATIENCE_S:g} s for the others in vain")
    print(f"{total} primes below {LIMIT}", flush=True)


if __name__ == "__main__":
    main()
