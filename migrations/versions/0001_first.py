"""The first schema.

Written out in full, never derived from `store.tables`: a revision must do the same thing for ever.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

LIVE = "state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'SKIPPED')"


def upgrade() -> None:
    _who_writes()
    _workflows()
    _tasks()
    _data_and_history()
    _requests_and_queues()


def downgrade() -> None:
    for table in (
        "queues",
        "commands",
        "idempotency",
        "events",
        "replicas",
        "outputs",
        "attempts",
        "tasks",
        "stages",
        "workflows",
        "marks",
        "counters",
        "lease",
    ):
        op.drop_table(table)


def _who_writes() -> None:
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
        "counters",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_counters")),
    )
    op.create_table(
        "marks",
        sa.Column("writer", sa.Text(), nullable=False),
        sa.Column("txn", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("writer", name=op.f("pk_marks")),
    )


def _workflows() -> None:
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
        sqlite_where=sa.text(LIVE),
        postgresql_where=sa.text(LIVE),
    )
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


def _tasks() -> None:
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


def _data_and_history() -> None:
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
        "replicas",
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("uri", "node", name="pk_replicas"),
        sqlite_with_rowid=False,
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


def _requests_and_queues() -> None:
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
        "queues",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("parent", sa.Text(), nullable=True),
        sa.Column("weight", sa.Integer(), server_default=sa.text("1"), nullable=False),
        sa.Column("priority", sa.Integer(), server_default=sa.text("0"), nullable=False),
        sa.Column("guarantee", sa.Text(), server_default="{}", nullable=False),
        sa.Column("cap", sa.Text(), server_default="{}", nullable=False),
        sa.Column("reclaimable", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("paused", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_queues")),
    )
