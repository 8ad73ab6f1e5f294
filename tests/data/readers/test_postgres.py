"""A real PostgreSQL server, started by these tests from what Debian installs; skipped where it is not."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.support.command import vitrail
from vitrail.core.errors import VitrailError
from vitrail.data.readers.source import to_place
from vitrail.data.readers.tables import read_table

BIN = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
pytestmark = pytest.mark.skipif(
    BIN is None or (os.geteuid() == 0 and shutil.which("runuser") is None),
    reason="no PostgreSQL server here: apt-get install postgresql",
)
PASSWORD = "p@ss wörd"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Its address with a password, and a table of patients. It refuses root, so root starts it as its own user."""
    place = Path(tempfile.mkdtemp(prefix="vitrail-pg-"))  # not below a folder that only root may enter
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if as_user:
        shutil.chown(place, "postgres")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (place / "word").write_text(PASSWORD, encoding="utf-8")
    (place / "word").chmod(0o644)

    def act(*words: str) -> None:
        subprocess.run([*as_user, *words], check=True, capture_output=True, cwd=place)

    make = ["-U", "reader", "--auth=scram-sha-256", f"--pwfile={place}/word", "-E", "UTF8"]
    act(f"{BIN}/initdb", "-D", f"{place}/db", *make)
    given = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={place} -c fsync=off"
    act(f"{BIN}/pg_ctl", "-D", f"{place}/db", "-w", "-l", f"{place}/log", "-o", given, "start")
    url = f"postgresql://reader:p%40ss%20w%C3%B6rd@127.0.0.1:{port}/postgres"
    try:
        _fill(url)
        yield url
    finally:
        act(f"{BIN}/pg_ctl", "-D", f"{place}/db", "-m", "immediate", "stop")
        shutil.rmtree(place)


def _fill(url: str) -> None:
    import sqlalchemy

    engine = sqlalchemy.create_engine(url)
    with engine.connect().execution_options(no_parameters=True) as work, work.begin():
        work.exec_driver_sql(
            "CREATE SEQUENCE numbers;"
            "CREATE TABLE patients (id int, age numeric(5,1), born date, crea float8, smokes bool, word text)"
        )
        work.exec_driver_sql(
            "INSERT INTO patients SELECT i, 20 + i % 60 + .5, date '1950-01-31' + i, i / 7.0::float8, i % 2 = 0,"
            " CASE WHEN i % 10 = 0 THEN NULL ELSE 'é' || i % 3 END FROM generate_series(1, 1000) i"
        )
    engine.dispose()


def ask(url: str, sql: str) -> pd.DataFrame:
    return read_table(to_place(f"{url}?sql={sql}"))


def test_rows_as_they_are(server: str) -> None:
    rows = ask(server, "SELECT * FROM patients ORDER BY id")
    assert rows.shape == (1000, 6)
    assert rows.iloc[2].tolist() == ["3", "23.5", "1950-02-03", repr(3 / 7), "False", "é0"]
    assert rows.word.isna().sum() == 100
    assert rows.index[0] == 2


def test_a_percent_sign_is_one(server: str) -> None:
    rows = ask(server, "SELECT id, word FROM patients WHERE word LIKE 'é%' AND id % 2 = 0")
    assert len(rows) == 400


def test_a_large_answer_comes_in_pieces(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.data.readers.column_buffer.BATCH", 60)
    rows = ask(server, "SELECT id, crea, word FROM patients ORDER BY id")
    assert rows.crea.tolist() == [i / 7 for i in range(1, 1001)]
    assert rows.word.isna().sum() == 100


def test_nothing_is_written(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query may call what writes: the transaction itself cannot."""
    with pytest.raises(VitrailError, match="read-only transaction"):
        ask(server, "SELECT nextval('numbers')")
    gone = "DELETE FROM patients RETURNING *"
    monkeypatch.setattr("vitrail.data.readers.sql._READS", re.compile(""))
    for sql in (f"WITH gone AS ({gone}) SELECT * FROM gone", gone):
        with pytest.raises(VitrailError, match="the database refused"):
            ask(server, sql)
    assert len(ask(server, "SELECT id FROM patients")) == 1000


def test_what_the_server_refuses_is_told_without_the_password(server: str) -> None:
    for url, sql, what in (
        (server, "SELECT * FROM nowhere", "UndefinedTable"),
        (server.replace("reader:p%40ss", "reader:wrong"), "SELECT 1", "password authentication failed"),
        (server.replace("127.0.0.1:", "127.0.0.1:1"), "SELECT 1", "the database refused"),
    ):
        with pytest.raises(VitrailError, match=what) as caught:
            ask(url, sql)
        assert "wörd" not in str(caught.value)
        assert "w%C3%B6rd" not in str(caught.value)


def test_a_site_checks_what_it_has_in_a_database(server: str, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(
        'name = "pg"\n[target]\ncolumn = "smokes"\nclasses = ["False", "True"]\npositive = "True"\n'
        '[features.age]\nkind = "numeric"\nrange = [0, 60]\n[features.crea]\nkind = "numeric"\n',
        encoding="utf-8",
    )
    done = vitrail("check", tmp_path / "study.toml", f"{server}?sql=SELECT age, crea, smokes FROM patients")
    assert "values are outside 0 to 60" in done.stdout
    assert "p%40ss" not in done.stdout + done.stderr
