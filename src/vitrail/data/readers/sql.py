"""What a database answers to a query: rows, as text. It is only read: the connection cannot write where its driver can
promise that, and nothing is ever committed."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.readers.column_buffer import ColumnBuffer
from vitrail.data.readers.source import Query, secrets_in
from vitrail.storage.untrusted_files import LONGEST_TEXT, read_text

_ASIDE = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*|/\*.*?\*/", re.DOTALL)  # texts, names and remarks
_READS = re.compile(r"\(*\s*(?:select|with|from|values|table|pivot)\b", re.IGNORECASE)
INSTALL = "Install what reads it: pip install 'vitrail[files]'"


def need(module: str, path: Path) -> Any:
    """A package that only some kinds of file need."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        what = f"the package {module} is not installed here."
        raise VitrailError(f"cannot read {path.name}", [Problem(str(path), what, f"{INSTALL}.")]) from None


def ask(query: Query) -> tuple[list[str], ColumnBuffer]:
    """The names of the answer's columns, and its rows."""
    sql = _find_sql(query)
    scheme = query.url.partition(":")[0].partition("+")[0].lower()
    opened = {"sqlite": _open_sqlite, "duckdb": _open_duckdb}.get(scheme, _open_any)
    try:
        with opened(query) as execute:
            cursor = execute(sql)
            if not cursor.description:
                raise _refuse(query, "expected a query that returns rows, got a command.", "Write SELECT ...")
            header = [str(column[0]).strip() for column in cursor.description]
            rows = ColumnBuffer(len(header))
            while some := cursor.fetchmany(max(1, rows.room)):
                rows.add([list(row) for row in some], range(len(rows) + 2, len(rows) + 2 + len(some)))
    except VitrailError:
        raise
    except Exception as error:  # a driver may raise anything, and may say in it how it was called
        what = f"the database refused: {_say(error, query)}."
        raise _refuse(query, what, "Check the file or address, the query and the permissions.") from None
    return header, rows


def _find_sql(query: Query) -> str:
    sql = query.sql.strip()
    if sql.startswith("@"):
        try:
            sql = read_text(Path(sql[1:]), LONGEST_TEXT, "utf-8-sig").strip()
        except (OSError, ValueError) as error:
            raise _refuse(
                query, f"the file of the query cannot be read: {type(error).__name__}.", "Check it."
            ) from None
    if not sql:
        raise _refuse(query, "expected a query, got none.", 'End it in "?sql=SELECT ... FROM ...".')
    bare = _ASIDE.sub(" ", sql).strip().rstrip("; \n")
    if not _READS.match(bare) or ";" in bare:
        what = "expected one query that reads, got another command, or several."
        raise _refuse(query, what, "Begin it with SELECT or WITH.")
    return sql


def _say(error: Exception, query: Query) -> str:
    """The first line of what a driver says, without anything that the address or the query holds in secret."""
    cause = getattr(error, "orig", None) or error
    text = str(cause).strip().split("\n")[0]
    for secret in (*secrets_in(query.url), query.sql):
        text = text.replace(secret, "***") if secret else text
    return f"{type(cause).__name__}: {text[:200]}".rstrip(". ")


def _refuse(query: Query, what: str, hint: str) -> VitrailError:
    return VitrailError(f"cannot read {query.name}", [Problem(str(query), what, hint)])


def _file(query: Query) -> Path:
    """The database's file: what stands after three slashes."""
    text = query.url.partition("://")[2].partition("?")[0]
    path = Path(unquote(text.removeprefix("/")))
    if not path.is_file():
        raise _refuse(
            query, "expected a database file, but there is none.", "Check the path, which follows three slashes."
        )
    return path


@contextmanager
def _open_sqlite(query: Query) -> Iterator[Callable[[str], Any]]:
    place = f"file:{quote(str(_file(query).resolve()))}?mode=ro"
    with closing(sqlite3.connect(place, uri=True)) as connection:
        yield connection.execute


@contextmanager
def _open_duckdb(query: Query) -> Iterator[Callable[[str], Any]]:
    duckdb = need("duckdb", query)
    with closing(duckdb.connect(str(_file(query)), read_only=True)) as connection:
        yield connection.execute


class _Answer:
    """SQLAlchemy's as a driver's own would be; of what it streams it has already taken the first rows."""

    def __init__(self, result: Any) -> None:
        self.description = [(name,) for name in result.keys()] if result.returns_rows else None  # noqa: SIM118
        self.fetchmany = result.fetchmany


@contextmanager
def _open_any(query: Query) -> Iterator[Callable[[str], Any]]:
    """Through SQLAlchemy; PostgreSQL promises a transaction that only reads, of others it is rolled back."""
    alchemy = need("sqlalchemy", query)
    try:
        engine = alchemy.create_engine(query.url)
    except ImportError as error:
        what = f"the driver of this database is not installed here ({error.name})."
        raise _refuse(query, what, f"pip install {error.name}") from None
    reads = {"postgresql_readonly": True} if engine.dialect.name == "postgresql" else {}
    # a driver that can, holds no more rows than are asked for; and a % is a %, not a place for something
    reads |= {"stream_results": True, "no_parameters": True}
    try:
        with engine.connect().execution_options(**reads) as connection, connection.begin() as work:
            yield lambda sql: _Answer(connection.exec_driver_sql(sql))
            work.rollback()
    finally:
        engine.dispose()
