"""A URL is shown without its password, however it is written."""

from __future__ import annotations

import pytest

from stepfast.database.drivers import masked, open_database, sqlite_path
from stepfast.errors import ConfigurationError


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
    ],
)
def test_a_url_that_cannot_be_read_is_refused_with_a_cure(url: str) -> None:
    with pytest.raises(ConfigurationError, match="%40") as refused:
        open_database(url)

    assert "hunter" not in str(refused.value)


def test_a_sqlite_url_names_a_file() -> None:
    assert sqlite_path("sqlite:///work.db") == "work.db"
    assert sqlite_path("sqlite:////srv/my%20work.db?mode=rw") == "/srv/my work.db"
