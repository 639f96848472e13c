"""For the official TES document: `SCHEMATHESIS_HOOKS=tests.contract.tes_hooks`."""

from __future__ import annotations

from typing import Any

import schemathesis

from tests.contract.hooks import filter_path_parameters, filter_query

__all__ = ["filter_path_parameters", "filter_query"]
SHOWN = ("BASIC", "FULL")


@schemathesis.hook
def before_call(context: schemathesis.HookContext, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    """Ask for whole tasks: a MINIMAL one has no executors, which the document requires of every task (its defect)."""
    if case.method.upper() == "GET" and "tasks" in case.path:
        query = dict(case.query or {})
        if query.get("view") not in SHOWN:
            case.query = query | {"view": SHOWN[len(str(query)) % 2]}
