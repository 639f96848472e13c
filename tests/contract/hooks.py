"""What schemathesis does not send: `SCHEMATHESIS_HOOKS=tests.contract.hooks`."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import schemathesis

#: A request line of more than 8,190 bytes is refused by the HTTP parser itself, in plain text.
LONGEST = 3000


def _short(parameters: Any) -> bool:
    return len(quote(str(parameters))) <= LONGEST


@schemathesis.hook
def filter_query(context: schemathesis.HookContext, query: Any) -> bool:
    return _short(query)


@schemathesis.hook
def filter_path_parameters(context: schemathesis.HookContext, path_parameters: Any) -> bool:
    return _short(path_parameters)
