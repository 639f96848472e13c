"""The schema of 0.1.0.

Written out in full, never derived from `store.tables`: a revision must do the same thing for ever.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0.1.0_2"
down_revision = None
branch_labels = None
depends_on = None

_LIVE = "state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'SKIPPED')"


def upgrade() -> None:
    op.create_table(
        "attempts",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=True),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("message", sa.Text(), server_default="", nullable=False),
        sa.Column("usage", sa.Text(), server_default="{}", nullable=False),
        sa.Column("report", sa.Text(), server_default="", nullable=False),
        sa.Column("choice", sa.Text(), server_default="", nullable=False),
        sa.Column("pod", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_attempts")),
    )
    op.create_index(
        "ix_attempts_open",
        "attempts",
        ["workflow_id"],
        unique=False,
        sqlite_where=sa.text("ended_ms IS NULL"),
        postgresql_where=sa.text("ended_ms IS NULL"),
    )
    op.create_index("ix_attempts_task", "attempts", ["workflow_id", "stage", "index"], unique=False)
    op.create_table(
        "bindings",
        sa.Column("uid", sa.Text(), nullable=False),
        sa.Column("namespace", sa.Text(), server_default="", nullable=False),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("node", sa.Text(), server_default="", nullable=False),
        sa.Column("group", sa.Text(), server_default="", nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("uid", name=op.f("pk_bindings")),
    )
    op.create_table(
        "cache_keys",
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), server_default="", nullable=False),
        sa.Column("place", sa.Text(), server_default="", nullable=False),
        sa.Column("parts", sa.Text(), server_default="{}", nullable=False),
        sa.Column("source", sa.Text(), server_default="", nullable=False),
        sa.Column("why", sa.Text(), server_default="", nullable=False),
        sa.Column("at_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("workflow_id", "stage", "shard", name="pk_cache_keys"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_cache_keys_key", "cache_keys", ["key"], unique=False)
    op.create_index("ix_cache_keys_place", "cache_keys", ["place", "at_ms"], unique=False)
    op.create_index("ix_cache_keys_source", "cache_keys", ["source"], unique=False)
    op.create_table(
        "counters",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_counters")),
    )
    op.create_table(
        "drains",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("from_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("author", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_drains")),
    )
    op.create_table(
        "events",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), server_default="{}", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_events")),
    )
    op.create_index("ix_events_workflow", "events", ["workflow_id", "id"], unique=False)
    op.create_table(
        "expired",
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("workflow_id", name="pk_expired"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "gang_orders",
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("pod", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("workflow_id", "stage", "shard", "key", name="pk_gang_orders"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "idempotency",
        sa.Column("tenant", sa.Text(), server_default="", nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("body_hash", sa.Text(), nullable=False),
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key", name="pk_idempotency"),
    )
    op.create_index(op.f("ix_idempotency_workflow_id"), "idempotency", ["workflow_id"], unique=False)
    op.create_table(
        "identity",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_identity"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "lease",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("holder", sa.Text(), server_default="", nullable=False),
        sa.Column("renewed_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_lease")),
    )
    op.create_table(
        "marks",
        sa.Column("writer", sa.Text(), nullable=False),
        sa.Column("txn", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("writer", name=op.f("pk_marks")),
    )
    op.create_table(
        "outputs",
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("value", sa.Text(), nullable=True),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("workflow_id", "stage", "index", "name", name="pk_outputs"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "past_usage",
        sa.Column("day", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), server_default="", nullable=False),
        sa.Column("owner", sa.Text(), server_default="", nullable=False),
        sa.Column("labels", sa.Text(), server_default="{}", nullable=False),
        sa.Column("workflows", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("core_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("gpu_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("memory_gib_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("memory_saved_gib_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("queued_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("running_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("bytes_local", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("bytes_moved", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("day", "key", name="pk_past_usage"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "plans",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("run", sa.Text(), server_default="", nullable=False),
        sa.Column("nodes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_plans")),
    )
    op.create_index("ix_plans_seq", "plans", ["seq"], unique=False)
    op.create_index("ix_plans_run", "plans", ["run"], unique=False)
    op.create_table(
        "queue_usage",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("served_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("past", sa.Text(), server_default="{}", nullable=False),
        sa.PrimaryKeyConstraint("queue", "who", name="pk_queue_usage"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "queues",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("parent", sa.Text(), nullable=True),
        sa.Column("weight", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("priority", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("guarantee", sa.Text(), server_default="{}", nullable=False),
        sa.Column("cap", sa.Text(), server_default="{}", nullable=False),
        sa.Column("reclaimable", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("paused", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("order", sa.Text(), server_default="best-effort", nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_queues")),
    )
    op.create_table(
        "replicas",
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("uri", "node", name="pk_replicas"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("source", sa.Text(), server_default="", nullable=False),
        sa.Column("queue", sa.Text(), server_default="", nullable=False),
        sa.Column("labels", sa.Text(), server_default="{}", nullable=False),
        sa.Column("created_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("state", sa.Text(), server_default="", nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("seq", name=op.f("uq_runs_seq")),
    )
    op.create_index("ix_runs_prefix", "runs", ["id"], unique=False, postgresql_ops={"id": "text_pattern_ops"})
    op.create_index(
        "ix_runs_open",
        "runs",
        ["seq"],
        unique=False,
        sqlite_where=sa.text("state = ''"),
        postgresql_where=sa.text("state = ''"),
    )
    op.create_table(
        "tasks",
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("state", sa.SmallInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("node", sa.Text(), nullable=True),
        sa.Column("goal", sa.SmallInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("ready_ms", sa.BigInteger(), nullable=True),
        sa.Column("staging_ms", sa.BigInteger(), nullable=True),
        sa.Column("staged_ms", sa.BigInteger(), nullable=True),
        sa.Column("bound_ms", sa.BigInteger(), nullable=True),
        sa.Column("started_ms", sa.BigInteger(), nullable=True),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.Column("bytes_local", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("bytes_moved", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("charged", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("memory_steps", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("workflow_id", "stage", "index", name="pk_tasks"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "tes_tasks",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("created_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("tags", sa.Text(), server_default="{}", nullable=False),
        sa.Column("state", sa.Text(), server_default="", nullable=False),
        sa.Column("logs", sa.Text(), server_default="[]", nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tes_tasks")),
    )
    op.create_index("ix_tes_tasks_seq", "tes_tasks", ["seq"], unique=False)
    op.create_table(
        "workflows",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("queue", sa.Text(), server_default="", nullable=False),
        sa.Column("priority", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("labels", sa.Text(), server_default="{}", nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.Column("tenant", sa.Text(), server_default="", nullable=False),
        sa.Column("owner", sa.Text(), server_default="", nullable=False),
        sa.Column("created_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=True),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("paused", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("stages", sa.Integer(), nullable=False),
        sa.Column("tasks", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("spec_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("run", sa.Text(), server_default="", nullable=False),
        sa.Column("node", sa.Text(), server_default="", nullable=False),
        sa.Column("task", sa.Text(), server_default="", nullable=False),
        sa.Column("kind", sa.Text(), server_default="", nullable=False),
        sa.Column("shard", sa.BigInteger(), nullable=True),
        sa.Column("call_attempt", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("after", sa.Text(), server_default="[]", nullable=False),
        sa.Column("spec", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_workflows")),
        sa.UniqueConstraint("seq", name=op.f("uq_workflows_seq")),
    )
    op.create_index("ix_workflows_ended_ms", "workflows", ["ended_ms"], unique=False)
    op.create_index(
        "ix_workflows_live",
        "workflows",
        ["seq"],
        unique=False,
        sqlite_where=sa.text(_LIVE),
        postgresql_where=sa.text(_LIVE),
    )
    op.create_index(
        "ix_workflows_run",
        "workflows",
        ["run", "seq"],
        unique=False,
        sqlite_where=sa.text("run <> ''"),
        postgresql_where=sa.text("run <> ''"),
    )
    # The last one: of indexes that SQLite thinks equal it takes the newest, and this is the smaller one.
    op.create_index(
        "ix_workflows_live_calls",
        "workflows",
        ["run"],
        unique=False,
        sqlite_where=sa.text(f"run <> '' AND {_LIVE}"),
        postgresql_where=sa.text(f"run <> '' AND {_LIVE}"),
    )
    op.create_table(
        "commands",
        sa.Column(
            "id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False
        ),
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), server_default="{}", nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("done", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.ForeignKeyConstraint(
            ["workflow_id"], ["workflows.id"], name=op.f("fk_commands_workflow_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_commands")),
    )
    op.create_index(
        "ix_commands_open",
        "commands",
        ["id"],
        unique=False,
        sqlite_where=sa.text("NOT done"),
        postgresql_where=sa.text("NOT done"),
    )
    op.create_index(op.f("ix_commands_workflow_id"), "commands", ["workflow_id"], unique=False)
    op.create_table(
        "stages",
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("name", sa.Text(), server_default="", nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("members", sa.Integer(), nullable=False),
        sa.Column("counts", sa.Text(), server_default="{}", nullable=False),
        sa.Column("totals", sa.Text(), server_default="{}", nullable=False),
        sa.Column("started_ms", sa.BigInteger(), nullable=True),
        sa.Column("ended_ms", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.Text(), server_default="", nullable=False),
        sa.ForeignKeyConstraint(
            ["workflow_id"], ["workflows.id"], name=op.f("fk_stages_workflow_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("workflow_id", "stage", name="pk_stages"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    for table in (
        "stages",
        "commands",
        "workflows",
        "tes_tasks",
        "tasks",
        "runs",
        "replicas",
        "queues",
        "queue_usage",
        "plans",
        "past_usage",
        "outputs",
        "marks",
        "lease",
        "identity",
        "idempotency",
        "gang_orders",
        "expired",
        "events",
        "drains",
        "counters",
        "cache_keys",
        "bindings",
        "attempts",
    ):
        op.drop_table(table)
