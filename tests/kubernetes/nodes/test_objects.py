"""Objects that tasks deliver to a store stay on their nodes: a small form of `bench/kube/objects.py`."""

from __future__ import annotations

from tests.clients.environments import environment
from tests.kubernetes.nodes.installed import Installation
from tests.kubernetes.nodes.objects import Pipeline, run_pipeline

MB = 1 << 20


def test_readers_go_to_the_node_that_wrote_their_object(installed: Installation) -> None:
    """By py-tes: no byte that a task of the pipeline wrote is downloaded, and a reference once a node at most. Under the URLs of a
    run before, readers get the bytes of the objects that have overwritten its own.
    """
    python = environment("py-tes-1.1") / "bin" / "python"
    size = Pipeline(chains=2, mb=20, readers=4, reference_mb=20)
    found = run_pipeline(installed, python, size, "twice")
    assert found.again_bytes == 0, found
    assert found.at_home == 1.0, found
    assert found.reference_bytes <= 2 * size.reference_mb * MB, found
    assert merged(installed) == 20 * MB
    run_pipeline(installed, python, Pipeline(chains=1, mb=3, readers=0, reference_mb=0), "twice")
    assert merged(installed) == 3 * MB


def merged(installed: Installation) -> int:
    """The size that the last task of the first chain has found."""
    return int(installed.store.client.get_object(Bucket="lab", Key="twice/merged-0")["Body"].read())
