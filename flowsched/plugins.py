"""Names that users' plug-ins import (docs/plugins.md). They stay here when modules move."""

from __future__ import annotations

from flowsched.scheduling.pod_group import PodGroup, RoleRequest, Shape
from flowsched.scheduling.policy.extension import plugin
from flowsched.scheduling.policy.framework import Cost, Filter, QueueOrder, VictimOrder
from flowsched.scheduling.state.snapshot import Snapshot

__all__ = [
    "Cost",
    "Filter",
    "PodGroup",
    "QueueOrder",
    "RoleRequest",
    "Shape",
    "Snapshot",
    "VictimOrder",
    "plugin",
]
