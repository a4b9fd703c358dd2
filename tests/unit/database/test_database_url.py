"""A URL is shown without its password, however it is written."""

from __future__ import annotations

import pytest

from stepfast.database.drivers import hosts_of, masked, open_database, sqlite_path
from stepfast.errors import ConfigurationError, UnreachableError


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hunter2@host:5432/name", "postgresql://me:***@host:5432/name"),
        ("postgresql://me@host:5432/name", "postgresql://me@host:5432/name"),
        ("postgresql://host:5432/name", "postgresql://host:5432/name"),
        ("postgresql://:hunter2@host/name", "postgresql://:***@host/name"),
        ("postgresql://me:hunter@2@host/name", "postgresql://me:***@host/name"),
        ("postgresql://me:hunter/2@host/name", "postgresql://me:***@host/name"),
        ("mysql://me:hunter:2@host/name", "mysql://me:***@host/name"),
        ("postgres//me:hunter2@host/name", "postgres//me:***@host/name"),
        ("me:hunter2@host/name", "me:***@host/name"),
        (
            "postgresql://host/name?user=me&password=hunter2&sslmode=require",
            "postgresql://host/name?user=me&password=***&sslmode=require",
        ),
        (
            "postgresql://me:hunter2@h1:5432,h2:5433/name?target_session_attrs=any",
            "postgresql://me:***@h1:5432,h2:5433/name?target_session_attrs=any",
        ),
        ("postgresql://h1:5432,h2:5432/name", "postgresql://h1:5432,h2:5432/name"),
        ("sqlite:////work:here@home.db", "sqlite:////work:here@home.db"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert masked(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@host:port/name",
        "mysql://me:hunter@2@host/name",
        "postgresql://me:hunter/2@host/name",
        "postgresql://me:hunter2@h1:5432,h2:port/name",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_with_a_cure(url: str) -> None:
    with pytest.raises(ConfigurationError, match="%40") as refused:
        open_database(url)

    assert "hunter" not in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        "host=db password=hunter2 dbname=x",
        "host=db password='hun ter2' dbname=x",
        "Server=db;User Id=u;Password=hunter2;",
        "postgresql:u:hunter2@h/x",
        "mysql:u:hunter2@h/x",
        "me/hunter2@db",
        "hunter2",
        "//me:hunter2@host/name",
        "sqlite://me:hunter2@host/name",
    ],
)
def test_what_is_no_url_is_not_shown(given: str) -> None:
    with pytest.raises(ConfigurationError, match="write") as refused:
        open_database(given).connect()

    assert "hun" not in str(refused.value)
    assert "ter2" not in str(refused.value)


def test_the_name_of_a_file_is_shown_with_the_cure() -> None:
    with pytest.raises(
        ConfigurationError, match=r"'work\.db' is not a database URL; write sqlite:///work\.db"
    ):
        open_database("work.db")


def test_a_sqlite_url_names_a_file() -> None:
    assert sqlite_path("sqlite:///work.db") == "work.db"
    assert sqlite_path("sqlite:////srv/my%20work.db?mode=rw") == "/srv/my work.db"


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://me@host/name", [("host", None)]),
        ("postgresql://me:a,b@h1:1,h2:2/name", [("h1", 1), ("h2", 2)]),
        ("postgresql://h1,h2,h3/name", [("h1", None), ("h2", None), ("h3", None)]),
        ("postgresql://h1,[::2]:5/name", [("h1", None), ("::2", 5)]),
        ("postgresql://[::1]:4,[::2]:5/name", [("::1", 4), ("::2", 5)]),
        ("postgresql:///name?host=h1,h2&port=1,2", [("h1", 1), ("h2", 2)]),
        ("postgresql:///name?host=h1,h2", [("h1", None), ("h2", None)]),
        ("postgresql:///name", [("", None)]),
    ],
)
def test_a_url_may_name_several_hosts(url: str, hosts: list[tuple[str, int | None]]) -> None:
    assert open_database(url).dialect.name == "postgresql"
    assert hosts_of(url) == hosts


def test_several_hosts_of_mariadb_are_refused_with_the_cure() -> None:
    with pytest.raises(ConfigurationError, match=r"several hosts.*proxy") as refused:
        open_database("mysql://me:hunter2@h1:3306,h2:3306/name")

    assert "hunter2" not in str(refused.value)


def test_all_hosts_are_named_when_none_answers() -> None:
    with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:1, \[::1\]:2") as unreachable:
        open_database("postgresql://me:hunter2@127.0.0.1:1,[::1]:2/name").connect()

    assert "hunter2" not in str(unreachable.value)
