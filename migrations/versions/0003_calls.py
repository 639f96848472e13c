"""Container tasks, the runs that workflows are calls of, and what TES clients sent.

Written out in full, never derived from `store.tables`: a revision must do the same thing for ever.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempts", sa.Column("report", sa.Text(), server_default="", nullable=False))
    op.add_column("workflows", sa.Column("run", sa.Text(), server_default="", nullable=False))
    op.add_column("workflows", sa.Column("node", sa.Text(), server_default="", nullable=False))
    op.add_column("workflows", sa.Column("shard", sa.BigInteger(), nullable=True))
    op.add_column(
        "workflows", sa.Column("call_attempt", sa.Integer(), server_default=sa.text("1"), nullable=False)
    )
    op.add_column("workflows", sa.Column("after", sa.Text(), server_default="[]", nullable=False))
    calls = sa.text("run <> ''")
    op.create_index(
        "ix_workflows_run", "workflows", ["run", "seq"], sqlite_where=calls, postgresql_where=calls
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
        sa.PrimaryKeyConstraint("id", name=op.f("pk_runs")),
        sa.UniqueConstraint("seq", name=op.f("uq_runs_seq")),
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
    op.create_index("ix_tes_tasks_seq", "tes_tasks", ["seq"])


def downgrade() -> None:
    op.drop_index("ix_tes_tasks_seq", table_name="tes_tasks")
    op.drop_table("tes_tasks")
    op.drop_table("runs")
    op.drop_index("ix_workflows_run", table_name="workflows")
    for column in ("after", "call_attempt", "shard", "node"):
        op.drop_column("workflows", column)
    op.drop_column("workflows", "run")
    op.drop_column("attempts", "report")
