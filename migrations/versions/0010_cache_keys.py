"""Cache keys of shards, so that results of earlier tasks are found.

Written out in full, never derived from `store.tables`: a revision must do the same thing for ever.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), server_default="", nullable=False)


def upgrade() -> None:
    op.create_table(
        "cache_keys",
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        _text("key"),
        _text("place"),
        sa.Column("parts", sa.Text(), server_default="{}", nullable=False),
        _text("source"),
        _text("why"),
        sa.Column("at_ms", sa.BigInteger(), server_default=sa.text("0"), nullable=False),
        sa.PrimaryKeyConstraint("workflow_id", "stage", "shard", name=op.f("pk_cache_keys")),
        sqlite_with_rowid=False,
    )
    op.create_index(op.f("ix_cache_keys_key"), "cache_keys", ["key"])
    op.create_index(op.f("ix_cache_keys_place"), "cache_keys", ["place", "at_ms"])
    op.create_index(op.f("ix_cache_keys_source"), "cache_keys", ["source"])


def downgrade() -> None:
    op.drop_table("cache_keys")
