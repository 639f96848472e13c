"""The facade: what the API may ask of the service. The API (and tests) code against this protocol, `control.service` is it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from flowsched.workflow.views import (
    AttemptPage,
    CacheView,
    CancelledView,
    EventView,
    ExplanationView,
    IdleReportView,
    NodeView,
    PlanBody,
    PlanPage,
    PlanSummary,
    PlanView,
    PluginView,
    ProfileView,
    QueueView,
    StageView,
    SubmittedView,
    TaskPage,
    TaskView,
    TimelineView,
    UsageView,
    WorkflowPage,
    WorkflowView,
)


class OutputData(msgspec.Struct, frozen=True):
    """The bytes of an output. A caller that does not read `chunks` to its end closes it (`aclose`)."""

    file_name: str  #: what the task called it; with `.tar` if it is a folder, which comes as a tar stream
    size_bytes: int  #: of all chunks together
    chunks: AsyncGenerator[bytes, None]


class TesPage(msgspec.Struct, frozen=True):
    """A part of the list of TES tasks, each as JSON; `next_token` is None at the end."""

    tasks: Sequence[bytes]
    next_token: str | None = None


class TesFacade(Protocol):
    """What the routes of GA4GH TES ask. Views are MINIMAL, BASIC and FULL."""

    async def create(self, raw: bytes, *, client: str = "", idempotency_key: str | None = None) -> str:
        """Accept a task durably; a repeat of one that is there gives that one's id. `client` tells senders apart."""
        ...

    async def get(self, ident: str, view: str) -> bytes:
        """One task as JSON."""
        ...

    async def list(
        self,
        view: str,
        *,
        name_prefix: str = "",
        state: str | None = None,
        tags: Sequence[tuple[str, str]] = (),
        page_size: int = 256,
        token: str | None = None,
    ) -> TesPage:
        """Newest first. A tag with an empty value asks only that it be there."""
        ...

    async def cancel(self, ident: str) -> None:
        """Cancel a task. One that has ended, or does not exist, is no error."""
        ...


class PlanFacade(Protocol):
    """What may be asked about plans of runs. Everything raises from `flowsched.errors` and nothing else."""

    async def create(self, body: PlanBody) -> PlanView:
        """Plan a workflow and keep the plan."""
        ...

    async def get(self, ident: str) -> PlanView:
        """One plan."""
        ...

    async def list(
        self, *, limit: int = 100, page_token: str | None = None, run: str | None = None
    ) -> PlanPage:
        """Newest first."""
        ...

    async def remove(self, ident: str) -> PlanSummary:
        """Remove a plan; returns what it was."""
        ...


class DrainFacade(Protocol):
    """What may be asked about drained nodes. Everything raises from `flowsched.errors` and nothing else."""

    async def drain(
        self, name: str, *, grace_ms: int | None, start: str | None, reason: str, author: str
    ) -> NodeView:
        """Nothing new goes to the node from `start` (a time; None = now) on. NotFound.

        What runs goes on to its end; with `grace_ms`, what has not ended so long after the start is taken away and runs elsewhere.
        """
        ...

    async def uncordon(self, name: str) -> NodeView:
        """Use the node again. NotFound."""
        ...


class PolicyFacade(Protocol):
    """What may be asked about the scheduler's policy. Everything raises from `flowsched.errors` and nothing else."""

    async def show(self) -> ProfileView:
        """The profile in force, and what was refused since."""
        ...

    async def apply(self, raw: bytes) -> ProfileView:
        """Check a profile document (YAML or JSON); a good one is in force with the next step, a bad one changes nothing."""
        ...

    async def plugins(self) -> list[PluginView]:
        """Plugins that are installed, and how those in force fared."""
        ...

    async def snapshot(self) -> bytes:
        """The next cycle in one file: what it was given, and what it decided."""
        ...


