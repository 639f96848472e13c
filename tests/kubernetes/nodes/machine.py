"""One real node: a containerd, a kubelet and a kube-proxy in network, mount and process namespaces of their own.

Killing the first process of its namespaces is a power cut: the kernel ends every process of the node, pods included, its
network cards and its mounts go, and what is on its disk stays. All of it also ends with the process that started it.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.kubernetes.hollow.binaries import find
from tests.programs import NotStarted, Program

CONTAINERD: Final = "containerd"
KUBELET: Final = "kubelet"
PROXY: Final = "kube-proxy"
#: In the order in which a node starts them.
PROGRAMS: Final = (CONTAINERD, KUBELET, PROXY)
CNI_PLUGINS: Final = Path("/usr/lib/cni")
DNS_ADDRESS: Final = "10.96.0.10"
PAUSE: Final = "localhost/flowsched-test/pause:1"

_SOCKET: Final = "/run/containerd/containerd.sock"
_START_S: Final = 240.0
#: What is in the node's folder and where the node sees it. /run is new at each boot, as it is on any machine.
_MOUNTS: Final = {
    "kubelet": "/var/lib/kubelet",
    "pods": "/var/log/pods",
    "containers": "/var/log/containers",
    "containerd": "/var/lib/containerd",
    "cni": "/etc/cni/net.d",
    "libcni": "/var/lib/cni",
}
#: The first process: it mounts, then adopts and reaps what the node's programs leave behind. The kubelet's folder is
#: shared, so that a volume that it mounts later is seen in containers that have the folder.
_INIT: Final = """
set -e
mount -t proc proc /proc
mount --make-rshared /
while [ $# -gt 1 ]; do mkdir -p "$2"; mount --bind "$1" "$2"; shift 2; done
mount --make-shared /var/lib/kubelet
mount -t tmpfs tmpfs /run
hostname "$1"
touch /run/booted
while :; do sleep 3600 & wait $!; done
"""


def hierarchies(*kinds: str) -> list[Path]:
    """Where the control groups are mounted; of version 1 the kind is `cgroup`, of version 2 `cgroup2`."""
    lines = Path("/proc/mounts").read_text(encoding="utf-8").splitlines()
    return [Path(parts[1]) for parts in map(str.split, lines) if parts[2] in kinds]


@dataclass(frozen=True, slots=True)
class Network:
    """The cable that a cluster's nodes share, and the addresses on it. `number` keeps clusters of one machine apart."""

    number: int
    nodes: int

    @property
    def bridge(self) -> str:
        """The end of all cables on this machine."""
        return f"fsk{self.number}"

    @property
    def address(self) -> str:
        """Where the control plane, and whatever else runs on this machine, is reached from the nodes."""
        return f"10.99.{self.number}.1"

    def node_address(self, node: int) -> str:
        """A node's own address."""
        return f"10.99.{self.number}.{10 + node}"

    def pods(self, node: int) -> str:
        """Whence a node's pods have theirs."""
        return f"10.88.{self.number * 8 + node}.0/24"

    def lay(self) -> None:
        """Make the bridge."""
        ip("link", "add", self.bridge, "type", "bridge")
        ip("addr", "add", f"{self.address}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")
        for node in range(self.nodes):
            ip("route", "replace", self.pods(node), "via", self.node_address(node))

    def remove(self) -> None:
        """Remove the bridge, with its routes."""
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True, timeout=30, check=False)


