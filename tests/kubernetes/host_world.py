"""A host's files, as a node agent finds them mounted: proc/diskstats, proc/1/net, proc/1/mountstats, sys/fs/cgroup."""

from __future__ import annotations

import os
from pathlib import Path

#: As a kernel writes them; the numbers that matter are filled in.
_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo: 139953805644 51315123 0 0 0 0 0 0 139953805644 51315123 0 0 0 0 0 0
  eth0: {came} 200606    0    0    0     0          0         0 {went}  121258    0    0    0     0       0          0
 cali1: 777777 9    0    0    0     0          0         0 888888  9    0    0    0     0       0          0
"""
ROUTE = """Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	010200C0	0003	0	0	0	00000000	0	0	0
cali1	0A000001	00000000	0005	0	0	0	FFFFFFFF	0	0	0
eth0	000200C0	00000000	0001	0	0	0	00FFFFFF	0	0	0
"""
_MOUNT = """device proc mounted on /proc with fstype proc
device nas:/lab mounted on /var/lib/kubelet/pods/p/volumes/kubernetes.io~nfs/lab with fstype nfs4 statvers=1.1
	opts:	rw,vers=4.2
	age:	86400
	bytes:	11 22 33 44 {read} {wrote} 7 8
	RPC iostats version: 1.1  p/v: 100003/4 (nfs)
"""


class Host:
    """Folders of a host whose numbers a test says.

    Args:
        root: The host's root.
        cache: A folder on the disk that is measured.
    """

    def __init__(self, root: Path, cache: Path) -> None:
        self.root = root
        device = os.stat(cache).st_dev
        self.device = f"{os.major(device)}:{os.minor(device)}"
        (root / "proc" / "1" / "net").mkdir(parents=True)
        (root / "proc" / "1" / "net" / "route").write_text(ROUTE)
        self.cgroup = root / "sys" / "fs" / "cgroup"
        self.cgroup.mkdir(parents=True)
        (self.cgroup / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
        self.disk(0)

    def disk(self, carried: int) -> None:
        """The disk has carried so many bytes (a multiple of 1,024): half were read."""
        major, minor = self.device.split(":")
        half = carried // 1024
        _write(self.root / "proc" / "diskstats", f" {major} {minor} sdq 1 0 {half} 9 1 0 {half} 9 0 9 9\n")

    def card(self, came: int, went: int) -> None:
        """So many bytes have come and gone."""
        _write(self.root / "proc" / "1" / "net" / "dev", _DEV.format(came=came, went=went))

    def mount(self, read: int, wrote: int) -> None:
        """An NFS mount has carried so many bytes."""
        _write(self.root / "proc" / "1" / "mountstats", _MOUNT.format(read=read, wrote=wrote))

    def pod(
        self, uid: str, read: int, wrote: int, cpu_ms: int = 0, driver: str = "systemd", memory: int = 0
    ) -> None:
        """A pod's control group has moved so many bytes, and holds so much memory beside 5 MB of files."""
        if driver == "systemd":
            above = self.cgroup / "kubepods.slice" / "kubepods-burstable.slice"
            folder = above / f"kubepods-burstable-pod{uid.replace('-', '_')}.slice"
        else:
            folder = self.cgroup / "kubepods" / "besteffort" / f"pod{uid}"
        folder.mkdir(parents=True, exist_ok=True)
        _write(
            folder / "io.stat",
            f"7:0 rbytes=5 wbytes=5 rios=1 wios=1 dbytes=0 dios=0\n"
            f"{self.device} rbytes={read} wbytes={wrote} rios=8 wios=9 dbytes=0 dios=0\n",
        )
        _write(folder / "memory.stat", f"anon {memory}\nfile 5000000\nkernel 9\nshmem 0\n")
        _write(folder / "cpu.stat", f"usage_usec {cpu_ms * 1000}\nuser_usec 1\nsystem_usec 2\n")


def _write(path: Path, text: str) -> None:
    """At once, as a kernel does: whoever reads it meanwhile reads all of it as it was."""
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(text)
    temporary.rename(path)
