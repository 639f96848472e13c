"""Which workflows this database has removed: only their files may be removed. And the id of the database.

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
    op.create_table(
        "identity",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_identity")),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("identity")
    op.drop_table("expired")
