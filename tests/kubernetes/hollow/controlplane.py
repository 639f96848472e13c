"""A real Kubernetes control plane on loopback, for tests, benches and the demo: etcd and kube-apiserver, and on demand
kube-scheduler and kube-controller-manager.

Its data is thrown away at the end, so etcd does not sync and everything is ended by SIGKILL: an API server that holds an
open watch would take a minute over a SIGTERM.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import secrets
import shutil
import signal
import ssl
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from flowsched.cluster.kubernetes.api.client import Connection
from tests.kubernetes.hollow.binaries import APISERVER, ETCD, find, missing
from tests.programs import NotStarted, Program, free_ports

__all__ = ["APISERVER", "CONTROLLER_MANAGER", "ETCD", "SCHEDULER", "ControlPlane", "User", "find", "missing"]

SCHEDULER: Final = "kube-scheduler"
CONTROLLER_MANAGER: Final = "kube-controller-manager"

_READY_S: Final = 120.0
_POLL_S: Final = 0.05
_STARTS: Final = 3
#: Of a Node's addresses the API server takes the first of these for `pods/log`; a hollow node's name resolves to nothing.
_NODE_ADDRESSES: Final = "InternalIP"


@dataclass(frozen=True, slots=True)
class User:
    """Somebody whom the API server knows by a token."""

    name: str
    groups: tuple[str, ...] = ()


def service_account(namespace: str, name: str) -> User:
    """The user that a pod with this service account is."""
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}")
    return User(f"system:serviceaccount:{namespace}:{name}", groups)


#: `scheduler` and `agent` may do what `deploy/` lets their service accounts do, once it is applied; `user` nothing.
USERS: Final[Mapping[str, User]] = {
    "admin": User("admin", ("system:masters",)),
    "scheduler": service_account("flowsched-system", "flowsched"),
    "agent": service_account("flowsched-system", "flowsched-agent"),
    "user": User("alice"),
}


class ControlPlane:
    """etcd and kube-apiserver from `async with` to its end; tests may kill, pause and restart parts of it.

    Args:
        native_podgroups: Serve `scheduling.k8s.io/v1alpha2` PodGroups, and let kube-scheduler place them as gangs.
        users: Who has a token, by the name that `connection` and `kubeconfig` take.
        disabled_admission: With ServiceAccount no pod gets in until a controller manager has made accounts; with
            TaintNodesByCondition each new Node is tainted until that manager says otherwise.
        apiserver_flags: More flags; the last of two equal ones counts.
        address: Where the API server listens; the nodes of other network namespaces do not reach loopback.
    """

    def __init__(
        self,
        *,
        native_podgroups: bool = False,
        users: Mapping[str, User] = USERS,
        disabled_admission: Sequence[str] = ("ServiceAccount", "TaintNodesByCondition"),
        apiserver_flags: Sequence[str] = (),
        address: str = "127.0.0.1",
    ) -> None:
        self._gates = {"GenericWorkload": True, "GangScheduling": True} if native_podgroups else {}
        self._native_podgroups = native_podgroups
        self._users = dict(users)
        self._tokens = {name: secrets.token_hex(16) for name in users}
        self._disabled = tuple(disabled_admission)
        self._flags = tuple(apiserver_flags)
        self._address = address
        self.folder = Path()
        self.programs: dict[str, Program] = {}
        self.url = ""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def start(self) -> None:
        """Start both and wait until they answer.

        Raises:
            NotStarted: A binary is missing, or one did not come up; the message has the end of its log.
        """
        why = missing()
        if why is not None:
            raise NotStarted(why)
        for left in reversed(range(_STARTS)):
            self._prepare()
            try:
                self.programs[ETCD].start()
                self.programs[APISERVER].start()
                await self.ready()
                return
            except NotStarted:  # somebody else may have taken a port meanwhile
                self.stop()
                if not left:
                    raise
            except BaseException:
                self.stop()
                raise

    def stop(self) -> None:
        """End everything and remove its data."""
        for program in self.programs.values():
            program.kill()
        if self.programs:
            shutil.rmtree(self.folder, ignore_errors=True)
        self.programs = {}

    def kill(self, name: str = APISERVER) -> None:
        """SIGKILL one of them; `restart_apiserver` or `programs[name].start()` brings it back."""
        self.programs[name].kill()

    def pause(self, name: str = APISERVER) -> None:
        """SIGSTOP: connections stay open and nothing answers."""
        self.programs[name].signal(signal.SIGSTOP)

    def resume(self, name: str = APISERVER) -> None:
        """SIGCONT."""
        self.programs[name].signal(signal.SIGCONT)

    async def restart_apiserver(self) -> None:
        """Kill it and start it anew: same port, same etcd, same certificate."""
        self.kill(APISERVER)
        self.programs[APISERVER].start()
        await self.ready()

    async def ready(self, within_s: float = _READY_S) -> None:
        """Wait until it serves, and until what it makes at its first start is there.

        Raises:
            NotStarted: It did not in this time, or one of them has ended.
        """
        await self._answers(self.url, ("/readyz", "/api/v1/namespaces/default"), (ETCD, APISERVER), within_s)

    async def openapi_ready(self, within_s: float = _READY_S) -> None:
        """Wait until `kubectl apply` can look its schemas up, which is some time after `ready`."""
        paths = ("/openapi/v3/api/v1", "/openapi/v3/apis/apps/v1", "/openapi/v2")
        await self._answers(self.url, paths, (ETCD, APISERVER), within_s)

    async def scheduler(
        self,
        *,
        qps: float = 5000,
        gates: Mapping[str, bool] | None = None,
        extenders: Sequence[Mapping[str, Any]] = (),
        profiles: Sequence[Mapping[str, Any]] = ({"schedulerName": "default-scheduler"},),
    ) -> Program:
        """Start the stock kube-scheduler and wait until it is ready.

        Args:
            qps: How many calls a second it allows itself; its own default is 50.
            gates: Feature gates, on top of those that native PodGroups need.
            extenders: `extenders` of its configuration: HTTP callbacks.
            profiles: `profiles` of its configuration.
        """
        config = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig()), "qps": qps, "burst": int(qps)},
            "leaderElection": {"leaderElect": False},
            "profiles": list(profiles),
            "extenders": list(extenders),
        }
        path = self.folder / "kube-scheduler.json"
        path.write_text(json.dumps(config))
        all_gates = {**self._gates, **(gates or {})}
        return await self._component(SCHEDULER, f"--config={path}", *_gate_flags(all_gates))

    async def controller_manager(
        self, controllers: Sequence[str] = ("*", "-nodeipam", "-cloud-node-lifecycle"), *flags: str
    ) -> Program:
        """Start kube-controller-manager and wait until it is ready.

        Args:
            controllers: Which; leave `node-lifecycle-controller` out where nodes have no heartbeats.
            flags: More of its flags.
        """
        return await self._component(
            CONTROLLER_MANAGER,
            f"--kubeconfig={self.kubeconfig()}",
            "--leader-elect=false",
            f"--service-account-private-key-file={self.folder / 'sa.key'}",
            f"--root-ca-file={self.certificate[0]}",
            f"--controllers={','.join(controllers)}",
            *flags,
        )

    @property
    def certificate(self) -> tuple[Path, Path]:
        """The API server's own certificate and key, also good for a hollow kubelet's port."""
        return self.folder / "certs" / "apiserver.crt", self.folder / "certs" / "apiserver.key"

    def connection(self, user: str = "admin", namespace: str = "default") -> Connection:
        """How a `Client` reaches it as one of its users."""
        headers = {"Authorization": f"Bearer {self._tokens[user]}"}

        async def provide() -> Mapping[str, str]:
            return headers

        return Connection(url=self.url, ssl=self._ssl(), headers=provide, namespace=namespace)

    def kubeconfig(self, user: str = "admin") -> Path:
        """A kubeconfig file of one of its users."""
        authority = base64.b64encode(self.certificate[0].read_bytes()).decode()
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {"name": "it", "cluster": {"server": self.url, "certificate-authority-data": authority}}
            ],
            "users": [{"name": user, "user": {"token": self._tokens[user]}}],
            "contexts": [{"name": user, "context": {"cluster": "it", "user": user, "namespace": "default"}}],
            "current-context": user,
        }
        path = self.folder / f"kubeconfig-{user}"
        descriptor, written = tempfile.mkstemp(dir=self.folder, prefix=path.name)  # of mode 0600
        with os.fdopen(descriptor, "w") as file:
            json.dump(document, file)  # JSON is YAML
        Path(written).replace(path)  # another thread's kubectl or helm may just be reading it
        return path

    def _prepare(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="flowsched-kube-"))
        client, peer, secure = free_ports(3)
        self.url = f"https://{self._address}:{secure}"
        (self.folder / "sa.key").write_text(_signing_key())
        tokens = (
            f'{self._tokens[key]},{user.name},{user.name},"{",".join(user.groups)}"'
            for key, user in self._users.items()
        )
        (self.folder / "tokens.csv").write_text("\n".join(tokens) + "\n")
        self._add(ETCD, _etcd_flags(self.folder, client, peer))
        self._add(APISERVER, [*self._apiserver_flags(client, secure), *self._flags])

    def _apiserver_flags(self, etcd_port: int, port: int) -> list[str]:
        groups = ["--runtime-config=scheduling.k8s.io/v1alpha2=true"] if self._native_podgroups else []
        return [
            f"--etcd-servers=http://127.0.0.1:{etcd_port}",
            f"--bind-address={self._address}",
            f"--advertise-address={self._address}",
            f"--secure-port={port}",
            f"--cert-dir={self.folder / 'certs'}",
            "--service-cluster-ip-range=10.96.0.0/16",
            f"--service-account-issuer={self.url}",
            f"--service-account-key-file={self.folder / 'sa.key'}",
            f"--service-account-signing-key-file={self.folder / 'sa.key'}",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged=true",
            f"--disable-admission-plugins={','.join(self._disabled)}",
            "--endpoint-reconciler-type=none",
            "--shutdown-delay-duration=0s",
            "--profiling=false",
            f"--kubelet-preferred-address-types={_NODE_ADDRESSES}",
            *_gate_flags(self._gates),
            *groups,
        ]

    def _add(self, name: str, flags: Sequence[str]) -> Program:
        binary = find(name)
        if binary is None:
            raise NotStarted(missing(name) or f"no {name}")
        self.programs[name] = Program([str(binary), *flags], self.folder / f"{name}.log")
        return self.programs[name]

    async def _component(self, name: str, *flags: str) -> Program:
        """Start a client of the API server that has /healthz on a port of its own."""
        if name in self.programs:
            self.programs[name].kill()
        port = free_ports(1)[0]
        kubeconfig = self.kubeconfig()
        program = self._add(
            name,
            [
                *flags,
                "--bind-address=127.0.0.1",
                f"--secure-port={port}",
                f"--authentication-kubeconfig={kubeconfig}",
                f"--authorization-kubeconfig={kubeconfig}",
            ],
        )
        program.start()
        await self._answers(f"https://127.0.0.1:{port}", ("/healthz",), (name,), _READY_S)
        return program

    async def _answers(
        self, url: str, paths: Sequence[str], programs: Sequence[str], within_s: float
    ) -> None:
        """Wait until each path has been answered by 200, while the programs live."""
        left = list(paths)
        end = time.monotonic() + within_s
        headers = {"Authorization": f"Bearer {self._tokens['admin']}"} if url == self.url else {}
        timeout = aiohttp.ClientTimeout(total=30.0)
        async with aiohttp.ClientSession(headers=headers, timeout=timeout) as session:
            while left:
                for name in programs:
                    self.programs[name].check()
                try:
                    # A component's certificate is its own affair; the API server's is the one that we know.
                    trusted = self._ssl() if url == self.url else False
                    async with session.get(url + left[0], ssl=trusted) as answer:
                        if answer.status == 200:
                            left.pop(0)
                            continue
                except (aiohttp.ClientError, OSError, TimeoutError):
                    pass
                if time.monotonic() > end:
                    logs = "; ".join(f"{name}: {self.programs[name].tail()}" for name in programs)
                    raise NotStarted(f"{left[0]} was not answered within {within_s:g} s: {logs}")
                await asyncio.sleep(_POLL_S)

    def _ssl(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.certificate[0]))


def _etcd_flags(folder: Path, client: int, peer: int) -> list[str]:
    here, there = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    return [
        "--name=one",
        f"--data-dir={folder / 'etcd'}",
        f"--listen-client-urls={here}",
        f"--advertise-client-urls={here}",
        f"--listen-peer-urls={there}",
        f"--initial-advertise-peer-urls={there}",
        f"--initial-cluster=one={there}",
        "--unsafe-no-fsync",
        "--quota-backend-bytes=4294967296",
        "--log-level=warn",
    ]


def _gate_flags(gates: Mapping[str, bool]) -> list[str]:
    said = ",".join(f"{name}={str(on).lower()}" for name, on in gates.items())
    return [f"--feature-gates={said}"] if said else []


def _signing_key() -> str:
    """A new ECDSA P-256 key as PEM (SEC 1), for service account tokens; the public half is left to its reader.

    A random number below 2^255 is below the curve's order, and one that is 0 does not come up.
    """
    number = (secrets.randbits(255)).to_bytes(32, "big")
    curve = bytes.fromhex("a00a06082a8648ce3d030107")  # [0] prime256v1
    key = b"\x30\x31\x02\x01\x01\x04\x20" + number + curve
    return f"-----BEGIN EC PRIVATE KEY-----\n{base64.b64encode(key).decode()}\n-----END EC PRIVATE KEY-----\n"
