"""Drains: nodes that shall be empty, and by when.

Written out in full, never derived from `store.tables`: a revision must do the same thing for ever.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "drains",
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("until_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("node", name=op.f("pk_drains")),
    )


def downgrade() -> None:
    op.drop_table("drains")
