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


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        (("", 0, 0, 0, 0), None, ""),
        (("", 0, 0, 2, 2), Level.OK, "asynchronous, 2 standbys: a failover"),
        (("a,b", 0, 1, 2, 2), Level.OK, "synchronous: 1 of 2 standbys"),
        (
            ("a", 0, 0, 0, 1),
            Level.OK,
            "1 standby, synchronous_standby_names = 'a'",
        ),  # details are hidden from this user
        (("a", 0, 0, 0, 0), Level.FAIL, "no standby is connected: commits will wait"),
        (("a", 3, 0, 0, 0), Level.FAIL, "3 commits wait for a synchronous standby"),
    ],
)
def test_replication_of_postgresql(
    facts: tuple[str, int, int, int, int], level: Level | None, words: str
) -> None:
    found = postgresql.judge_replication(*facts)

    assert [it.level for it in found] == ([] if level is None else [level])
    assert all(words in it.found and "terminate" not in str(it.cure) for it in found)


GALERA = {
    "wsrep_ready": "ON",
    "wsrep_cluster_status": "Primary",
    "wsrep_cluster_size": "3",
    "wsrep_local_state_comment": "Synced",
}


@pytest.mark.parametrize(
    ("change", "level"),
    [
        ({}, Level.OK),
        ({"wsrep_local_state_comment": "Donor/Desynced"}, Level.WARN),
        ({"wsrep_cluster_status": "non-Primary"}, Level.FAIL),
        ({"wsrep_ready": "OFF"}, Level.FAIL),
    ],
)
def test_a_node_of_galera(change: dict[str, str], level: Level) -> None:
    (found,) = mariadb.judge_galera(GALERA | change)

    assert found.level is level
    assert "Galera" in found.found


@pytest.mark.parametrize(
    ("status", "levels"),
    [
        ({}, []),
        ({"rpl_semi_sync_master_status": "OFF"}, []),
        ({"rpl_semi_sync_master_status": "ON", "rpl_semi_sync_master_clients": "2"}, [Level.OK]),
        ({"rpl_semi_sync_master_status": "ON", "rpl_semi_sync_master_clients": "0"}, [Level.WARN]),
    ],
)
def test_semi_synchronous_replication(status: dict[str, str], levels: list[Level]) -> None:
    assert [it.level for it in mariadb.judge_semi_sync(status)] == levels
