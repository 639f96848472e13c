"""The policy in force: the profile, the queues, and the facts of the leader and the executor."""

from __future__ import annotations

import msgspec

from flowsched.executor.protocol import FileCopies
from flowsched.scheduling.policy.framework import PROFILES, Profile
from flowsched.scheduling.queues.tree import QueueTree


class PolicyState(msgspec.Struct):
    """The rules by which a step decides.

    Attributes:
        profile: The policy in force.
        queues: The queues, with their shares, guarantees and caps.
        epoch: Of this leader; part of every intent.
        secret: The tokens of gangs are derived from it. It is never written anywhere.
        mounted: All data lie on a storage that every node mounts, and pods read and write there: a policy without locality stages
            nothing.
        pipelines: Pods can be sent to a node before there is room for them (`Executor.pipelines`).
        memoizing: The cache of results is asked for the stages that want it. Its answers come as events (`LookedUp`).
        remote_reads: Pods can read datasets on other nodes without a copy.
        file_copies: Containers can have a copy of a file in its place: see `Executor.file_copies`.
    """

    profile: Profile = msgspec.field(default_factory=lambda: PROFILES["flowsched"])
    queues: QueueTree = msgspec.field(default_factory=QueueTree)
    epoch: int = 1
    secret: bytes = b""
    mounted: bool = False
    remote_reads: bool = False
    file_copies: FileCopies = "never"
    memoizing: bool = False
    pipelines: bool = False
