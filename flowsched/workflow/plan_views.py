"""What the API takes and answers about plans: one set of structs for both sides."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from flowsched.workflow.forecast import RankPlan, StageForecast
from flowsched.workflow.plan import Plan
from flowsched.workflow.views import Page, View


class CromwellSource(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A run of a Cromwell server that this installation may ask."""

    url: str
    root_workflow_id: str


class PlanBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A workflow to plan: its source with what it imports, or the Cromwell server that has it."""

    source: str | None = None
    imports: dict[str, str] | str = {}  #: sources by name, or a zip file in base64
    inputs: dict[str, Any] | None = None  #: `{"workflow.input": value}`; null: not known at all
    sizes: dict[str, int] = {}  #: bytes of files, by the URI or path in the inputs
    contents: dict[
        str, str
    ] = {}  #: texts of files, likewise: lists of intervals or samples that the workflow reads
    run: str = ""  #: the run that it is the plan of, as the run's calls name it
    cromwell: CromwellSource | None = None


class PlanSummary(View, kw_only=True):
    """A plan in a list."""

    id: str
    name: str
    run: str = ""
    created_at: datetime
    nodes: int
    url: str = ""


class PlanView(PlanSummary, kw_only=True):
    """A plan, and what follows from it with what is known now of how long tasks take."""

    plan: Plan
    ranks: dict[str, RankPlan]  #: node -> its way to the end
    stages: list[StageForecast]
    files: dict[str, list[str]]  #: URI that is known ahead -> nodes that read it


class PlanPage(Page, kw_only=True):
    """Some plans, newest first."""

    plans: list[PlanSummary]
