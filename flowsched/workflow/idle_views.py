"""What the API answers about idle room: one set of structs for both sides."""

from __future__ import annotations

from datetime import datetime

import msgspec

from flowsched.workflow.views import View


class IdleView(View, kw_only=True):
    """One resource over some time, in core-hours, GiB-hours or GPU-hours. capacity = used + the sum of `causes`."""

    capacity: float  #: of nodes that took pods
    used: float
    idle: float
    off: float = 0.0  #: of nodes that took none: not idle, and not counted above
    causes: dict[str, float] = msgspec.field(
        default_factory=dict
    )  #: by cause (docs/explain.md); they add up to `idle`
    who: dict[str, dict[str, float]] = msgspec.field(
        default_factory=dict
    )  #: cause -> queue, gang or work -> its part, the largest few


class IdleHourView(View, kw_only=True):
    """One hour of the clock."""

    start_at: datetime
    covered_seconds: float  #: how much of the hour was watched
    resources: dict[str, IdleView]


class IdleReportView(View, kw_only=True):
    """Why what was idle was idle."""

    since: datetime  #: the first hour begins here
    until: datetime
    resources: dict[str, IdleView] = msgspec.field(
        default_factory=dict
    )  #: cpu, memory, gpu, where there are any
    hours: list[IdleHourView] = msgspec.field(default_factory=list)
    sentences: list[str] = msgspec.field(default_factory=list)  #: the same for people, one for each resource
