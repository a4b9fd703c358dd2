"""Lists as one parameter of a statement."""

from __future__ import annotations

import json

import pytest

from stepfast.database.connection import BORDER, as_parameter
from stepfast.database.dialects import MARIADB, POSTGRESQL, SQLITE


@pytest.mark.parametrize(
    ("values", "array"),
    [
        ([], "{}"),
        (["a", "b"], '{"a","b"}'),
        (['say "hi"', "back\\slash", "comma,brace}"], '{"say \\"hi\\"","back\\\\slash","comma,brace}"}'),
        (["", "NULL"], '{"","NULL"}'),
        (["a", None], '{"a",NULL}'),
        ([1, -2], "{1,-2}"),
        ([f"with {BORDER} inside", "b"], f'{{"with {BORDER} inside","b"}}'),
    ],
)
def test_postgresql_reads_an_array(values: list[object], array: str) -> None:
    assert as_parameter(values, POSTGRESQL) == array


def test_sqlite_reads_json() -> None:
    assert json.loads(as_parameter(["a", None, 'b"c'], SQLITE)) == ["a", None, 'b"c']


def test_mariadb_reads_a_tuple_that_is_never_empty() -> None:
    assert as_parameter(["a"], MARIADB) == ("a",)
    assert as_parameter([], MARIADB) == (None,)
