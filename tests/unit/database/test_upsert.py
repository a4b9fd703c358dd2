"""An upsert becomes statements: keys, chunks, and what is refused."""

from __future__ import annotations

import enum
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from stepfast.database import upsert
from stepfast.database.connection import Transaction
from stepfast.database.dialects import DIALECTS, MARIADB, POSTGRESQL, SQLITE, Dialect
from stepfast.database.upsert import Upsert
from stepfast.errors import ConfigurationError


class Recorder(Transaction):
    """A transaction at the very edge: it notes what would be sent."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self.sent: list[tuple[str, dict[str, Any]]] = []

    @property
    def dialect(self) -> Dialect:
        return self._dialect

    def execute(self, text: str, parameters: Any = None) -> int:
        self.sent.append((text, dict(parameters)))
        return 1


def sent(
    dialect: Dialect, *rows: dict[str, Any], key: tuple[str, ...] = ("id",), table: str = "ledger"
) -> Any:
    tx = Recorder(dialect)
    Upsert(table, key, rows).apply(tx)
    return tx.sent


VALUES = "VALUES (:id_0, :amount_0), (:id_1, :amount_1)"
STANDARD = f'INSERT INTO "ledger" ("id", "amount") {VALUES} ON CONFLICT ("id") DO UPDATE SET "amount" = excluded."amount"'
MYSQL = f"INSERT INTO `ledger` (`id`, `amount`) {VALUES} ON DUPLICATE KEY UPDATE `amount` = VALUES(`amount`)"


@pytest.mark.parametrize(
    ("dialect", "text"), [(SQLITE, STANDARD), (POSTGRESQL, STANDARD), (MARIADB, MYSQL)], ids=DIALECTS.keys()
)
def test_rows_become_one_statement(dialect: Dialect, text: str) -> None:
    found = sent(dialect, {"id": "b", "amount": 2}, {"id": "a", "amount": 1})

    assert found == [(text, {"id_0": "a", "amount_0": 1, "id_1": "b", "amount_1": 2})]


@pytest.mark.parametrize(
    ("dialect", "end"),
    [
        (SQLITE, 'ON CONFLICT ("id") DO NOTHING'),
        (POSTGRESQL, 'ON CONFLICT ("id") DO NOTHING'),
        (MARIADB, "ON DUPLICATE KEY UPDATE `id` = `id`"),
    ],
    ids=lambda it: it.name if isinstance(it, Dialect) else "",
)
def test_rows_that_are_nothing_but_a_key_are_left_alone_if_there(dialect: Dialect, end: str) -> None:
    ((text, _),) = sent(dialect, {"id": "a"})

    assert text.endswith(end)


def test_rows_are_written_in_key_order_and_the_last_of_one_key_wins() -> None:
    ((_, parameters),) = sent(SQLITE, {"id": "b", "n": 1}, {"id": "a", "n": 2}, {"id": "b", "n": 3})

    assert parameters == {"id_0": "a", "n_0": 2, "id_1": "b", "n_1": 3}


def test_a_key_may_have_several_columns() -> None:
    ((text, _),) = sent(POSTGRESQL, {"feed": "x", "id": 1, "n": 2}, key=("feed", "id"))

    assert 'ON CONFLICT ("feed", "id") DO UPDATE SET "n" = excluded."n"' in text


def test_a_table_may_have_a_schema() -> None:
    ((text, _),) = sent(POSTGRESQL, {"id": 1}, table="shop.ledger")

    assert text.startswith('INSERT INTO "shop"."ledger"')


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS.keys())
def test_many_rows_go_in_chunks(dialect: Dialect) -> None:
    found = sent(dialect, *({"id": n, "amount": n} for n in range(1_201)))

    assert len(found) == 3
    assert sum(len(parameters) for _, parameters in found) == 2 * 1_201


def test_wide_rows_go_in_smaller_chunks() -> None:
    wide = {f"column_{n}": n for n in range(200)}

    found = sent(SQLITE, *({"id": n, **wide} for n in range(400)))

    assert all(len(parameters) <= SQLITE.most_parameters for _, parameters in found)
    assert len(found) > 1


def test_no_rows_are_no_statement() -> None:
    assert sent(SQLITE) == []


@pytest.mark.parametrize("name", ["amount; DROP TABLE x", 'a"b', "a b", "", "1a", "a`b"])
def test_a_column_that_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="no table or column name"):
        sent(SQLITE, {"id": 1, name: 2})


def test_a_table_that_is_no_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no table or column name"):
        sent(SQLITE, {"id": 1}, table="ledger; DROP TABLE x")


def test_rows_with_different_columns_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="every row needs the columns id, amount"):
        sent(SQLITE, {"id": 1, "amount": 2}, {"id": 2})


def test_columns_may_come_in_another_order() -> None:
    ((_, parameters),) = sent(SQLITE, {"id": 1, "amount": 2}, {"amount": 4, "id": 3})

    assert parameters == {"id_0": 1, "amount_0": 2, "id_1": 3, "amount_1": 4}


@pytest.mark.parametrize("row", [{"amount": 2}, {"id": None, "amount": 2}])
def test_a_row_without_its_key_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="no value for its key id"):
        sent(SQLITE, row)


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 2


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, None),
        ("x", "x"),
        (1, 1),
        (True, True),
        (1.5, 1.5),
        (b"\x00", b"\x00"),
        (Colour.RED, "red"),
        (Level.HIGH, 2),
        (date(2024, 2, 29), "2024-02-29"),
        (time(12, 30), "12:30:00"),
        (datetime(2024, 2, 29, 12, tzinfo=None), "2024-02-29 12:00:00"),  # noqa: DTZ001 - the caller's business
        (Decimal("1.10"), "1.10"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        ({"a": [1]}, '{"a":[1]}'),
        ([1, 2], "[1,2]"),
    ],
    ids=repr,
)
def test_a_value_gets_a_form_that_every_driver_stores(value: Any, stored: Any) -> None:
    found = [upsert.plain(value, dialect) for dialect in DIALECTS.values()]

    assert found == [stored] * 3
    assert {type(it) for it in found} == {type(stored)}


def test_a_zone_is_kept_where_the_database_keeps_it_and_is_utc_elsewhere() -> None:
    at = datetime(2024, 7, 1, 12, tzinfo=timezone(timedelta(hours=9)))

    found = {name: upsert.plain(at, dialect) for name, dialect in DIALECTS.items()}

    assert found == {
        "sqlite": "2024-07-01 03:00:00",
        "mariadb": "2024-07-01 03:00:00",
        "postgresql": "2024-07-01 12:00:00+09:00",
    }
    assert at.astimezone(UTC).hour == 3
