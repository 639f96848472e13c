"""Plans: what is known of a run before it starts.

Written out in full, never derived from `store.tables`: a revision must do the same thing for ever.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
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
    op.create_index("ix_plans_seq", "plans", ["seq"])
    op.create_index("ix_plans_run", "plans", ["run"])


def downgrade() -> None:
    op.drop_index("ix_plans_run", table_name="plans")
    op.drop_index("ix_plans_seq", table_name="plans")
    op.drop_table("plans")
