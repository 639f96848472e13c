"""Plans in memory, for the API's own tests: what was asked is kept, and one plan is there from the start."""

from __future__ import annotations

from datetime import UTC, datetime

from flowsched.errors import NotFound
from flowsched.workflow.plan import NodePlan, Plan
from flowsched.workflow.views import PlanBody, PlanPage, PlanSummary, PlanView

_PLAN = Plan("germline", "WDL 1.0", (NodePlan("germline.align", "Align", "germline", "align", tasks=3),), ())


def plan_view(ident: str, run: str = "") -> PlanView:
    """A plan of one node."""
    return PlanView(
        id=ident,
        name="germline",
        run=run,
        created_at=datetime(2026, 3, 1, 12, 0, tzinfo=UTC),
        nodes=1,
        url=f"/api/v1/plans/{ident}",
        plan=_PLAN,
        ranks={},
        stages=[],
        files={},
    )


class FakePlans:
    """Stands for `PlanBook`, and plans nothing."""

    def __init__(self) -> None:
        self.asked: list[PlanBody] = []
        self.kept = {"p1": plan_view("p1")}

    async def create(self, body: PlanBody) -> PlanView:
        self.asked.append(body)
        view = plan_view(f"p{len(self.kept) + 1}", body.run)
        self.kept[view.id] = view
        return view

    async def get(self, ident: str) -> PlanView:
        if ident not in self.kept:
            raise NotFound(f"there is no plan {ident}")
        return self.kept[ident]

    async def list(
        self, *, limit: int = 100, page_token: str | None = None, run: str | None = None
    ) -> PlanPage:
        found: list[PlanSummary] = [view for view in reversed(self.kept.values()) if run in (None, view.run)]
        return PlanPage(plans=found[:limit])

    async def remove(self, ident: str) -> PlanSummary:
        view = await self.get(ident)
        del self.kept[ident]
        return view
