"""SQL that SQLite and PostgreSQL spell differently. Only the dialect in use is loaded: PostgreSQL's takes 25 ms."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, ColumnElement, Table, and_, cast, collate, func, type_coerce


def insert_into(table: Table, kind: str) -> Any:
    """An insert with `on_conflict_do_update`, which both dialects have, by functions of their own.

    Args:
        table: Where to.
        kind: "sqlite" or "postgresql".
    """
    if kind == "sqlite":
        from sqlalchemy.dialects.sqlite import insert as sqlite_insert

        return sqlite_insert(table)
    from sqlalchemy.dialects.postgresql import insert as postgresql_insert

    return postgresql_insert(table)


def begins(column: ColumnElement[Any], prefix: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether the text of a column begins with a given one. `LIKE` ignores the case of ASCII letters on SQLite alone."""
    return func.substr(column, 1, func.length(prefix)) == prefix


def in_range(column: ColumnElement[Any], prefix: str, kind: str) -> ColumnElement[bool]:
    """The same as a range of the column's index, which PostgreSQL needs with `text_pattern_ops`.

    Args:
        column: The column.
        prefix: The beginning, which is not empty.
        kind: "sqlite" or "postgresql", whose other operators follow a language.
    """
    least, below = (">=", "<") if kind == "sqlite" else ("~>=~", "~<~")
    after = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return and_(column.op(least, is_comparison=True)(prefix), column.op(below, is_comparison=True)(after))


def contains(column: ColumnElement[Any], part: ColumnElement[Any], kind: str) -> ColumnElement[bool]:
    """Whether the text of a column contains another one; the case of ASCII letters is ignored, that of others counts.

    Args:
        column: The column.
        part: The text that it may contain.
        kind: "sqlite" or "postgresql", whose `lower` knows other letters too.
    """
    if kind == "sqlite":
        return func.instr(func.lower(column), func.lower(part)) > 0
    return func.strpos(func.lower(collate(column, "C")), func.lower(collate(part, "C"))) > 0


def text_in(document: ColumnElement[Any], key: str, kind: str) -> ColumnElement[Any]:
    """The text at a key of a column that holds JSON as text; null where there is none.

    Args:
        document: The column.
        key: In its object.
        kind: "sqlite" or "postgresql".
    """
    if kind == "sqlite":
        typed: ColumnElement[Any] = type_coerce(document, JSON)
    else:
        from sqlalchemy.dialects.postgresql import JSONB

        typed = cast(document, JSONB)
    text: ColumnElement[Any] = typed[key].as_string()
    return text


def type_name(kind: Any) -> str:
    """PostgreSQL's name of a column's type."""
    from sqlalchemy.dialects import postgresql

    name: str = kind.compile(dialect=postgresql.dialect())  # type: ignore[no-untyped-call]
    return name
