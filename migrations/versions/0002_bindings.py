"""Bindings of foreign pods that are under way.

Written out in full, never derived from `store.tables`: a revision must do the same thing for ever.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
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


def downgrade() -> None:
    op.drop_table("bindings")