class Facade(Protocol):
    """Everything raises from `flowsched.errors` and nothing else."""

    @property
    def tes(self) -> TesFacade:
        """The same service as TES clients see it."""
        ...

    @property
    def plans(self) -> PlanFacade:
        """Plans of runs."""
        ...

    @property
    def draining(self) -> DrainFacade:
        """Drained nodes."""
        ...

    @property
    def policies(self) -> PolicyFacade:
        """Profiles, plugins and snapshots."""
        ...

    async def submit(
        self, raw: bytes, *, idempotency_key: str | None = None, traceparent: str | None = None
    ) -> SubmittedView:
        """Decode, check and durably accept a workflow document. `traceparent`: the header of W3C Trace Context, if there is one."""
        ...

    async def list_workflows(
        self,
        *,
        state: str | None = None,
        name: str | None = None,
        queue: str | None = None,
        label: str | None = None,
        run: str | None = None,
        ref: str | None = None,
        search: str | None = None,
        user: str | None = None,
        since: str | None = None,
        until: str | None = None,
        live: bool = False,
        limit: int = 100,
        page_token: str | None = None,
    ) -> WorkflowPage:
        """Live ones, then those that have ended, each newest first. One that ends between two pages may come twice.

        `label` is `key=value`, `ref` the beginning of an id or a name, `search` that or any part of a name.
        `since` and `until` (spans before now, or times) bound when it was submitted; `live` leaves out what has ended.

        A run of another engine is one workflow; with `run` its calls are listed.
        """
        ...

    async def workflow(self, workflow: str) -> WorkflowView:
        """One workflow."""
        ...

    async def document(self, workflow: str) -> bytes:
        """The document as it was submitted."""
        ...

    async def stages(self, workflow: str) -> list[StageView]:
        """All its stages, in the document's order."""
        ...

    async def tasks(
        self,
        workflow: str,
        *,
        stage: str | None = None,
        state: str | None = None,
        limit: int = 100,
        page_token: str | None = None,
    ) -> TaskPage:
        """Its tasks, also those that were never touched (PENDING or QUEUED); with the outputs of those that succeeded."""
        ...

    async def cache(self, workflow: str) -> list[CacheView]:
        """The runs that its shards took results from, and why the other shards ran."""
        ...

    async def timeline(
        self, workflow: str, *, limit: int = 10_000, page_token: str | None = None
    ) -> TimelineView:
        """Its tasks by stage and index, as columns."""
        ...

    async def attempts(
        self, workflow: str, *, limit: int = 1000, page_token: str | None = None
    ) -> AttemptPage:
        """All tries of its tasks, by stage, index and attempt, with what each asked for and used."""
        ...

    async def task(self, workflow: str, stage: str, index: int) -> TaskView:
        """One task with its attempts and outputs."""
        ...

    async def explain(
        self, workflow: str, *, stage: str | None = None, index: int | None = None
    ) -> list[ExplanationView]:
        """Why what does not run does not run."""
        ...

    async def idle(self, *, since: str = "24h") -> IdleReportView:
        """Why what was idle in the last `since` (a span) was idle, hour by hour."""
        ...

    async def usage(
        self,
        *,
        by: str = "queue",
        since: str | None = None,
        until: str | None = None,
        queue: str | None = None,
    ) -> UsageView:
        """What workflows held, by `queue`, `user` or `label:KEY`. `since` and `until` are spans before now, or times (ISO 8601)."""
        ...

    async def logs(
        self,
        workflow: str,
        stage: str,
        index: int,
        *,
        attempt: int | None = None,
        stream: str = "stdout",
        offset: int = 0,
        limit: int = 65536,
    ) -> tuple[bytes, bool]:
        """Log bytes from `offset` of the last (or a given) attempt, and whether more may come."""
        ...

    async def log_start(
        self, workflow: str, stage: str, index: int, *, attempt: int | None, stream: str, tail: int
    ) -> int:
        """The offset of the last `tail` lines of the log of an attempt, as it is now."""
        ...

    async def output(self, workflow: str, stage: str, index: int, name: str) -> OutputData:
        """The bytes of an output. NotFound if it was not written, Conflict if no node has it any more."""
        ...

    async def command(self, workflow: str, kind: str, body: Mapping[str, Any] | None = None) -> WorkflowView:
        """`cancel`, `pause`, `resume` or `retry` (of what failed). Conflict where the state does not allow it.

        The answer shows the command carried out, unless that takes longer than a few seconds or no process leads.
        """
        ...

    async def cancel_all(
        self, workflows: Sequence[str], body: Mapping[str, Any] | None = None
    ) -> CancelledView:
        """Cancel several workflows at once; the answer names those that cannot be, and why."""
        ...

    async def cancel_task(
        self, workflow: str, stage: str, index: int, body: Mapping[str, Any] | None = None
    ) -> TaskView:
        """Stop one task for good, as if it had failed. Conflict where it has ended, or waits for other stages."""
        ...

    async def report_end(self, run: str, state: str, reason: str) -> WorkflowView:
        """Keep how a run of another engine has ended, as the engine says. NotFound if no call of it came."""
        ...

    async def check_workflow(self, workflow: str) -> None:
        """NotFound if there is no workflow or run of this id."""
        ...

    def events(
        self, workflow: str | None, after: int, *, follow: bool = True
    ) -> AsyncIterator[Sequence[EventView]]:
        """History after event `after` (-1: from now on), in batches; with `follow` what happens then, until `workflow` ends."""
        ...

    async def ended(self, workflow: str) -> None:
        """Return when a workflow has ended; a run, when none of its calls lives."""
        ...

    async def metrics(self) -> bytes:
        """Metrics in Prometheus' text format."""
        ...

    async def queues(self) -> list[QueueView]:
        """All queues."""
        ...

    async def put_queue(self, name: str, settings: Mapping[str, Any]) -> QueueView:
        """Create or change a queue: `weight, parent, priority, paused, reclaimable, order, cap, guarantee` (quantities as in
        documents).
        """
        ...

    async def delete_queue(self, name: str) -> QueueView:
        """Remove the settings of a queue; the answer is what it was.

        Raises:
            NotFound: It has none.
            Conflict: It has queues below it, or workflows that have not ended.
        """
        ...

    async def nodes(self) -> list[NodeView]:
        """All nodes."""
        ...

    async def refused_nodes(self, pod: bytes) -> Mapping[str, str]:
        """Nodes that another scheduler's pod (a Kubernetes object in JSON) may not have now, and why. Empty if no process leads."""
        ...

    async def node_scores(self, pod: bytes, nodes: Sequence[str]) -> list[int]:
        """How much each node is liked for such a pod, 0 to 10; 0 for all without an opinion, and where no process leads."""
        ...

    async def leader(self) -> str | None:
        """The URL of the process that leads, if it is another one and says where it is."""
        ...

    def live(self) -> tuple[bool, str]:
        """Whether the loops are moving, and if not which one is stuck."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Whether it leads, has recovered and sees the cluster, and if not what is missing."""
        ...
