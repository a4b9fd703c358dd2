"""Statements as asyncpg reads them: parameters by number, with types that the server cannot mistake."""

from __future__ import annotations

from stepfast.database.statement import numbered


def test_a_name_has_one_number_wherever_it_stands() -> None:
    text, names = numbered("UPDATE t SET a = :x, b = :y WHERE c = :x", frozenset())

    assert (text, names) == ("UPDATE t SET a = $1, b = $2 WHERE c = $1", ("x", "y"))


def test_whole_numbers_are_large_ones() -> None:
    text, _ = numbered("SELECT CASE WHEN :delay > 0 THEN :word END", frozenset({"delay"}))

    assert text == "SELECT CASE WHEN CAST($1 AS BIGINT) > 0 THEN $2 END"


def test_lists_that_are_texts_stay_texts() -> None:
    text, _ = numbered("SELECT 1 WHERE id = ANY(CAST(:ids AS TEXT[]))", frozenset())

    assert text == "SELECT 1 WHERE id = ANY(CAST(CAST($1 AS TEXT) AS TEXT[]))"


def test_quoted_texts_comments_and_casts_are_left_alone() -> None:
    said = "SELECT ':x', \":y\", a::text -- :z\n, 10 % 3 /* :w */"

    assert numbered(said, frozenset()) == (said, ())
