"""What the launch orders of a gang's members have in common stands in rows of its own, and no longer with each member.

Written out in full, never derived from `store.tables`: a revision must do the same thing for ever.
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "gang_orders",
        sa.Column("workflow_id", sa.Text(), nullable=False),
        sa.Column("stage", sa.Integer(), nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("pod", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("workflow_id", "stage", "shard", "key", name=op.f("pk_gang_orders")),
        sqlite_with_rowid=False,
    )
    attempts = sa.table(
        "attempts",
        sa.column("name", sa.Text),
        sa.column("ended_ms", sa.BigInteger),
        sa.column("pod", sa.LargeBinary),
    )
    database = op.get_bind()
    opened = sa.select(attempts.c.name, attempts.c.pod).where(attempts.c.ended_ms.is_(None))
    for name, raw in database.execute(opened).all():
        pod = json.loads(bytes(raw))
        if pod.get("gang"):
            pod["gang"] = _with_roster(pod["gang"])
            changed = attempts.update().where(attempts.c.name == name)
            database.execute(changed.values(pod=json.dumps(pod).encode()))


def _with_roster(seat: dict[str, Any]) -> dict[str, Any]:
    """A seat with runs of members in place of a list of addresses and one of roles."""
    runs: list[list[Any]] = []
    numbers = []
    for address, role in zip(seat.pop("addresses"), seat.pop("roles"), strict=True):
        _, high, middle, low = map(int, address.split("."))
        numbers.append((high - 64 << 16) + (middle << 8) + low)
        if runs and runs[-1][0] == role and runs[-1][1] + runs[-1][2] == numbers[-1]:
            runs[-1][2] += 1
        else:
            runs.append([role, numbers[-1], 1])
    return {**seat, "number": numbers[seat["rank"]], "roster": {"runs": runs}}


def downgrade() -> None:
    op.drop_table("gang_orders")
