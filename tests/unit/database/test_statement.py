"""Statements are rendered for each dialect."""

from __future__ import annotations

import pytest

from stepfast.database.dialects import DIALECTS, MARIADB, POSTGRESQL, SQLITE
from stepfast.database.statement import sql, with_parameters


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("id = :id AND a=:a_1", "id = %(id)s AND a=%(a_1)s"),
        ("(:a,:b)", "(%(a)s,%(b)s)"),
        ("SELECT 'at 10:30' WHERE a = :a", "SELECT 'at 10:30' WHERE a = %(a)s"),
        ("SELECT 'it''s :not' , :yes", "SELECT 'it''s :not' , %(yes)s"),
        ('SELECT ":not" , :yes', 'SELECT ":not" , %(yes)s'),
        ("SELECT a::text, :yes", "SELECT a::text, %(yes)s"),
        ("SELECT 1 -- :not\n , :yes", "SELECT 1 -- :not\n , %(yes)s"),
        ("SELECT /* :not\n:not */ :yes", "SELECT /* :not\n:not */ %(yes)s"),
        ("a LIKE '10%' OR b % 2 = :b", "a LIKE '10%%' OR b %% 2 = %(b)s"),
        ("SELECT 5:6", "SELECT 5:6"),
    ],
)
def test_a_parameter_is_spelled_the_drivers_way(text: str, spelled: str) -> None:
    assert with_parameters(text, POSTGRESQL) == with_parameters(text, MARIADB) == spelled


def test_sqlite_reads_the_text_as_it_stands() -> None:
    text = "SELECT '10%', ':x' WHERE a = :a -- :b"

    assert with_parameters(text, SQLITE) == text


def test_words_are_filled_in_per_dialect() -> None:
    statement = sql("SELECT {now} {for_update}")

    texts = {name: statement.render(dialect) for name, dialect in DIALECTS.items()}

    assert "julianday" in texts["sqlite"]
    assert "statement_timestamp()" in texts["postgresql"]
    assert "UTC_TIMESTAMP(6)" in texts["mariadb"]
    assert texts["postgresql"].endswith("FOR UPDATE")
    assert texts["sqlite"].endswith("AS INTEGER) ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("sqlite", "id IN (SELECT value FROM json_each(:ids))"),
        ("postgresql", "id = ANY(CAST(%(ids)s AS TEXT[]))"),
        ("mariadb", "id IN %(ids)s"),
    ],
)
def test_one_of_a_list_is_asked_in_each_databases_way(name: str, text: str) -> None:
    assert sql("id {any_of:ids}").render(DIALECTS[name]) == text


def test_an_override_replaces_the_text_for_its_dialect_only() -> None:
    statement = sql("SELECT 1", mariadb="SELECT :x")

    assert statement.render(SQLITE) == statement.render(POSTGRESQL) == "SELECT 1"
    assert statement.render(MARIADB) == "SELECT %(x)s"


def test_an_unknown_word_is_an_error_at_once() -> None:
    with pytest.raises(KeyError, match="nonsense"):
        sql("SELECT {nonsense}").render(SQLITE)


def test_a_statement_is_rendered_once_per_dialect() -> None:
    statement = sql("SELECT {now}")

    assert statement.render(SQLITE) is statement.render(SQLITE)


def test_every_dialect_knows_the_same_words() -> None:
    words = {name: set(dialect.words) for name, dialect in DIALECTS.items()}

    assert words["sqlite"] == words["postgresql"] == words["mariadb"]
