"""A row that was written by hand with a value that no code of ours writes is refused by the database itself."""

from __future__ import annotations

import re
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.database.column_types import COLUMN_TYPES, OneOf
from stepfast.database.migrate import CORE
from stepfast.database.tables import COLUMNS
from stepfast.errors import ConstraintError, DatabaseError
from stepfast.jobs.state import ENDED, LIVE
from stepfast.outbox.messages import MessageState
from stepfast.runs.partition import PartitionState
from stepfast.runs.quarantine import QuarantineState
from stepfast.runs.run import RunState
from stepfast.schedules.definition import Missed, Overlap
from tests.support import rows
from tests.support.odd_rows import NANOSECONDS, STATES, plain_row

if TYPE_CHECKING:
    from stepfast import Stepfast

PLAIN_INSERT = "INSERT INTO stepfast_job (id, kind, payload{names}) VALUES ('a', 'work', '{{}}'{values})"
TABLE = re.compile(r"CREATE TABLE IF NOT EXISTS (\w+) \((.*?)\n\)", re.DOTALL)
COLUMN = re.compile(r"^    (\w+) \{(\w+)(:hot)?\}", re.MULTILINE)
ODD: dict[str, tuple[Any, ...]] = {
    "instant": (NANOSECONDS, -NANOSECONDS),
    "counter": (-1, 2**31 - 1),
    "total": (-1, 2**63 - 1),
    "skew": (2**63 - 1, -(2**63)),
    "flag": (2, -1),
    "priority": (32_768, -32_769),
    "percentage": (101, -1),
}


def typed_columns(*, hot: bool) -> list[tuple[str, str, str]]:
    """Every column that has one of our types: its table, its name and the type; `hot`: also those that are hot."""
    return [
        (table[1], column, name)
        for statement in CORE.migrations[0].statements
        if (table := TABLE.search(statement))
        for column, name, is_hot in COLUMN.findall(table[2])
        if name in COLUMN_TYPES and (hot or not is_hot)
    ]


def insert(app: Stepfast, table: str, row: dict[str, Any]) -> None:
    with app.transaction() as tx:
        own = "OVERRIDING SYSTEM VALUE " if tx.dialect.name == "postgresql" else ""
        places = ", ".join(f":{name}" for name in row)
        tx.execute(f"INSERT INTO {table} ({', '.join(row)}) {own}VALUES ({places})", row)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("state", "'nonsense'"),
        ("state", "'done'"),  # of another table
        ("state", "''"),
        ("ready_at", str(NANOSECONDS)),
        ("ready_at", str(-NANOSECONDS)),
        ("priority", "40000"),
        ("failures", "-1"),
        ("crashes", "2000000000"),
    ],
)
def test_a_plain_insert_with_an_odd_value_is_refused(app: Stepfast, column: str, value: str) -> None:
    with app.transaction() as tx, pytest.raises(DatabaseError), tx.savepoint():
        tx.execute(PLAIN_INSERT.format(names=f", {column}", values=f", {value}"))

    assert app.operator.jobs() == []


@pytest.mark.parametrize("payload", ["nonsense", '{"a":', ""])
def test_a_payload_that_is_no_json_is_refused(app: Stepfast, payload: str) -> None:
    with (
        closing(app.database.connect()) as connection,
        pytest.raises(Exception, match=r"(?i)json|constraint"),
    ):
        connection.execute(f"INSERT INTO stepfast_job (id, kind, payload) VALUES ('a', 'work', '{payload}')")


@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("column", ["ready_at", "priority", "failures", "progress"])
def test_a_text_is_refused_where_a_number_belongs(app: Stepfast, column: str) -> None:
    """The other two databases refuse it by the type of the column."""
    with app.transaction() as tx, pytest.raises(ConstraintError), tx.savepoint():
        tx.execute(PLAIN_INSERT.format(names=f", {column}", values=", 'tomorrow'"))


def test_every_typed_column_refuses_what_is_out_of_its_range(app: Stepfast) -> None:
    typed = typed_columns(hot=app.database.dialect.name != "postgresql")
    with app.database.reading() as tx:
        shapes = {
            table: {str(name): str(kind) for name, kind in tx.rows(COLUMNS, table=table, folder=None)}
            for table in {table for table, _, _ in typed}
        }
    taken = []
    for number, (table, column, name) in enumerate(typed):
        row = plain_row(table, shapes[table], number)
        row |= {"state": STATES[table][0]} if "state" in row else {}
        insert(app, table, row)  # or a refusal would prove nothing
        rows.change(app, f"DELETE FROM {table}")
        for odd in ODD.get(name, ("nonsense", "")):
            try:
                insert(app, table, row | {column: odd})
            except DatabaseError:  # of a SMALLINT it is not a constraint
                continue
            taken.append(f"{table}.{column} = {odd!r}")

    assert taken == []


def test_the_states_of_the_tables_are_those_of_the_code() -> None:
    of_code = {
        "job_state": set(LIVE),
        "ended_state": set(ENDED),
        "message_state": set(MessageState),
        "run_state": set(RunState),
        "partition_state": set(PartitionState),
        "quarantine_state": set(QuarantineState),
        "missed": set(Missed),
        "overlap": set(Overlap),
    }
    for name, states in of_code.items():
        declared = COLUMN_TYPES[name]
        assert isinstance(declared, OneOf)
        assert set(declared.values) == states


def test_the_last_moment_that_a_job_may_wait_for_is_taken(app: Stepfast) -> None:
    with app.transaction() as tx:
        tx.execute(PLAIN_INSERT.format(names=", state, ready_at", values=", 'scheduled', 253402300799999999"))

    assert app.operator.jobs()[0].ready_at.year == 9999