def ip(*arguments: str) -> None:
    """Run `ip`.

    Raises:
        NotStarted: It refused; the message has its words.
    """
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise NotStarted(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


@dataclass(slots=True)
class Machine:
    """A node, from `start` to `stop`. Every method belongs to the thread that started it.

    Attributes:
        number: Its place among the cluster's nodes.
        network: What it is plugged into.
        folder: Its disk.
        kubeconfig: The path of a kubeconfig by the user's name: this node's, and kube-proxy's.
    """

    number: int
    network: Network
    folder: Path
    kubeconfig: Callable[[str], Path]
    _programs: dict[str, Program] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """As in Kubernetes."""
        return f"node-{self.number}"

    @property
    def address(self) -> str:
        """Its own, on the cluster's network."""
        return self.network.node_address(self.number)

    @property
    def _cable(self) -> str:
        return f"{self.network.bridge}n{self.number}"

    @property
    def _cgroup(self) -> str:
        return f"{self.network.bridge}-{self.name}"

    # ---- power ----

    def start(self) -> None:
        """Boot it and start its programs; containerd answers, the kubelet registers by itself.

        Raises:
            NotStarted: The machine forbids it, or a program ended; the message has the end of its log.
        """
        self._write_files()
        self.boot()

    def boot(self) -> None:
        """Switch the power on: what its disk holds is still there."""
        self._make_cgroups()
        binds = [part for name, path in _MOUNTS.items() for part in (str(self.folder / name), path)]
        init = Program(
            [
                *(_tool("unshare"), "--net", "--mount", "--pid", "--uts", "--fork", "--kill-child"),
                *("--propagation", "slave", "bash", "-c", _INIT, "init", *binds, self.name),
            ],
            self.folder / "init.log",
        )
        self._programs["init"] = init
        init.start()
        self._wait(init, lambda: _child(init) is not None and (self._root() / "run/booted").exists())
        self._plug_in()
        for name in PROGRAMS:
            self.run_program(name)

    def power_cut(self) -> None:
        """Switch the power off, without a word to anything that runs."""
        init = self._programs["init"]
        pid = _child(init)
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
        init.wait()
        for program in self._programs.values():
            program.kill()
        self._programs = {}
        _until(lambda: not Path("/sys/class/net", self._cable).exists(), "the cable is gone")

    def stop(self) -> None:
        """Power off, and remove its control groups; its folder is the cluster's."""
        if "init" in self._programs:
            self.power_cut()
        self._remove_cgroups()

    # ---- programs ----

    def run_program(self, name: str) -> None:
        """Start one of `PROGRAMS`, unless it runs."""
        program = self._programs.get(name)
        if program is None or program.pid is None:
            inside = self._inside(*self._command(name))
            self._programs[name] = program = Program(inside, self.folder / f"{name}.log")
            program.start()
        if name == CONTAINERD:
            self._wait(program, lambda: self.ctr("version").returncode == 0)

    def signal_program(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send one of `PROGRAMS` a signal; after SIGKILL it is gone until `run_program`."""
        program = self._programs[name]
        pid = _child(program)
        if pid is None:
            raise NotStarted(f"{name} of {self.name} does not run: {program.tail()}")
        os.kill(pid, number)
        if number == signal.SIGKILL:
            program.wait()

    def run(self, *command: str, timeout_s: float = 240.0) -> subprocess.CompletedProcess[str]:
        """Run a command on the node, to its end."""
        return subprocess.run(
            self._inside(*command), capture_output=True, text=True, timeout=timeout_s, check=False
        )

    def ctr(self, *arguments: str, timeout_s: float = 480.0) -> subprocess.CompletedProcess[str]:
        """Run `ctr` on the node's containerd, in the kubelet's namespace."""
        return self.run(_tool("ctr"), "-a", _SOCKET, "-n", "k8s.io", *arguments, timeout_s=timeout_s)

    def import_image(self, archive: Path) -> None:
        """Bring an image from a file.

        Raises:
            NotStarted: containerd refused; the message has its words.
        """
        done = self.ctr("images", "import", "--local", str(archive), timeout_s=900)
        if done.returncode:
            raise NotStarted(f"{self.name}: {archive} was not imported: {done.stderr.strip()[-500:]}")

    def tails(self) -> str:
        """The ends of its programs' logs, for a test that failed."""
        return "\n".join(f"{self.name} {name}: {each.tail()}" for name, each in self._programs.items())

    # ---- the cable ----

    def unplug(self) -> None:
        """Cut the network between it and everything else; its pods run on."""
        ip("link", "set", self._cable, "down")

    def plug(self) -> None:
        """Mend the network."""
        ip("link", "set", self._cable, "up")

    # ---- within ----

    def _root(self) -> Path:
        return Path(f"/proc/{_child(self._programs['init'])}/root")

    def _inside(self, *command: str) -> list[str]:
        init = _child(self._programs["init"])
        return [_tool("nsenter"), "-t", str(init), "-m", "-n", "-p", "-u", "--", *command]

    def _wait(self, program: Program, ready: Callable[[], bool]) -> None:
        def running_and_ready() -> bool:
            program.check()
            return ready()

        _until(running_and_ready, f"{self.name} is up", lambda: program.tail())

    def _plug_in(self) -> None:
        init = str(_child(self._programs["init"]))
        ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", init)
        ip("link", "set", self._cable, "master", self.network.bridge, "up")
        lines = [
            f"ip addr add {self.address}/24 dev eth0",
            "ip link set eth0 up",
            "ip link set lo up",
            f"ip route add default via {self.network.address}",
            "sysctl -qw net.ipv4.ip_forward=1",
        ]
        for other in range(self.network.nodes):
            if other != self.number:
                where = self.network.node_address(other)
                lines.append(f"ip route add {self.network.pods(other)} via {where}")
        done = self.run("sh", "-ec", "\n".join(lines))
        if done.returncode:
            raise NotStarted(f"the network of {self.name}: {done.stderr.strip()}")

    def _command(self, name: str) -> Sequence[str]:
        if name == CONTAINERD:
            path = f"PATH={Path(_tool(CONTAINERD)).parent}:/usr/sbin:/usr/bin:/sbin:/bin"
            return ("env", path, _tool(CONTAINERD), "-c", str(self.folder / "containerd.toml"))
        if name == KUBELET:
            return (
                *(_tool(KUBELET), f"--config={self.folder / 'kubelet.json'}"),
                *(f"--kubeconfig={self.kubeconfig(self.name)}", "--root-dir=/var/lib/kubelet"),
                *(f"--hostname-override={self.name}", f"--node-ip={self.address}"),
                *("--cert-dir=/var/lib/kubelet/pki", "--v=2"),
            )
        # The host's limits of connection tracking are not the node's to change.
        return (
            *(_tool(PROXY), f"--kubeconfig={self.kubeconfig(PROXY)}", f"--hostname-override={self.name}"),
            *("--proxy-mode=iptables", "--conntrack-max-per-core=0"),
            *("--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"),
        )

    def _write_files(self) -> None:
        for name in _MOUNTS:
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "cni" / "10-flowsched.conflist").write_text(json.dumps(self._cni()))
        (self.folder / "containerd.toml").write_text(_CONTAINERD_TOML)
        (self.folder / "kubelet.json").write_text(json.dumps(self._kubelet()))

    def _cni(self) -> dict[str, Any]:
        subnet = {"type": "host-local", "ranges": [[{"subnet": self.network.pods(self.number)}]]}
        bridge = {"type": "bridge", "bridge": "cni0", "isDefaultGateway": True, "hairpinMode": True}
        plugins = [{**bridge, "ipMasq": False, "ipam": subnet}]
        plugins.append({"type": "portmap", "capabilities": {"portMappings": True}})
        return {"cniVersion": "1.0.0", "name": "flowsched", "plugins": plugins}

    def _kubelet(self) -> dict[str, Any]:
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._cgroup}",
            "enforceNodeAllocatable": ["pods"],
            "containerRuntimeEndpoint": f"unix://{_SOCKET}",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "address": self.address,
            "resolvConf": "",
            "clusterDNS": [DNS_ADDRESS],
            "clusterDomain": "cluster.local",
            "evictionHard": {
                "memory.available": "100Mi",
                "nodefs.available": "2%",
                "imagefs.available": "2%",
            },
            "imageGCHighThresholdPercent": 100,
            "oomScoreAdj": 0,
            "systemReserved": {"memory": "1Gi"},
            # A node that is gone is noticed after `node-monitor-grace-period`, in multiples of these.
            "nodeStatusUpdateFrequency": "4s",
            "nodeLeaseDurationSeconds": 16,
        }

    def _make_cgroups(self) -> None:
        self._remove_cgroups()
        for hierarchy in hierarchies("cgroup"):
            group = hierarchy / self._cgroup
            group.mkdir(exist_ok=True)
            if (group / "cpuset.cpus").exists():
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (group / name).write_text((hierarchy / name).read_text())

    def _remove_cgroups(self) -> None:
        for hierarchy in hierarchies("cgroup", "cgroup2"):
            _until(lambda group=hierarchy / self._cgroup: _removed(group), f"{hierarchy} is empty")


def _removed(group: Path) -> bool:
    """Whether a control group with all below it is gone; the last of a node's processes may still be in it."""
    for folder, _, _ in os.walk(group, topdown=False):
        try:
            os.rmdir(folder)
        except OSError:
            return False
    return True


def _child(program: Program) -> int | None:
    """The process that `unshare` or `nsenter` started in the node."""
    if program.pid is None:
        return None
    found = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
    return int(found[0]) if found else None


def _until(holds: Callable[[], bool], what: str, why: Callable[[], str] = lambda: "") -> None:
    end = time.monotonic() + _START_S
    while not holds():
        if time.monotonic() > end:
            raise NotStarted(f"not within {_START_S:g} s: {what}. {why()}")
        time.sleep(0.05)


def _tool(name: str) -> str:
    """The path of a program that `missing` has found."""
    found = find(name)
    return str(found) if found is not None else shutil.which(name) or name


_CONTAINERD_TOML: Final = f"""
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{_SOCKET}"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{PAUSE}"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{CNI_PLUGINS}"]
    conf_dir = "/etc/cni/net.d"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
[plugins.'io.containerd.internal.v1.opt']
  path = "/var/lib/containerd/opt"
"""
