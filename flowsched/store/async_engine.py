"""SQLAlchemy's asynchronous engine without its object-relational mapper, which flowsched does not use.

`sqlalchemy.ext.asyncio` loads its sessions, and with them the mapper: a third of what loading SQLAlchemy costs, at each start of
`flowsched run`. Its module `engine` needs neither. A later import of the whole package works as usual.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING, Any, Final

_PACKAGE: Final = "sqlalchemy.ext.asyncio"


def _engine() -> Any:
    """The package's module `engine`, loaded beside a package that runs none of its own code."""
    spec = None if _PACKAGE in sys.modules else find_spec(_PACKAGE)
    if spec is None:  # it is loaded already
        return importlib.import_module(f"{_PACKAGE}.engine")
    sys.modules[_PACKAGE] = module_from_spec(spec)
    try:
        return importlib.import_module(f"{_PACKAGE}.engine")
    finally:
        del sys.modules[_PACKAGE]


if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection as AsyncConnection
    from sqlalchemy.ext.asyncio import AsyncEngine as AsyncEngine
    from sqlalchemy.ext.asyncio import AsyncTransaction as AsyncTransaction
    from sqlalchemy.ext.asyncio import create_async_engine as create_async_engine
else:
    _loaded = _engine()
    AsyncConnection = _loaded.AsyncConnection
    AsyncEngine = _loaded.AsyncEngine
    AsyncTransaction = _loaded.AsyncTransaction
    create_async_engine = _loaded.create_async_engine
