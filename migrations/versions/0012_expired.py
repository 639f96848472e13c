"""Which workflows this database has removed: only their files may be removed.

Written out in full, never derived from `store.tables`: a revision must do the same thing for ever.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "expired",
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("workflow_id", name=op.f("pk_expired")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("expired")
