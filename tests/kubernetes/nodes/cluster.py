"""A real cluster on this machine: a control plane with all its parts, and two nodes with kubelets, each in namespaces of its own.

    with RealCluster() as cluster:
        cluster.load("samtools")
        cluster.kubectl("get", "pods", "--all-namespaces", "-o", "wide")

Several may run at once: each takes a free number, from which its names and addresses follow. All processes end with the one
that started them, however that ends; what they leave (a bridge, control groups, files) the next cluster of this number removes.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from flowsched.cluster.kubernetes.api.client import Connection
from tests.images import images_folder
from tests.kubernetes.hollow import binaries
from tests.kubernetes.hollow.controlplane import CONTROLLER_MANAGER, SCHEDULER, USERS, ControlPlane, User
from tests.kubernetes.nodes.machine import (
    CNI_PLUGINS,
    CONTAINERD,
    KUBELET,
    PROXY,
    Machine,
    Network,
    hierarchies,
)
from tests.programs import NotStarted

KUBECTL: Final = "kubectl"
NODES: Final = 2
#: How long one step of a test may take, in seconds: many times longer than on a quiet machine. A test may take twice as long.
PATIENCE_S: Final = 600
_COREDNS: Final = Path(__file__).parent / "coredns.yaml"
_NUMBERS: Final = 16
#: Built by `make kube-node`, then those that Debian has.
_BUILT: Final = (
    KUBELET,
    PROXY,
    CONTAINERD,
    "containerd-shim-runc-v2",
    "ctr",
    KUBECTL,
    SCHEDULER,
    CONTROLLER_MANAGER,
)
_INSTALLED: Final = ("runc", "iptables", "ip", "nsenter", "unshare", "sysctl")
_TRIAL: Final = "mount -t tmpfs none /mnt && ip link add flowsched type bridge"


def missing() -> str | None:
    """Why this machine can have no real nodes, in words; None if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "real nodes need Linux and root"
    if (why := binaries.missing(*_BUILT)) is not None:
        return why.replace("kube-assets", "kube-node")
    absent = [name for name in _INSTALLED if shutil.which(name) is None]
    absent += [str(CNI_PLUGINS / name) for name in ("bridge", "portmap") if not (CNI_PLUGINS / name).exists()]
    absent += [f"image {name}" for name in ("pause", "coredns") if not archive(name).is_file()]
    if absent:
        return f"no {', '.join(absent)}: run `make kube-node`"
    if not hierarchies("cgroup"):
        return "no control groups of version 1 are mounted, and real nodes were tried on no others"
    trial = ["unshare", "--net", "--mount", "--pid", "--uts", "--fork", "sh", "-c", _TRIAL]
    done = subprocess.run(trial, capture_output=True, text=True, timeout=60, check=False)
    return f"this machine forbids namespaces: {done.stderr.strip()}" if done.returncode else None


def archive(name: str) -> Path:
    """The file of an image that `make images` built."""
    return images_folder() / f"{name}.tar"


class RealCluster:
    """A control plane and its nodes, from `start` to `stop`. Start it from a thread that stays.

    Attributes:
        machines: The nodes, in the order of their names `node-0`, `node-1`.
        plane: The control plane.
        folder: Where everything lies; removed at the end.
    """

    def __init__(self) -> None:
        self._lock, number = _free_number()
        self.folder = Path(tempfile.gettempdir()) / f"flowsched-nodes-{number}"
        self.network = Network(number, NODES)
        machines = [
            Machine(each, self.network, self.folder / f"node-{each}", self._user) for each in range(NODES)
        ]
        self.machines = tuple(machines)
        nodes = {each.name: User(f"system:node:{each.name}", ("system:nodes",)) for each in machines}
        self.plane = ControlPlane(
            users={**USERS, **nodes, PROXY: User("system:kube-proxy")},
            disabled_admission=(),
            address=self.network.address,
            apiserver_flags=(
                "--enable-admission-plugins=NodeRestriction",
                "--endpoint-reconciler-type=lease",
            ),
        )
        self._loaded: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything; both nodes are Ready, and names are resolved.

        Raises:
            NotStarted: Something did not come up; the message has the end of its log.
        """
        try:
            self._sweep()
            self.folder.mkdir()
            self.network.lay()
            with asyncio.Runner() as runner:
                runner.run(self._control_plane())
            for machine in self.machines:
                machine.start()
            self.load("pause", "coredns")
            self.kubectl("apply", "-f", str(_COREDNS))
            self.kubectl("wait", "--for=condition=Ready", "node", "--all", f"--timeout={PATIENCE_S}s")
            self.kubectl(
                "-n", "kube-system", "rollout", "status", "deployment/coredns", f"--timeout={PATIENCE_S}s"
            )
        except NotStarted as error:
            tails = "\n".join(machine.tails() for machine in self.machines)
            self.stop()
            raise NotStarted(f"{error}\n{tails}") from error
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything, and leave nothing."""
        self.plane.stop()
        self._sweep()
        os.close(self._lock)

    def load(self, *names: str) -> None:
        """Bring images that `make images` built to every node, once."""
        wanted = [(machine, name) for machine in self.machines for name in names]
        new = [each for each in wanted if (each[0].name, each[1]) not in self._loaded]
        with ThreadPoolExecutor() as pool:
            for _ in pool.map(lambda each: each[0].import_image(archive(each[1])), new):
                pass
        self._loaded |= {(machine.name, name) for machine, name in new}

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout_s: float = PATIENCE_S + 60) -> str:
        """Run kubectl as the administrator.

        Raises:
            NotStarted: It failed; the message has its words.
        """
        done = subprocess.run(
            self.command(KUBECTL, *arguments), input=stdin, capture_output=True, text=True,
            timeout=timeout_s, check=False, env=self.environment,
        )  # fmt: skip
        if done.returncode:
            raise NotStarted(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        """What `kubectl get -o json` shows."""
        found: dict[str, Any] = json.loads(self.kubectl("get", *arguments, "-o", "json"))
        return found

    def command(self, name: str, *arguments: str) -> list[str]:
        """A command line of kubectl or helm; it needs `environment`."""
        return [str(binaries.find(name) or name), *arguments]

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables by which kubectl and helm find this cluster."""
        return {**os.environ, "KUBECONFIG": str(self.plane.kubeconfig())}

    @property
    def connection(self) -> Connection:
        """How a `Client` reaches it, as the administrator."""
        return self.plane.connection()

    async def _control_plane(self) -> None:
        await self.plane.start()
        await self.plane.controller_manager(
            ("*", "-nodeipam", "-cloud-node-lifecycle"),
            # Half a minute less than its own, so that tests of lost nodes need not wait so long.
            "--node-monitor-grace-period=20s",
        )
        await self.plane.scheduler()

    def _user(self, name: str) -> Path:
        return self.plane.kubeconfig(name)

    def _sweep(self) -> None:
        """Remove what a cluster of this number has left, this one or one that was killed."""
        for machine in self.machines:
            machine.stop()
        self.network.remove()
        subprocess.run(["rm", "-rf", self.folder], timeout=280, check=True)


def _free_number() -> tuple[int, int]:
    """An open file that is locked, and the number that it stands for."""
    for number in range(_NUMBERS):
        lock = os.open(
            f"{tempfile.gettempdir()}/flowsched-nodes-{number}.lock", os.O_CREAT | os.O_RDWR, 0o600
        )
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        return lock, number
    raise NotStarted(f"{_NUMBERS} clusters run on this machine already")
