"""One real cluster for the tests of this folder, which all run in one worker (tests/conftest.py).

Where the machine has no real nodes these tests are skipped with the reason, or fail where FLOWSCHED_REQUIRE_NODES=1 (CI sets it).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from tests.kubernetes.nodes.cluster import RealCluster, missing
from tests.kubernetes.nodes.installed import ROOT, Installation
from tests.postgres import start_or_skip
from tests.programs import NotStarted


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Nodes of two shared cores take their time."""
    for item in items:
        if "tests/kubernetes/nodes/" in item.nodeid and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300), append=False)


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
def installed(cluster: RealCluster) -> Iterator[Installation]:
    """The release of the chart on it, in the image of this checkout. A test that changes the release changes it back."""
    subprocess.run(["sh", ROOT / "tests/tools/install_images.sh", "flowsched"], check=True, timeout=280)
    database = start_or_skip(address=cluster.network.address)
    installation = Installation(cluster, database)
    try:
        installation.install()
    except NotStarted as error:
        database.remove()
        pytest.fail(f"flowsched was not installed: {error}", pytrace=False)
    yield installation
    database.remove()
