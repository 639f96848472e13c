"""Which schema a database has, and how it gets the one this version needs (alembic, in `migrations/`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import Connection, inspect, text

import flowsched
from flowsched.errors import ConfigurationError

if TYPE_CHECKING:
    from alembic.config import Config

#: The newest revision in `migrations/versions`: known here so that an ordinary start need not load alembic.
REVISION: Final = "0007"
#: Any number that no one else uses: replicas that start together migrate one after the other.
_ADVISORY_LOCK: Final = 0x666C6F77


def migrations_folder() -> Path:
    """Where the migrations are: inside the wheel, or at the top of a checkout.

    Raises:
        ConfigurationError: They are in neither place; the installation is incomplete.
    """
    package = Path(flowsched.__file__).parent
    for folder in (package / "_share" / "migrations", package.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise ConfigurationError(f"no migrations beside {package}: the installation is incomplete, reinstall it")


def revision_of(connection: Connection) -> str | None:
    """The revision of an open database; None if it is empty."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def check(revision: str | None, where: str) -> None:
    """Refuse a schema this version does not know how to use.

    Raises:
        ConfigurationError: It is older or newer; the message says what to do.
    """
    if revision == REVISION:
        return
    if revision is None or revision in known_revisions():
        raise ConfigurationError(
            f"the schema of {where} is older ({revision or 'empty'}) than this version needs ({REVISION}): "
            "back it up, then run `flowsched db upgrade`"
        )
    raise ConfigurationError(
        f"the schema of {where} ({revision}) is newer than this version ({flowsched.__version__}, "
        f"schema {REVISION}) knows: start the newer version, or restore the backup made before its upgrade"
    )


def known_revisions() -> frozenset[str]:
    """Every revision this version has a script for."""
    from alembic.script import ScriptDirectory

    return frozenset(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def upgrade(connection: Connection, to: str = "head") -> None:
    """Bring the schema up, inside the caller's transaction.

    Raises:
        ConfigurationError: The schema is newer than this version.
    """
    from alembic import command

    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
    revision = revision_of(connection)
    if revision is not None and revision not in known_revisions():
        check(revision, connection.engine.url.render_as_string(hide_password=True))
    command.upgrade(_config(connection), to)


def downgrade(connection: Connection, to: str) -> None:
    """Take the schema down, inside the caller's transaction. Columns and tables that go take their rows with
    them.
    """
    from alembic import command

    command.downgrade(_config(connection), to)


def differences(connection: Connection) -> list[Any]:
    """What the database has and `tables` has not, or the other way round: empty when the migrations are
    complete.
    """
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from flowsched.store.tables import metadata

    context = MigrationContext.configure(
        connection, opts={"compare_type": True, "compare_server_default": False}
    )
    return list(compare_metadata(context, metadata))


def _config(connection: Connection | None = None) -> Config:
    """Alembic's configuration, without an ini file."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
