"""What users of queues have used, and the order inside a queue.

Written out in full, never derived from `store.tables`: a revision must do the same thing for ever.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "queue_usage",
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("served_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.Column("past", sa.Text(), server_default="{}", nullable=False),
        sa.PrimaryKeyConstraint("queue", "who", name=op.f("pk_queue_usage")),
        sqlite_with_rowid=False,
    )
    op.add_column("queues", sa.Column("order", sa.Text(), server_default="best-effort", nullable=False))


def downgrade() -> None:
    op.drop_column("queues", "order")
    op.drop_table("queue_usage")
