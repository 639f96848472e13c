"""What workflows held that have expired, for accounting.

Written out in full, never derived from `store.tables`: a revision must do the same thing for ever.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False)


def upgrade() -> None:
    op.create_table(
        "past_usage",
        sa.Column("day", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("queue", sa.Text(), server_default="", nullable=False),
        sa.Column("owner", sa.Text(), server_default="", nullable=False),
        sa.Column("labels", sa.Text(), server_default="{}", nullable=False),
        _number("workflows"),
        _number("core_ms"),
        _number("gpu_ms"),
        _number("memory_gib_ms"),
        _number("queued_ms"),
        _number("running_ms"),
        _number("bytes_local"),
        _number("bytes_moved"),
        sa.PrimaryKeyConstraint("day", "key", name=op.f("pk_past_usage")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("past_usage")
