"""A driver that hands out partitions of a job to executors, as Spark's does: here the k-mers of real reads.

The driver (MASTER_ADDR:MASTER_PORT) starts work once EXECUTORS of its executors have registered, gives each
the next partition whenever it is idle, adds up what comes back and lets the executors go. More executors
may register later, or never. A partition whose executor is lost is given to another one.

A k-mer and its reverse complement are the same piece of DNA, so the lesser of the two is counted.

    python spark_like.py driver | executor
"""

import gzip
import hmac
import json
import os
import socket
import sys
import threading
import time
from collections import Counter
from pathlib import Path

K = int(os.environ.get("K", "21"))
PARTITIONS = int(os.environ.get("PARTITIONS", "24"))
EXECUTORS = int(os.environ.get("EXECUTORS", "2"))
TIMEOUT_S = float(os.environ.get("RENDEZVOUS_TIMEOUT", "60"))
PARTITION_DELAY_S = float(os.environ.get("PARTITION_DELAY_MS", "100")) / 1000
DRIVER = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
TOKEN = os.environ["FLOWSCHED_GANG_TOKEN"]
COMPLEMENT = str.maketrans("ACGT", "TGCA")


class Connection:
    """One JSON value per line in both directions."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.lines = peer.makefile("rw")

    def send(self, value: object) -> None:
        self.lines.write(json.dumps(value) + "\n")
        self.lines.flush()

    def receive(self) -> dict:
        line = self.lines.readline()
        if not line:
            raise ConnectionError("the peer has closed the connection")
        return json.loads(line)


class Job:
    """The partitions still to do and what has been counted, shared by the threads of the driver.

    A partition is waiting, or with an executor, or done. A lost executor's goes back to the waiting ones.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.waiting = list(range(PARTITIONS))
        self.done: dict[str, int] = {}  # Partitions by executor.
        self.lost = 0
        self.registered = 0
        self.reads = 0
        self.counts: Counter[str] = Counter()

    def finished(self) -> bool:
        return sum(self.done.values()) == PARTITIONS

    def next_partition(self) -> int | None:
        """A partition to do, once enough executors are there; None when all are done."""
        with self.changed:
            self.changed.wait_for(lambda: self.finished() or (self.registered >= EXECUTORS and self.waiting))
            return None if self.finished() else self.waiting.pop(0)

    def serve(self, peer: socket.socket) -> None:
        """Keep one executor busy to the end of the job."""
        with peer:
            connection = Connection(peer)
            executor = greeted(connection)
            if executor is None:
                return
            with self.changed:
                self.registered += 1
                self.changed.notify_all()
            print(f"executor {executor} has come", flush=True)
            while (partition := self.next_partition()) is not None:
                try:
                    connection.send({"partition": partition, "of": PARTITIONS, "k": K})
                    result = connection.receive()
                except (OSError, ValueError):
                    with self.changed:
                        self.waiting.append(partition)
                        self.registered -= 1
                        self.lost += 1
                        self.changed.notify_all()
                    return
                with self.changed:
                    self.counts.update(result["counts"])
                    self.reads += result["reads"]
                    self.done[executor] = self.done.get(executor, 0) + 1
                    self.changed.notify_all()
            connection.send({"partition": None})


def greeted(connection: Connection) -> str | None:
    """The name of an executor that knows the gang's token, else None."""
    try:
        hello = connection.receive()
        return str(hello["executor"]) if hmac.compare_digest(str(hello["token"]), TOKEN) else None
    except (OSError, ValueError, KeyError):
        return None


def drive() -> None:
    """Accept executors until the job is done, then write the counts, the most frequent first."""
    job = Job()
    with socket.create_server(DRIVER) as listener:
        threading.Thread(target=accept, args=(listener, job), daemon=True).start()
        with job.changed:
            if not job.changed.wait_for(lambda: job.registered >= EXECUTORS, TIMEOUT_S):
                sys.exit(f"{job.registered} of {EXECUTORS} executors came within {TIMEOUT_S:g} s")
            job.changed.wait_for(job.finished)
        for thread in threading.enumerate():
            if thread.name == "executor":
                thread.join(1)

    ordered = sorted(job.counts.items(), key=lambda pair: (-pair[1], pair[0]))
    Path(os.environ["FLOWSCHED_OUTPUT_KMERS"]).write_text("".join(f"{kmer}\t{n}\n" for kmer, n in ordered))
    summary = {
        "reads": job.reads,
        "kmers": sum(job.counts.values()),
        "distinct": len(ordered),
        "most": ordered[0] if ordered else None,
        "partitions": PARTITIONS,
        "executors": len(job.done),
        "lost": job.lost,
    }
    Path(os.environ["FLOWSCHED_OUTPUT_SUMMARY"]).write_text(json.dumps(summary) + "\n")


def accept(listener: socket.socket, job: Job) -> None:
    """Give every executor that connects a thread. Ends with the process."""
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=job.serve, args=(peer,), name="executor", daemon=True).start()


def execute() -> None:
    """Register with the driver and count what it asks for, until it has nothing more."""
    with gzip.open(os.environ["FLOWSCHED_INPUT_READS"], "rt") as file:
        sequences = [line.split("\t")[9] for line in file]
    with connect() as peer:
        connection = Connection(peer)
        connection.send({"token": TOKEN, "executor": os.environ["FLOWSCHED_ADDRESS"]})
        while (partition := (task := connection.receive())["partition"]) is not None:
            first, end = (at * len(sequences) // task["of"] for at in (partition, partition + 1))
            time.sleep(PARTITION_DELAY_S)
            connection.send({"reads": end - first, "counts": kmers(sequences[first:end], task["k"])})


def connect() -> socket.socket:
    """Reach the driver, which may not have started yet."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return socket.create_connection(DRIVER)
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"waited {TIMEOUT_S:g} s for the driver in vain: {error}")
            time.sleep(0.05)


def kmers(sequences: list[str], k: int) -> Counter[str]:
    """How often each k-mer occurs, on either strand; those with an unread base do not count."""
    counts: Counter[str] = Counter()
    for sequence in sequences:
        for start in range(len(sequence) - k + 1):
            kmer = sequence[start : start + k]
            if set(kmer) <= set("ACGT"):
                counts[min(kmer, kmer.translate(COMPLEMENT)[::-1])] += 1
    return counts


if __name__ == "__main__":
    {"driver": drive, "executor": execute}[sys.argv[1]]()
