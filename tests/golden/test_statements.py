"""The rendered SQL of every statement for each database, kept in files for a database administrator to review."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from stepfast.database.dialects import DIALECTS, Dialect
from stepfast.database.migrate import printed
from stepfast_diamonds.schema import COMPONENT
from tests.support.statements import statements

EVERY_DIALECT = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS.keys())


@pytest.mark.golden
@EVERY_DIALECT
def test_the_statements_are_the_reviewed_ones(dialect: Dialect, golden: Callable[[str, str], None]) -> None:
    parts = []
    for name, statement in statements().items():
        text = textwrap.dedent(statement.render(dialect)).strip("\n").rstrip()
        parts.append(f"-- {name}\n{text or '-- (done by the statement before it)'}\n")

    golden(f"statements.{dialect.name}.sql", "\n".join(parts))


@pytest.mark.golden
@EVERY_DIALECT
def test_the_schema_is_the_reviewed_one(dialect: Dialect, golden: Callable[[str, str], None]) -> None:
    golden(f"schema.{dialect.name}.sql", printed(dialect))


@pytest.mark.golden
@EVERY_DIALECT
def test_the_tables_of_the_diamonds_are_the_reviewed_ones(
    dialect: Dialect, golden: Callable[[str, str], None]
) -> None:
    golden(f"schema.diamonds.{dialect.name}.sql", printed(dialect, [COMPONENT]))
