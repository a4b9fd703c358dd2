"""Opening a database by its URL: what is refused, with the remedy."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from stepfast.database.drivers import masked, open_database
from stepfast.errors import ConfigurationError, UnreachableError, install_hint


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("work.db", r"not a database URL; write sqlite:///work\.db"),
        ("", "not a database URL"),
        ("oracle://host/x", "no driver for 'oracle' URLs"),
        ("postgresql+psycopg://host/x", r"without '\+driver' suffixes"),
        ("mysql+pymysql://host/x", r"without '\+driver' suffixes"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        ("sqlite:///", "needs a file"),
        ("sqlite://work.db", "three slashes"),
        ("postgresql://me@host/x?pooler=statement", "pooler='statement'.*have no transactions"),
        ("postgresql://me@host:port/x", "check host and port"),
        ("postgresql://me:p@ss@host/x", "%40"),
    ],
)
def test_a_url_that_cannot_work_is_refused_with_the_cure(url: str, sentence: str) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        open_database(url)


@pytest.mark.parametrize(
    ("url", "dialect", "wakes"),
    [
        ("sqlite:///work.db", "sqlite", False),
        ("sqlite:////var/lib/work.db", "sqlite", False),
        ("postgresql://me@host/x", "postgresql", True),
        ("postgres://me@host/x", "postgresql", True),
        ("postgresql://me@host/x?pooler=transaction", "postgresql", True),
        ("postgresql://me@host/x?pooler=session", "postgresql", True),
        ("mysql://me@host/x", "mariadb", False),
        ("mariadb://me@host/x", "mariadb", False),
    ],
)
def test_a_url_names_its_database(url: str, dialect: str, wakes: bool) -> None:  # noqa: FBT001 - a parameter
    database = open_database(url)

    assert (database.dialect.name, database.wakes) == (dialect, wakes)


@pytest.mark.parametrize(
    "url",
    ["sqlite:///work.db", "postgresql://me:hunter2@host/x?pooler=transaction", "mysql://me:hunter2@host/x"],
)
def test_listening_elsewhere_means_at_the_server_itself(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_LISTEN_URL", url)

    with pytest.raises(ConfigurationError, match="leads to the server itself") as refusal:
        open_database("postgresql://me@pooler/x")

    assert "hunter2" not in str(refusal.value)
    assert open_database("mysql://me@host/x").listen_elsewhere is None


@pytest.mark.parametrize("number", ["0", "-1", "many", "1001", "2.5"])
def test_a_number_of_connections_that_cannot_work_is_refused(
    number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEPFAST_MAX_CONNECTIONS", number)

    with pytest.raises(ConfigurationError, match=f"STEPFAST_MAX_CONNECTIONS='{number}'"):
        open_database("postgresql://me@host/x")


def test_nothing_is_opened_before_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "work.db"

    open_database(f"sqlite:///{path}")

    assert not path.exists()


def test_a_file_in_a_missing_folder_is_unreachable_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(UnreachableError, match=r"missing.* does not exist"):
        open_database(f"sqlite:///{tmp_path}/missing/work.db").connect()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which nobody may write")
def test_a_folder_that_cannot_be_written_to_is_named_with_the_cure() -> None:
    with pytest.raises(UnreachableError, match=r"write to '/proc'\? STEPFAST_DATABASE_URL names another"):
        open_database("sqlite:////proc/work.db").connect()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://me:hunter2@127.0.0.1:1/x", "PostgreSQL at 127.0.0.1:1"),
        ("mysql://me:hunter2@127.0.0.1:1/x", "MariaDB/MySQL at 127.0.0.1:1"),
    ],
)
def test_a_server_that_does_not_answer_is_unreachable_with_its_place(url: str, place: str) -> None:
    with pytest.raises(UnreachableError) as refusal:
        open_database(url).connect()

    assert f"cannot reach {place}: " in str(refusal.value)
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize(
    ("module", "url", "extra"),
    [
        ("psycopg", "postgresql://me@host/x", "postgresql"),
        ("pymysql", "mysql://me@host/x", "mysql"),
    ],
)
def test_a_missing_driver_is_told_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, module: str, url: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # what Python does with modules that cannot be imported

    with pytest.raises(ConfigurationError, match=re.escape(install_hint(extra))):
        open_database(url).connect()


def test_a_mysql_url_without_a_database_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="names no database"):
        open_database("mysql://me:hunter2@host").connect()


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hunter2@host/x", "postgresql://me:***@host/x"),
        ("postgresql://me@host/x", "postgresql://me@host/x"),
        (
            "postgresql://host/x?password=hunter2&sslmode=require",
            "postgresql://host/x?password=***&sslmode=require",
        ),
        ("postgresql://me:hunt@er2@host/x", "postgresql://me:***@host/x"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
    ],
)
def test_a_url_is_shown_without_its_password(url: str, shown: str) -> None:
    assert masked(url) == shown


@pytest.mark.parametrize("linked", [False, True])
def test_a_sqlite_file_that_we_create_is_readable_by_nobody_else(tmp_path: Path, linked: bool) -> None:  # noqa: FBT001 - a parameter
    path = tmp_path / "work.db"
    if linked:
        (tmp_path / "link.db").symlink_to(path)
    before = os.umask(0o022)
    try:
        database = open_database(f"sqlite:///{tmp_path / 'link.db' if linked else path}")
        connection = database.connect()
        connection.execute("CREATE TABLE t (x)")

        assert {it.name: it.stat().st_mode & 0o777 for it in tmp_path.iterdir() if not it.is_symlink()} == {
            "work.db": 0o600,
            "work.db-wal": 0o600,
            "work.db-shm": 0o600,
        }
        connection.close()
    finally:
        os.umask(before)


def test_a_sqlite_file_that_is_there_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "work.db"
    path.touch()
    path.chmod(0o660)

    open_database(f"sqlite:///{path}").connect().close()

    assert path.stat().st_mode & 0o777 == 0o660
