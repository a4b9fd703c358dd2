"""A session of a server is described without the values in its statements."""

from __future__ import annotations

from datetime import timedelta

import pytest

from stepfast.admin.doctor.finding import LONGEST_OUTLINE, Session, outline


@pytest.mark.parametrize(
    ("dialect", "query", "expected"),
    [
        ("postgresql", "UPDATE t SET a = 'hunter2' WHERE b = 'x'", "UPDATE t SET a = …"),
        ("postgresql", "UPDATE t SET a = 'C:\\' , b = 'hunter2'", "UPDATE t SET a = …"),
        ("postgresql", "SELECT $tag$hunter2$tag$", "SELECT …"),
        ("postgresql", "SELECT $$hunter2$$", "SELECT …"),
        ("postgresql", "SELECT 1 /* hunter2 */", "SELECT ? …"),
        ("postgresql", "SELECT a -- hunter2\nFROM t", "SELECT a …"),
        ("postgresql", 'UPDATE "order"\n   SET "a" = $1', 'UPDATE "order" SET "a" = $1'),
        (
            "postgresql",
            "SELECT t1.c2 FROM t1 WHERE n = 4111111111111111 AND m = 1.5e3",
            "SELECT t1.c2 FROM t1 WHERE n = ? AND m = ?",
        ),
        ("mariadb", 'UPDATE t SET a = "hunter2"', "UPDATE t SET a = …"),
        ("mariadb", "SELECT `a` FROM t # hunter2", "SELECT `a` FROM t …"),
        ("mariadb", "SELECT 0xDEADBEEF", "SELECT ?"),
        ("mariadb", "", ""),
    ],
)
def test_a_statement_is_outlined_without_its_values(dialect: str, query: str, expected: str) -> None:
    assert outline(query, dialect) == expected


def test_a_long_statement_is_cut() -> None:
    text = outline("SELECT " + ", ".join(["a"] * 100), "postgresql")

    assert len(text) == LONGEST_OUTLINE
    assert text.endswith("…")


def test_a_session_reads_as_a_sentence() -> None:
    session = Session(
        4711,
        "bob",
        "psql",
        "idle in transaction",
        age=timedelta(minutes=3),
        query="UPDATE t",
        locks_ours=True,
        pins=True,
        blocks=2,
    )

    assert (
        str(session)
        == "session 4711 (user bob, psql, idle in transaction), open for 3 min, 2 wait for it: UPDATE t"
    )
