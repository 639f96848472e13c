"""Virtual nodes."""

from __future__ import annotations

import pytest

from flowsched.cluster.local.virtual_nodes import machine_cores, machine_memory_bytes, virtual_nodes
from flowsched.errors import ConfigurationError


def test_a_machine_is_divided() -> None:
    """Together the nodes have no more than the machine."""
    nodes = virtual_nodes(3)
    assert sum(node.cpu_millicores for node in nodes) <= machine_cores() * 1000
    assert sum(node.memory_bytes for node in nodes) <= machine_memory_bytes()
    assert [node.name for node in nodes] == ["node-0", "node-1", "node-2"]


def test_what_is_said_is_taken() -> None:
    """Also more than there is; racks are equal runs of nodes."""
    nodes = virtual_nodes(4, cpu_millicores=64_000, memory_bytes=1 << 40, gpus=2, nic_rate=5, racks=2)
    assert {(n.cpu_millicores, n.memory_bytes, n.gpu_millis, n.nic_out_rate) for n in nodes} == {
        (64_000, 1 << 40, 2000, 5)
    }
    assert [node.rack for node in nodes] == ["rack-0", "rack-0", "rack-1", "rack-1"]


@pytest.mark.parametrize(("count", "racks"), [(0, 1), (1, 2)])
def test_what_cannot_be(count: int, racks: int) -> None:
    """Refused, with the numbers."""
    with pytest.raises(ConfigurationError, match=f"{count} nodes in {racks} racks"):
        virtual_nodes(count, racks=racks)
