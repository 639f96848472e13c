"""kubectl, helm, and a real API server in which deploy/'s namespaces and definitions are."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowsched.cluster.kubernetes.api.client import Connection
from tests.deploy.rendering import BASE, DEPLOY, VOLCANO_CRDS
from tests.kubernetes.hollow.binaries import find, missing
from tests.kubernetes.hollow.controlplane import ControlPlane
from tests.programs import NotStarted


def _needed(why: str) -> None:
    """End this test: a skip on a laptop, a failure in CI."""
    if os.environ.get("FLOWSCHED_REQUIRE_KUBE") == "1":
        pytest.fail(f"FLOWSCHED_REQUIRE_KUBE=1, but: {why}", pytrace=False)
    pytest.skip(why)


def _binary(name: str, made_by: str = "kube-assets") -> str:
    found = find(name)
    if found is None:
        _needed(f"no {name}: run `make {made_by}`")
    return str(found)


@pytest.fixture(scope="session")
def kubectl() -> str:
    return _binary("kubectl")


@pytest.fixture(scope="session")
def helm() -> str:
    return _binary("helm")


@pytest.fixture(scope="session")
def promtool() -> str:
    return _binary("promtool", "promtool")


class Cluster:
    """A real API server as kubectl sees it, as one of its users."""

    def __init__(self, kubectl: str, plane: ControlPlane) -> None:
        self._kubectl = kubectl
        self._plane = plane

    def kubeconfig(self, user: str) -> Path:
        """The file with which a user reaches it."""
        return self._plane.kubeconfig(user)

    def connection(self, user: str) -> Connection:
        """How a client of ours reaches it as a user."""
        return self._plane.connection(user)

    def ask(self, *arguments: str, told: str = "", user: str = "admin") -> subprocess.CompletedProcess[str]:
        """Run kubectl, whatever it answers."""
        command = [self._kubectl, f"--kubeconfig={self._plane.kubeconfig(user)}", *arguments]
        return subprocess.run(command, input=told, capture_output=True, text=True, timeout=400, check=False)

    def do(self, *arguments: str, told: str = "", user: str = "admin") -> str:
        """Run kubectl, which must succeed."""
        done = self.ask(*arguments, told=told, user=user)
        assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stderr}"
        return done.stdout

    def helm(self, helm: str, *arguments: str) -> str:
        """Run helm, which must succeed."""
        command = [helm, *arguments, f"--kubeconfig={self._plane.kubeconfig()}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
        assert done.returncode == 0, f"{' '.join(arguments)}\n{done.stderr}"
        return done.stdout

    def may(self, user: str, verb: str, resource: str, namespace: str) -> bool:
        """Whether the API server would let a user do this."""
        resource, _, subresource = resource.partition("/")  # to kubectl `pods/exec` is a pod of that name
        options = [f"--namespace={namespace}", f"--subresource={subresource}"]
        said = self.ask("auth", "can-i", verb, resource, *options, user=user)
        assert said.stdout.strip() in ("yes", "no"), said.stderr
        return said.stdout.strip() == "yes"


@pytest.fixture(scope="session")
def cluster(kubectl: str) -> Iterator[Cluster]:
    """An API server that has our definitions, Volcano's, and both namespaces."""
    why = missing()
    if why is not None:
        _needed(f"no Kubernetes: {why}")
    plane = ControlPlane()
    try:
        with asyncio.Runner() as runner:
            runner.run(plane.start())
        prepared = Cluster(kubectl, plane)
        for definitions in (["-k", str(DEPLOY / "crds")], ["-f", str(VOLCANO_CRDS)]):
            prepared.do("apply", "--server-side", *definitions)
        prepared.do("wait", "--for=condition=Established", "crd", "--all", "--timeout=300s")
        for file in ("base/namespace.yaml", "base/priority-class.yaml", "tenant/namespace.yaml"):
            prepared.do("apply", "--server-side", "-f", str(Path(DEPLOY / "kustomize" / file)))
        yield prepared
    except NotStarted as error:
        pytest.fail(f"the control plane did not start: {error}", pytrace=False)
    finally:
        plane.stop()


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> Cluster:
    """The base really applied; no controller runs, so nothing starts."""
    cluster.do("apply", "-k", str(BASE))
    return cluster
