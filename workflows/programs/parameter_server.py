"""Handwritten digits learned by 4 workers and 2 parameter servers, which must all run at the same time.

A small network (64 pixels, 48 hidden, 10 digits) is trained by synchronous gradient descent. Its parameters
lie in one vector, of which each server keeps a slice with its momentum. A worker pushes the gradient of its
next batch to both servers; a server waits for the gradients of all workers, adds them in the order of
ranks, so that equal seeds give equal results, takes the step and answers all of them with its new slice.

Nobody trains before all members have met at rank 0 (MASTER_ADDR:MASTER_PORT), and the wait ends after
RENDEZVOUS_TIMEOUT seconds with exit code 1. Under a scheduler without gangs, which starts some of the
members of several such groups, this is where all of them hang. A member lost in training ends the others
too.

    python parameter_server.py ps | worker

EPOCHS and STEP_DELAY_MS (a pause of the workers after each step, in place of a larger network's computing)
make a run longer or shorter; SEED chooses another one.
"""

import gzip
import hmac
import json
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

PIXELS, HIDDEN, DIGITS = 64, 48, 10
SIZE = PIXELS * HIDDEN + HIDDEN + HIDDEN * DIGITS + DIGITS
HELD_OUT = 5  # Every fifth of the 1,797 images is for testing.
BATCH = 24  # Images of one worker in one step.
RATE, MOMENTUM = 0.25, 0.9

EPOCHS = int(os.environ.get("EPOCHS", "8"))
STEP_DELAY_S = float(os.environ.get("STEP_DELAY_MS", "20")) / 1000
SEED = int(os.environ.get("SEED", "18507"))
TIMEOUT_S = float(os.environ.get("RENDEZVOUS_TIMEOUT", "60"))
RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
TOKEN = os.environ["FLOWSCHED_GANG_TOKEN"].encode()
OWN_ADDRESS = os.environ["FLOWSCHED_ADDRESS"]
ROLE_INDEX = int(os.environ["FLOWSCHED_ROLE_INDEX"])
MEETING = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
SERVERS = os.environ["FLOWSCHED_HOSTS_PS"].split(",")
WORKERS = os.environ["FLOWSCHED_HOSTS_WORKER"].split(",")
SERVICE_PORT = MEETING[1] + 1

Vector = NDArray[np.float64]


# Messages: four bytes of length, then that many bytes.


def send(peer: socket.socket, body: bytes) -> None:
    peer.sendall(struct.pack("!I", len(body)) + body)


def receive(peer: socket.socket) -> bytes:
    (length,) = struct.unpack("!I", receive_exactly(peer, 4))
    return receive_exactly(peer, length)


def receive_exactly(peer: socket.socket, length: int) -> bytes:
    parts = []
    while length:
        part = peer.recv(min(length, 1 << 20))
        if not part:
            raise ConnectionError("the peer has closed the connection")
        parts.append(part)
        length -= len(part)
    return b"".join(parts)


def listen(address: tuple[str, int]) -> socket.socket:
    return socket.create_server(address, backlog=64)


def dial(address: tuple[str, int], deadline: float) -> socket.socket:
    """Connect to a member which may not have started yet, and say who we are."""
    while True:
        try:
            peer = socket.create_connection(address, timeout=max(0.1, deadline - time.monotonic()))
            break
        except OSError as error:
            if time.monotonic() + 0.05 > deadline:
                raise TimeoutError(f"no answer from {address[0]}:{address[1]}: {error}") from error
            time.sleep(0.05)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    send(peer, TOKEN)
    send(peer, struct.pack("!I", RANK))
    return peer


def accept(listener: socket.socket, expected: set[int], deadline: float) -> dict[int, socket.socket]:
    """Wait until every expected rank has connected; strangers without the gang's token are turned away."""
    peers: dict[int, socket.socket] = {}
    while missing := expected - set(peers):
        listener.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            peer, _ = listener.accept()
            peer.settimeout(max(0.001, deadline - time.monotonic()))
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            known = hmac.compare_digest(receive(peer), TOKEN)
            rank = struct.unpack("!I", receive(peer))[0] if known else None
        except TimeoutError:
            raise TimeoutError(f"ranks {sorted(missing)} of {WORLD_SIZE} never came") from None
        except ConnectionError:
            continue
        if rank in missing:
            peers[rank] = peer
        else:
            peer.close()
    return peers


def rendezvous(deadline: float) -> None:
    """Return once all members of the gang run and have said so to rank 0."""
    with ExitStack() as stack:
        if RANK == 0:
            listener = stack.enter_context(listen(MEETING))
            peers = accept(listener, set(range(1, WORLD_SIZE)), deadline)
            for peer in peers.values():
                send(stack.enter_context(peer), b"all here")
        else:
            peer = stack.enter_context(dial(MEETING, deadline))
            peer.settimeout(max(0.001, deadline - time.monotonic()))
            receive(peer)


# The network.


