"""Which task of a run a call is an attempt of, and how a run has ended as its engine says.

Written out in full, never derived from `store.tables`: a revision must do the same thing for ever.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("workflows", sa.Column("task", sa.Text(), server_default="", nullable=False))
    # Calls that are there have their shard alone. Cromwell's calls in a sub-workflow stay as they were shown.
    op.execute(
        "UPDATE workflows SET task = 'shard ' || COALESCE(CAST(shard AS TEXT), 'None') WHERE run <> ''"
    )
    op.add_column("runs", sa.Column("state", sa.Text(), server_default="", nullable=False))
    op.add_column("runs", sa.Column("reason", sa.Text(), server_default="", nullable=False))


def downgrade() -> None:
    op.drop_column("runs", "reason")
    op.drop_column("runs", "state")
    op.drop_column("workflows", "task")
