"""Images on nodes are replicas of datasets, once somebody asks for them."""

from __future__ import annotations

import msgspec

from flowsched.cluster.kubernetes.objects.core import Node
from flowsched.cluster.kubernetes.view import Images
from flowsched.executor.protocol import ClusterEvent, ReplicaSeen


def node(name: str, *images: tuple[str, int]) -> Node:
    listed = [{"names": [image], "sizeBytes": size} for image, size in images]
    return msgspec.convert({"metadata": {"name": name}, "status": {"images": listed}}, Node)


def test_only_images_that_are_wanted_are_told() -> None:
    """A node's other forty-nine are nobody's business; what is wanted later is told then."""
    heard: list[ClusterEvent] = []
    images = Images(heard.append)
    images.observe(node("n1", ("docker.io/library/python:3.11", 50), ("bwa:0.7", 9)))
    assert heard == []
    images.wanted("python:3.11")
    assert heard == [ReplicaSeen("image:python:3.11", "n1", 50)]
    images.wanted("python:3.11")
    assert len(heard) == 1
    assert images.everything() == heard


def test_what_a_node_has_lost_is_told() -> None:
    """Its kubelet removed the image, or the node is gone."""
    heard: list[ClusterEvent] = []
    images = Images(heard.append)
    images.wanted("bwa:0.7")
    images.observe(node("n1", ("bwa:0.7", 9)))
    images.observe(node("n1"))
    images.observe(node("n1", ("bwa:0.7", 9)))
    images.gone("n1")
    assert [event.present for event in heard if isinstance(event, ReplicaSeen)] == [True, False, True, False]
