"""One real cluster for the tests of this folder, which all run in one worker (tests/conftest.py).

Where the machine has no real nodes these tests are skipped with the reason, or fail where FLOWSCHED_REQUIRE_NODES=1 (CI sets it).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.kubernetes.nodes.cluster import PATIENCE_S, RealCluster, missing
from tests.kubernetes.nodes.installed import ROOT, Installation
from tests.postgres import start_or_skip
from tests.programs import NotStarted


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nodes of two shared cores take their time, above all for the first test. What needs a cluster with nothing installed runs
    before the others.
    """
    ours = [item for item in items if "tests/kubernetes/nodes/" in item.nodeid]
    for item in ours:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(2 * PATIENCE_S), append=False)
    bare_first = iter(sorted(ours, key=lambda item: "installed" in getattr(item, "fixturenames", ())))
    items[:] = [next(bare_first) if item in ours else item for item in items]


@pytest.fixture(scope="session", autouse=True)
def needs_real_nodes() -> None:
    """Where they cannot be had no test of this folder runs."""
    if (why := missing()) is not None:
        if os.environ.get("FLOWSCHED_REQUIRE_NODES") == "1":
            pytest.fail(f"FLOWSCHED_REQUIRE_NODES=1, but: {why}", pytrace=False)
        pytest.skip(f"no real nodes: {why}")


@pytest.fixture(scope="session")
def cluster(needs_real_nodes: None) -> Iterator[RealCluster]:
    """A cluster of two nodes. A test that breaks a node mends it."""
    started = RealCluster()
    try:
        started.start()
    except NotStarted as error:
        pytest.fail(f"the real nodes did not start: {error}", pytrace=False)
    yield started
    started.stop()


@pytest.fixture(scope="session")
def our_image(cluster: RealCluster) -> None:
    """The nodes have the image of this checkout, and the others that tasks name."""
    subprocess.run(
        ["sh", ROOT / "tests/tools/install_images.sh", "flowsched"], check=True, timeout=PATIENCE_S
    )
    cluster.load("flowsched", "samtools", "numpy", "debian")


@pytest.fixture(scope="session")
def installed(cluster: RealCluster, our_image: None) -> Iterator[Installation]:
    """The release of the chart on it. A test that changes the release changes it back."""
    database = start_or_skip(address=cluster.network.address)
    installation = Installation(cluster, database, shared=True)
    try:
        installation.install()
    except NotStarted as error:
        database.remove()
        pytest.fail(f"flowsched was not installed: {error}", pytrace=False)
    yield installation
    database.remove()
