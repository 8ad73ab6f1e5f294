"""Where a table is, as a person writes it: a file, a sheet of a workbook (`file.xlsx#Sheet`), or a query to a database.

    duckdb:///clinic.db?sql=SELECT * FROM visits        a file beside; four slashes before an absolute path
    sqlite:////data/clinic.db?sql=@visits.sql           the query in a file
    postgresql://reader:password@host/trial?sql=...     anything else that SQLAlchemy knows

A query is a Path to everybody but who reads it: its text, which is printed, logged and kept, is made of the database's
name and a mark of the query alone. Who may read the database, and with what password, is in no text of it.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ENDING = re.compile(
    r"\.(?:(?P<text>(?:csv|tsv|data|txt)(?:\.gz)?)|(?P<parquet>parquet|pq)|(?P<book>xls[xm])(?:\#(?P<sheet>[^#]+))?"
    r"|(?P<study>sas7bdat|xpt|z?sav|dta)|(?P<omop>omop\.toml))$",
    re.IGNORECASE,
)
ENDINGS = (
    ".csv, .tsv, .data or .txt (also .gz), .parquet or .pq, .xlsx (also #SHEET), .sas7bdat, .xpt, .sav or .dta, "
    ".omop.toml"
)
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+_]*)://", re.ASCII)


class PassedOverWarning(UserWarning):
    """Something was there, and not read, or not as it stands: what, and why."""


def tell(words: str) -> None:
    warnings.warn(words, PassedOverWarning, stacklevel=3)


class Query(type(Path())):  # type: ignore[misc]
    """A query to a database."""

    url = ""  # with all that is in it; never to be shown
    sql = ""

    def __new__(cls, *shown: Any, url: str = "", sql: str = "") -> Query:
        return super().__new__(cls, *shown)  # type: ignore[no-any-return]

    def __init__(self, *shown: Any, url: str = "", sql: str = "") -> None:
        if hasattr(Path, "with_segments"):  # from Python 3.12 on a path is made here
            super().__init__(*shown)
        self.url, self.sql = url, sql

    def with_segments(self, *segments: Any) -> Path:
        return Path(*segments)

    def exists(self, **_: Any) -> bool:
        return True  # whether it does is told when it is read

    def is_file(self, **_: Any) -> bool:
        return False

    def is_dir(self, **_: Any) -> bool:
        return False


def to_place(given: str | Path) -> Path:
    """What a person wrote, as a path.

    >>> str(to_place("a/b.csv"))
    'a/b.csv'
    >>> str(to_place("postgresql://eve:secret@db.org/trial?password=p&sql=SELECT 1")).replace("\\\\", "/")
    'postgresql:db.org/trial, query e004ebd5'
    """
    if isinstance(given, Path):
        return given
    match = _URL.match(given)
    if not match:
        return Path(given)
    url, _, sql = given.partition("?sql=") if "?sql=" in given else given.partition("&sql=")
    sql = sql if re.search(r"\s", sql) else unquote(sql)
    where = url[match.end() :].partition("?")[0].rpartition("@")[2]
    where = where[1:] if where.startswith("/") else where  # file:///a is a, file:////a is /a
    mark = hashlib.sha256(sql.encode()).hexdigest()[:8]
    return Query(f"{match['scheme']}:{where}, query {mark}", url=url, sql=sql)


def secrets_in(url: str) -> list[str]:
    """All that may be a name or a password, as written and decoded, longest first."""
    rest = url.partition("://")[2]
    named = rest.rpartition("@")[0] if "@" in rest.partition("?")[0] else ""
    values = [part.partition("=")[2] for part in rest.partition("?")[2].split("&")]
    parts = {url, named, *named.partition(":")[::2], *values}
    return sorted({way for one in parts if one for way in (one, unquote(one))}, key=len, reverse=True)
