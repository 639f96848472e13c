"""The tables, once for SQLite and PostgreSQL.

Times are wall-clock milliseconds. Numbers that may grow are BIGINT. JSON is text. Tasks, attempts, outputs
and events carry no foreign key: only the leader writes them, its compare-and-set finds what a key would
find, and a key costs a look-up (PostgreSQL: a trigger) for each of a million rows.
`recovery.remove_finished` deletes them by workflow id. State columns of tasks are not indexed: readiness is
kept in memory and rebuilt.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    false,
    text,
)

metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

#: Which workflows still live. Written the same way in the partial index and in queries, else SQLite would not
#: use it.
LIVE: Final = "state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'SKIPPED')"

#: Which workflows are a call of a run.
CALLS: Final = "run <> ''"

#: Runs whose engine has not reported their end.
OPEN: Final = "state = ''"


def _text(name: str) -> Column[str]:
    """A text that is never null, and empty by default."""
    return Column(name, Text, nullable=False, server_default="")


def _number(name: str, default: int = 0) -> Column[int]:
    """A big whole number that is never null."""
    return Column(name, BigInteger, nullable=False, server_default=text(str(default)))


def _moment(name: str) -> Column[Any]:
    """A time that may not have come yet."""
    return Column(name, BigInteger, nullable=True)


def _flag(name: str) -> Column[bool]:
    """A flag, off by default."""
    return Column(name, Boolean, nullable=False, server_default=false())


def _json(name: str, default: str = "{}") -> Column[str]:
    """A JSON document as text: never searched by SQL, and free of U+0000, which JSONB refuses."""
    return Column(name, Text, nullable=False, server_default=default)


def _task_key() -> tuple[Column[Any], ...]:
    """The three columns that name a task."""
    return (
        Column("workflow_id", Text, nullable=False),
        Column("stage", Integer, nullable=False),
        Column("index", Integer, nullable=False),
    )


#: The leader, by name of the lease. `epoch` only ever grows; every write of a leader carries it.
lease: Final = Table(
    "lease",
    metadata,
    Column("name", Text, primary_key=True),
    _number("epoch"),
    _text("holder"),
    _number("renewed_ms"),
    _number("expires_ms"),
)

#: The last numbers given to workflows, commands and events. A row is locked from its update until the commit,
#: so the numbers follow the order of commits, without gaps: a database sequence promises neither.
counters: Final = Table(
    "counters",
    metadata,
    Column("name", Text, primary_key=True),
    _number("value"),
)

#: The last transaction of each writer: it shows after a lost answer whether COMMIT took place.
marks: Final = Table(
    "marks",
    metadata,
    Column("writer", Text, primary_key=True),
    _number("txn"),
    _number("at_ms"),
)

workflows: Final = Table(
    "workflows",
    metadata,
    Column("id", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False, unique=True),
    _text("name"),
    _text("queue"),
    Column("priority", Integer, nullable=False, server_default=text("0")),
    _json("labels"),
    Column("state", Text, nullable=False),
    _text("reason"),
    _text("tenant"),
    _text("owner"),
    _number("created_ms"),
    _moment("started_ms"),
    _moment("ended_ms"),
    _flag("cancel_requested"),
    _flag("paused"),
    Column("stages", Integer, nullable=False),
    _number("tasks"),
    _number("spec_bytes"),
    _text("run"),
    _text("node"),
    _text("task"),
    _text("kind"),
    Column("shard", BigInteger, nullable=True),
    Column("call_attempt", Integer, nullable=False, server_default=text("1")),
    _json("after", "[]"),
    Column("spec", LargeBinary, nullable=False),  # last: SQLite then reads the narrow part of a row alone
)
Index("ix_workflows_ended_ms", workflows.c.ended_ms)

stages: Final = Table(
    "stages",
    metadata,
    Column("workflow_id", Text, ForeignKey("workflows.id", ondelete="CASCADE"), nullable=False),
    Column("stage", Integer, nullable=False),
    _text("name"),
    Column("state", Text, nullable=False),
    Column("width", Integer, nullable=False),
    Column("members", Integer, nullable=False),
    _json("counts"),
    _json("totals"),
    _moment("started_ms"),
    _moment("ended_ms"),
    _text("reason"),
    PrimaryKeyConstraint("workflow_id", "stage", name="pk_stages"),
    sqlite_with_rowid=False,
)

tasks: Final = Table(
    "tasks",
    metadata,
    *_task_key(),
    Column("state", SmallInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("node", Text, nullable=True),
    Column("goal", SmallInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    _text("reason"),
    Column("exit_code", Integer, nullable=True),
    _moment("ready_ms"),
    _moment("staging_ms"),
    _moment("staged_ms"),
    _moment("bound_ms"),
    _moment("started_ms"),
    _moment("ended_ms"),
    _number("bytes_local"),
    _number("bytes_moved"),
    Column("charged", Integer, nullable=False, server_default=text("0")),
    Column("memory_steps", Integer, nullable=False, server_default=text("0")),
    PrimaryKeyConstraint("workflow_id", "stage", "index", name="pk_tasks"),
    sqlite_with_rowid=False,
)

attempts: Final = Table(
    "attempts",
    metadata,
    Column("name", Text, primary_key=True),
    *_task_key(),
    Column("attempt", Integer, nullable=False),
    Column("node", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    _moment("started_ms"),
    _moment("ended_ms"),
    Column("exit_code", Integer, nullable=True),
    _text("reason"),
    _text("message"),
    _json("usage"),
    _text("report"),
    _text("choice"),
    Column("pod", LargeBinary, nullable=False),
)
Index("ix_attempts_task", attempts.c.workflow_id, attempts.c.stage, attempts.c["index"])

#: The common part of the launch orders of a gang's members (`engine.delta.GangOrderWrite`). The rows go with their workflow.
gang_orders: Final = Table(
    "gang_orders",
    metadata,
    Column("workflow_id", Text, nullable=False),
    Column("stage", Integer, nullable=False),
    Column("shard", Integer, nullable=False),
    Column("key", Text, nullable=False),
    Column("pod", LargeBinary, nullable=False),
    PrimaryKeyConstraint("workflow_id", "stage", "shard", "key", name="pk_gang_orders"),
    sqlite_with_rowid=False,
)

outputs: Final = Table(
    "outputs",
    metadata,
    *_task_key(),
    Column("name", Text, nullable=False),
    Column("uri", Text, nullable=False),
    _number("size_bytes"),
    Column("value", Text, nullable=True),
    Column("attempt", Integer, nullable=False),
    PrimaryKeyConstraint("workflow_id", "stage", "index", "name", name="pk_outputs"),
    sqlite_with_rowid=False,
)

#: The cache keys of shards, and the result of each look-up (see `engine.delta.CacheKeyWrite`). A result can be taken from a
#: shard whose tasks have succeeded; the rows go with their workflow.
cache_keys: Final = Table(
    "cache_keys",
    metadata,
    Column("workflow_id", Text, nullable=False),
    Column("stage", Integer, nullable=False),
    Column("shard", Integer, nullable=False),
    _text("key"),
    _text("place"),
    _json("parts"),
    _text("source"),
    _text("why"),
    _number("at_ms"),
    PrimaryKeyConstraint("workflow_id", "stage", "shard", name="pk_cache_keys"),
    sqlite_with_rowid=False,
)
Index("ix_cache_keys_key", cache_keys.c.key)
Index("ix_cache_keys_place", cache_keys.c.place, cache_keys.c.at_ms)
Index("ix_cache_keys_source", cache_keys.c.source)

#: Workflows that expiry has removed, and by which time they had ended. Their files may go, those of no others: that a workflow has
#: no row does not prove that it was ever here (the root of another database, a backup that is older than the root).
expired: Final = Table(
    "expired",
    metadata,
    Column("workflow_id", Text, nullable=False),
    _number("at_ms"),
    PrimaryKeyConstraint("workflow_id", name="pk_expired"),
    sqlite_with_rowid=False,
)

#: Which database this is, see `store.identity`.
identity: Final = Table(
    "identity",
    metadata,
    Column("name", Text, nullable=False),
    _text("value"),
    PrimaryKeyConstraint("name", name="pk_identity"),
    sqlite_with_rowid=False,
)

replicas: Final = Table(
    "replicas",
    metadata,
    Column("uri", Text, nullable=False),
    Column("node", Text, nullable=False),
    _number("size_bytes"),
    PrimaryKeyConstraint("uri", "node", name="pk_replicas"),
    sqlite_with_rowid=False,
)

#: Runs of engines that keep the DAG themselves; their calls are workflows. `seq` is that of the first call.
runs: Final = Table(
    "runs",
    metadata,
    Column("id", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False, unique=True),
    _text("name"),
    _text("source"),
    _text("queue"),
    _json("labels"),
    _number("created_ms"),
    _text("state"),
    _text("reason"),
)

#: The document of a TES client, beside the workflow that it became (of the same id). `body` is compressed JSON, `tags` JSON.
#: `state` and `logs` (JSON) remain of the workflow when it has expired, and are empty before: an id stays answerable for 30 days.
tes_tasks: Final = Table(
    "tes_tasks",
    metadata,
    Column("id", Text, primary_key=True),
    _number("seq"),
    _number("created_ms"),
    _text("name"),
    _json("tags"),
    _text("state"),
    _json("logs", "[]"),
    Column("body", LargeBinary, nullable=False),
)
Index("ix_tes_tasks_seq", tes_tasks.c.seq)

#: Plans of runs, made before the runs start. `body` is a compressed `workflow.plan.Plan`; `run` is the run it was made for.
plans: Final = Table(
    "plans",
    metadata,
    Column("id", Text, primary_key=True),
    _number("seq"),
    _number("created_ms"),
    _text("name"),
    _text("run"),
    _number("nodes"),
    Column("body", LargeBinary, nullable=False),
)
Index("ix_plans_seq", plans.c.seq)
Index("ix_plans_run", plans.c.run)

#: Bindings of foreign pods that were decided and have no observed outcome yet.
bindings: Final = Table(
    "bindings",
    metadata,
    Column("uid", Text, primary_key=True),
    _text("namespace"),
    _text("name"),
    _text("node"),
    _text("group"),
    _number("epoch"),
    _number("at_ms"),
)

events: Final = Table(
    "events",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("workflow_id", Text, nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("kind", Text, nullable=False),
    _json("body"),
)
Index("ix_events_workflow", events.c.workflow_id, events.c.id)

idempotency: Final = Table(
    "idempotency",
    metadata,
    Column("tenant", Text, nullable=False, server_default=""),
    Column("key", Text, nullable=False),
    Column("body_hash", Text, nullable=False),
    Column("workflow_id", Text, nullable=False, index=True),
    Column("created_ms", BigInteger, nullable=False),
    PrimaryKeyConstraint("tenant", "key", name="pk_idempotency"),
)

commands: Final = Table(
    "commands",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=False),
    Column("workflow_id", Text, ForeignKey("workflows.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("kind", Text, nullable=False),
    _json("body"),
    Column("at_ms", BigInteger, nullable=False),
    _flag("done"),
)

drains: Final = Table(
    "drains",
    metadata,
    Column("node", Text, primary_key=True),
    _number("until_ms"),
    _number("from_ms"),
    _number("at_ms"),
    _text("reason"),
    _text("author"),
)

queues: Final = Table(
    "queues",
    metadata,
    Column("name", Text, primary_key=True),
    Column("parent", Text, nullable=True),
    Column("weight", Integer, nullable=False, server_default=text("1")),
    Column("priority", Integer, nullable=False, server_default=text("0")),
    _json("guarantee"),
    _json("cap"),
    Column("reclaimable", Boolean, nullable=False, server_default=text("true")),
    _flag("paused"),
    Column("order", Text, nullable=False, server_default="best-effort"),
)

#: The past usage of users of queues, decayed: `past` is JSON, resource -> amount x ms as decimal text (it outgrows 64 bits), as
#: of `at_ms`. The user is "" where the submission named none.
queue_usage: Final = Table(
    "queue_usage",
    metadata,
    Column("queue", Text, nullable=False),
    Column("who", Text, nullable=False),
    _number("at_ms"),
    _number("served_ms"),
    _json("past"),
    PrimaryKeyConstraint("queue", "who", name="pk_queue_usage"),
    sqlite_with_rowid=False,
)

#: The usage of expired workflows: sums by the day (since the epoch, UTC) on which they ended, and by queue, user and labels
#: (JSON, as in `workflows`). `key` is a hash of these three, which may be longer than what an index takes.
past_usage: Final = Table(
    "past_usage",
    metadata,
    Column("day", BigInteger, nullable=False),
    Column("key", Text, nullable=False),
    _text("queue"),
    _text("owner"),
    _json("labels"),
    _number("workflows"),
    _number("core_ms"),
    _number("gpu_ms"),
    _number("memory_gib_ms"),
    _number("memory_saved_gib_ms"),
    _number("queued_ms"),
    _number("running_ms"),
    _number("bytes_local"),
    _number("bytes_moved"),
    PrimaryKeyConstraint("day", "key", name="pk_past_usage"),
    sqlite_with_rowid=False,
)


@cache
def with_partial_indexes() -> MetaData:
    """The metadata, and the indexes that have some of a table's rows: to compare a database with.

    Migrations make the indexes. They are not declared above, because SQLAlchemy loads both dialects for their conditions, and
    PostgreSQL's takes 25 ms of each start.
    """
    for name, columns, condition in (
        ("ix_workflows_live", [workflows.c.seq], LIVE),
        ("ix_workflows_run", [workflows.c.run, workflows.c.seq], CALLS),  # most workflows are of no run
        ("ix_workflows_live_calls", [workflows.c.run], f"{CALLS} AND {LIVE}"),
        ("ix_runs_open", [runs.c.seq], OPEN),
        ("ix_attempts_open", [attempts.c.workflow_id], "ended_ms IS NULL"),
        ("ix_commands_open", [commands.c.id], "NOT done"),
    ):
        Index(name, *columns, sqlite_where=text(condition), postgresql_where=text(condition))
    Index("ix_runs_prefix", runs.c.id, postgresql_ops={"id": "text_pattern_ops"})
    return metadata
