"""Lists begin with what lives: runs whose engine has not said their end, and runs with a call that lives, have indexes.

Written out in full, never derived from `store.tables`: a revision must do the same thing for ever.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

_OPEN = "state = ''"
_LIVE_CALLS = "run <> '' AND state NOT IN ('SUCCEEDED', 'FAILED', 'CANCELLED', 'SKIPPED')"


def upgrade() -> None:
    for name, table, column, condition in (
        ("ix_runs_open", "runs", "seq", _OPEN),
        ("ix_workflows_live_calls", "workflows", "run", _LIVE_CALLS),
    ):
        op.create_index(
            name, table, [column], sqlite_where=sa.text(condition), postgresql_where=sa.text(condition)
        )


def downgrade() -> None:
    op.drop_index("ix_workflows_live_calls", table_name="workflows")
    op.drop_index("ix_runs_open", table_name="runs")
