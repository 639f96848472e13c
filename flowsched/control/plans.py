"""Plans of runs: made, kept, and asked for the rank of each call that arrives."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import msgspec
import structlog

from flowsched.control.cromwell import UUID, Cromwell
from flowsched.control.planner import PlanJob
from flowsched.control.planning import Planning
from flowsched.control.run_planner import RunPlanner
from flowsched.errors import FlowschedError, InvalidRequest, NotFound
from flowsched.store.database import Database
from flowsched.store.plans import PlanRow, Plans
from flowsched.store.runs import Runs
from flowsched.workflow.forecast import RankPlan, as_json, from_json, prefetch, rank_of, ranks, stages
from flowsched.workflow.plan import NodePlan, Plan
from flowsched.workflow.plan_views import PlanBody, PlanPage, PlanSummary, PlanView
from flowsched.workflow.spec import Call
from flowsched.workflow.states import RunState

log = structlog.get_logger(__name__)

#: A label with the id of a plan. With Cromwell a workflow label, which becomes a tag of each of its tasks.
LABEL: Final = "flowsched-plan"
#: Ranks that were worked out are used for so long: runtimes are learned meanwhile, and hundreds of calls may come in a second.
FRESH_MS: Final = 10_000
_KEPT: Final = 256
_RUN: Final = re.compile(r"[ -~]{0,255}")


class Learned(Protocol):
    """How long tasks took, by the names that they may have."""

    def __call__(self, names: Collection[str]) -> Mapping[str, int]:
        """Name -> ms, for those of which something is known."""
        ...


class PlanBook:
    """See the module.

    Args:
        database: Where plans are kept.
        planning: Makes them.
        cromwell: Servers that may be asked.
        learned: Runtimes, by name of workflow or stage.
        clock: Wall-clock ms.
        new_id: Makes ids.
    """

    def __init__(
        self,
        database: Database,
        planning: Planning,
        cromwell: Cromwell,
        *,
        learned: Learned,
        clock: Callable[[], int],
        new_id: Callable[[], str],
    ) -> None:
        self._kept = Plans(database)
        self._planning = planning
        self._cromwell = cromwell
        self._learned = learned
        self._clock = clock
        self._new_id = new_id
        self._known: OrderedDict[str, tuple[int, Plan | None, Mapping[str, RankPlan]]] = OrderedDict()
        self._runs = Runs(database)
        self._wanted = RunPlanner(self._plan_run, self._lives)
        #: Awaited with the name of a run that has a plan now.
        self.planned: Callable[[str], Awaitable[None]] = _nothing

    # ------------------------------------------------------------------------------------------ for people

    async def create(self, body: PlanBody) -> PlanView:
        """Plan a workflow and keep the plan; in place of an earlier one of the same run.

        Raises:
            FlowschedError: See `Planning.plan` and `Cromwell.submitted`.
        """
        if (body.source is None) == (body.cromwell is None):
            raise InvalidRequest(
                "a plan is made of `source` (with `imports` and `inputs`) or of `cromwell`: give one of them"
            )
        if not _RUN.fullmatch(body.run):
            raise InvalidRequest("`run` is at most 255 printable ASCII characters")
        run = body.run
        if body.cromwell is not None:
            run = run or body.cromwell.root_workflow_id
            job = await self._cromwell.submitted(body.cromwell.url, body.cromwell.root_workflow_id)
        else:
            job = PlanJob(
                source=body.source or "",
                imports=body.imports,
                inputs=body.inputs,
                sizes=body.sizes,
                contents=body.contents,
            )
        return self._view(*await self._make(job, run))

    async def _make(self, job: PlanJob, run: str) -> tuple[PlanRow, Plan]:
        plan = await self._planning.plan(job)
        ident = "p" + self._new_id()[1:]
        row = await self._kept.put(ident, plan.name, run, len(plan.nodes), as_json(plan), self._clock())
        self._known.clear()  # what was known of the run, by whichever of its names
        self._wanted.planned(run)
        await self.planned(run)
        return row, plan

    async def get(self, ident: str) -> PlanView:
        """One plan, with ranks as they are now.

        Raises:
            NotFound: There is none.
        """
        row, raw = await self._kept.get(ident)
        return self._view(row, from_json(raw))

    async def list(
        self, *, limit: int = 100, page_token: str | None = None, run: str | None = None
    ) -> PlanPage:
        """Plans, newest first; of one run, if it is named."""
        page = await self._kept.list(limit, page_token, run)
        return PlanPage(plans=[_summary(row) for row in page.items], next_page_token=page.next_token)

    async def newest(self) -> str | None:
        """The id of the plan that was made last, by whichever process; None = there is none."""
        page = await self._kept.list(1, None, None)
        return page.items[0].id if page.items else None

    async def remove(self, ident: str) -> PlanSummary:
        """Remove a plan; returns what it was.

        Raises:
            NotFound: There is none.
        """
        row, _ = await self._kept.get(ident)
        await self._kept.delete(ident)
        self._known.clear()
        return _summary(row)

    def _view(self, row: PlanRow, plan: Plan) -> PlanView:
        return PlanView(
            **_fields(row),
            plan=plan,
            ranks=self._ranks(plan),
            stages=stages(plan),
            files={uri: list(nodes) for uri, nodes in prefetch(plan).items()},
        )

    # ------------------------------------------------------------------------------------------ for calls

    async def rank_ms(self, call: Call, labels: Mapping[str, str]) -> int | None:
        """How long it is expected to be from a call's start to the end of its run; None where no plan says it.

        A run of Cromwell that has no plan is planned meanwhile, for the calls that come later, if its server may be asked.
        """
        label = labels.get(LABEL, "")
        key = f"{label} {call.run}"
        now = self._clock()
        known = self._known.get(key)
        if known is None or now - known[0] > FRESH_MS:
            plan = await self._found(label, call.run)
            known = (now, plan, {} if plan is None else self._ranks(plan))
            self._known[key] = known
            self._known.move_to_end(key)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        _, plan, found = known
        if plan is None:
            self._want(call)
            return None
        return rank_of(plan, found, call.node)

    async def _found(self, label: str, run: str) -> Plan | None:
        """The plan of a call. One that cannot be read is none: a call must be accepted whatever became of its plan."""
        try:
            return await self._find(label, run)
        except (FlowschedError, msgspec.DecodeError) as error:
            log.warning("the plan of a call cannot be read", plan=label[:60], run=run[:60], error=str(error))
            return None

    async def _find(self, label: str, run: str) -> Plan | None:
        if label:
            with suppress(NotFound):
                return from_json((await self._kept.get(label))[1])
        found = await self._kept.of_run(run, *UUID.findall(run)[:1])
        return None if found is None else from_json(found[1])

    def _want(self, call: Call) -> None:
        root = UUID.search(call.run)
        if call.source == "cromwell" and root is not None and self._cromwell.allowed:
            self._wanted.want(root[0], call.run)

    async def run(self) -> None:
        """Plan runs of Cromwell as their first calls arrive, for ever."""
        await self._wanted.run()

    async def _plan_run(self, root: str) -> None:
        if await self._kept.of_run(root) is not None:
            return  # a client has posted one meanwhile
        row, plan = await self._make(await self._cromwell.any_of(root), root)
        log.info("a run was planned", run=root, plan=row.id, nodes=len(plan.nodes))

    async def _lives(self, run: str) -> bool:
        return any(not RunState(tally.state).terminal for tally in await self._runs.tallies([run]))

    def why_not(self, run: str) -> str | None:
        """Why a run of Cromwell has no plan; None where it has one, or where no server is asked for it."""
        root = UUID.search(run)
        return None if root is None else self._wanted.why_not(root[0])

    def _ranks(self, plan: Plan) -> dict[str, RankPlan]:
        """Runtimes are looked for under the names that a node's tasks may run under here."""
        learned = self._learned({name for node in plan.nodes for name in _names(node)})
        return ranks(
            plan, lambda node: next((learned[name] for name in _names(node) if name in learned), None)
        )


async def _nothing(_run: str) -> None:
    """Nobody waits for plans."""


def _names(node: NodePlan) -> tuple[str, ...]:
    return (node.path, f"{node.workflow}.{node.call}", node.call, node.task)


def _fields(row: PlanRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "name": row.name,
        "run": row.run,
        "created_at": datetime.fromtimestamp(row.created_ms / 1000, UTC),
        "nodes": row.nodes,
        "url": f"/api/v1/plans/{row.id}",
    }


def _summary(row: PlanRow) -> PlanSummary:
    return PlanSummary(**_fields(row))
