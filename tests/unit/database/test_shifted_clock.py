"""Statements are rendered for a clock that a test has moved."""

from __future__ import annotations

import pytest

from stepfast.database.dialects import DIALECTS, Dialect, Shift
from stepfast.database.statement import Statement, sql

NOW = sql("SELECT {now}")
EVERY_DIALECT = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS.keys())


def kept(statement: Statement) -> set[str]:
    return set(statement._rendered)


@EVERY_DIALECT
def test_a_moved_clock_is_rendered_as_so_many_microseconds_away(dialect: Dialect) -> None:
    real = NOW.render(dialect).removeprefix("SELECT ")

    assert NOW.render(Shift(5).applied(dialect)) == f"SELECT ({real} + (5))"
    assert NOW.render(Shift(-5).applied(dialect)) == f"SELECT ({real} + (-5))"


@EVERY_DIALECT
def test_a_frozen_clock_is_rendered_as_one_instant(dialect: Dialect) -> None:
    assert NOW.render(Shift(5, frozen_at=1_700).applied(dialect)) == "SELECT 1700"


@EVERY_DIALECT
def test_everything_else_is_as_it_was(dialect: Dialect) -> None:
    shifted = Shift(5).applied(dialect)

    assert (shifted.name, shifted.begin, shifted.quote) == (dialect.name, dialect.begin, dialect.quote)
    assert {word: it for word, it in shifted.words.items() if word != "now"} == {
        word: it for word, it in dialect.words.items() if word != "now"
    }
    assert sql("id {any_of:ids}").render(shifted) == sql("id {any_of:ids}").render(dialect)
    assert sql("1", **{dialect.name: "2"}).render(shifted) == "2"


def test_what_is_rendered_for_a_moved_clock_is_not_kept() -> None:
    """Each move would leave a text of every statement, and other applications must not find one."""
    statement = sql("SELECT {now}")
    texts = {name: statement.render(dialect) for name, dialect in DIALECTS.items()}

    for dialect in DIALECTS.values():
        statement.render(Shift(7).applied(dialect))

    assert kept(statement) == set(DIALECTS)
    assert {name: statement.render(dialect) for name, dialect in DIALECTS.items()} == texts
