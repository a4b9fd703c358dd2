"""Which settings of a server risk losing committed data."""

from __future__ import annotations

import pytest

from stepfast.admin.doctor import mariadb, postgresql
from stepfast.admin.doctor.finding import Level


@pytest.mark.parametrize(
    ("fsync", "full_pages", "synchronous", "level"),
    [
        ("on", "on", "on", Level.OK),
        ("on", "on", "remote_apply", Level.OK),
        ("on", "on", "local", Level.OK),
        ("on", "on", "off", Level.FAIL),
        ("off", "on", "on", Level.FAIL),
        ("on", "off", "on", Level.FAIL),
    ],
)
def test_postgresql_must_wait_for_the_disk(
    fsync: str, full_pages: str, synchronous: str, level: Level
) -> None:
    assert postgresql.durability(fsync, full_pages, synchronous).level is level


@pytest.mark.parametrize(("flush", "level"), [("1", Level.OK), ("0", Level.FAIL), ("2", Level.FAIL)])
def test_mariadb_must_wait_for_the_disk(flush: str, level: Level) -> None:
    assert mariadb.durability(flush).level is level


@pytest.mark.parametrize(
    ("product", "level"),
    [
        ("MariaDB 10.5.9", Level.FAIL),
        ("MariaDB 10.6.0", Level.WARN),
        ("MariaDB 10.11.14", Level.OK),
        ("MariaDB 11.4.2", Level.OK),
        ("MySQL 5.7.44", Level.FAIL),
        ("MySQL 8.0.20", Level.FAIL),
        ("MySQL 8.4.0", Level.OK),
    ],
)
def test_a_version_that_lacks_what_we_need_is_named(product: str, level: Level) -> None:
    assert mariadb.age(product).level is level
