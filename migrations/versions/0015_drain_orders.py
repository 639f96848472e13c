"""Of a drain, from when on it holds, who ordered it, when, and why.

Written out in full, never derived from `store.tables`: a revision must do the same thing for ever.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("from_ms", "at_ms"):
        op.add_column("drains", sa.Column(name, sa.BigInteger(), server_default=sa.text("0"), nullable=False))
    for name in ("reason", "author"):
        op.add_column("drains", sa.Column(name, sa.Text(), server_default="", nullable=False))


def downgrade() -> None:
    op.execute(
        "DELETE FROM drains WHERE until_ms < 0 OR from_ms > at_ms"
    )  # the older program knows no such drains
    for name in ("author", "reason", "at_ms", "from_ms"):
        op.drop_column("drains", name)