def bounds(server: int) -> slice:
    """The slice of the parameter vector which a server keeps."""
    return slice(server * SIZE // len(SERVERS), (server + 1) * SIZE // len(SERVERS))


def initial_parameters() -> Vector:
    """The same on every member, so that nobody has to send them."""
    random = np.random.default_rng(SEED)
    first = random.normal(0, np.sqrt(2 / PIXELS), PIXELS * HIDDEN)
    second = random.normal(0, np.sqrt(2 / HIDDEN), HIDDEN * DIGITS)
    return np.concatenate([first, np.zeros(HIDDEN), second, np.zeros(DIGITS)])


def layers(parameters: Vector) -> tuple[Vector, Vector, Vector, Vector]:
    first, bias, second, last = np.split(parameters, np.cumsum([PIXELS * HIDDEN, HIDDEN, HIDDEN * DIGITS]))
    return first.reshape(PIXELS, HIDDEN), bias, second.reshape(HIDDEN, DIGITS), last


def digits() -> tuple[Vector, NDArray[np.intp]]:
    """The images, (1797, 64) from 0 to 1, and what they show."""
    with gzip.open(os.environ["FLOWSCHED_INPUT_DIGITS"], "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    return table[:, :-1] / 16, table[:, -1].astype(np.intp)


def gradient(parameters: Vector, images: Vector, labels: NDArray[np.intp]) -> tuple[float, Vector]:
    """The mean cross-entropy of a batch and its gradient."""
    first, bias, second, last = layers(parameters)
    hidden = np.maximum(images @ first + bias, 0)
    scores = hidden @ second + last
    scores -= scores.max(axis=1, keepdims=True)
    shares = np.exp(scores)
    shares /= shares.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    loss = -float(np.log(shares[rows, labels]).mean())

    shares[rows, labels] -= 1
    shares /= len(labels)
    back = (shares @ second.T) * (hidden > 0)
    parts = (images.T @ back, back.sum(axis=0), hidden.T @ shares, shares.sum(axis=0))
    return loss, np.concatenate([part.ravel() for part in parts])


def accuracy(parameters: Vector, images: Vector, labels: NDArray[np.intp]) -> float:
    first, bias, second, last = layers(parameters)
    guesses = (np.maximum(images @ first + bias, 0) @ second + last).argmax(axis=1)
    return float((guesses == labels).mean())


def batches(count: int) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Epoch and our share of the images of each step, in an order which all workers agree on."""
    random = np.random.default_rng(SEED)
    step = BATCH * len(WORKERS)
    for epoch in range(1, EPOCHS + 1):
        order = random.permutation(count)
        for start in range(0, count - step + 1, step):
            yield epoch, order[start + ROLE_INDEX * BATCH :][:BATCH]


# The roles.


def serve(deadline: float) -> None:
    """Keep a slice of the parameters until all workers say goodbye with an empty message."""
    with ExitStack() as stack:
        listener = stack.enter_context(listen((OWN_ADDRESS, SERVICE_PORT)))
        rendezvous(deadline)
        ranks = set(range(len(SERVERS), WORLD_SIZE))
        workers = [stack.enter_context(peer) for _, peer in sorted(accept(listener, ranks, deadline).items())]
        for worker in workers:
            worker.settimeout(TIMEOUT_S)
        part = initial_parameters()[bounds(ROLE_INDEX)]
        velocity = np.zeros_like(part)
        while all(pushed := [receive(worker) for worker in workers]):
            mean = sum(np.frombuffer(body) for body in pushed) / len(workers)
            velocity = MOMENTUM * velocity - RATE * mean
            part = part + velocity
            for worker in workers:
                send(worker, part.tobytes())


def work(deadline: float) -> None:
    """Train, and on worker 0 write what was learned and how well it does on images never seen."""
    images, labels = digits()
    test = np.arange(len(labels)) % HELD_OUT == 0
    test_images, test_labels, images, labels = images[test], labels[test], images[~test], labels[~test]
    rendezvous(deadline)
    with ExitStack() as stack:
        servers = [stack.enter_context(dial((address, SERVICE_PORT), deadline)) for address in SERVERS]
        for server in servers:
            server.settimeout(TIMEOUT_S)
        parameters, losses = initial_parameters(), []
        for epoch, batch in batches(len(labels)):
            loss, slope = gradient(parameters, images[batch], labels[batch])
            losses.append(loss)
            for index, server in enumerate(servers):
                send(server, slope[bounds(index)].tobytes())
            parameters = np.concatenate([np.frombuffer(receive(server)) for server in servers])
            if ROLE_INDEX == 0:
                print(f"epoch {epoch} step {len(losses)} loss {loss:.4f}", flush=True)
            time.sleep(STEP_DELAY_S)
        for server in servers:
            send(server, b"")

    if ROLE_INDEX == 0:
        report = {
            "accuracy": round(accuracy(parameters, test_images, test_labels), 4),
            "first_loss": round(losses[0], 4) if losses else None,
            "last_loss": round(losses[-1], 4) if losses else None,
            "steps": len(losses),
            "workers": len(WORKERS),
            "servers": len(SERVERS),
        }
        Path(os.environ["FLOWSCHED_OUTPUT_ACCURACY"]).write_text(json.dumps(report) + "\n")
        with open(os.environ["FLOWSCHED_OUTPUT_MODEL"], "wb") as file:
            np.save(file, parameters)


def main() -> None:
    role = {"ps": serve, "worker": work}[sys.argv[1]]
    try:
        role(time.monotonic() + TIMEOUT_S)
    except TimeoutError as error:
        sys.exit(f"rank {RANK}: waited {TIMEOUT_S:g} s for the gang in vain: {error}")
    except ConnectionError as error:
        sys.exit(f"rank {RANK}: another member of the gang was lost: {error}")


if __name__ == "__main__":
    main()
