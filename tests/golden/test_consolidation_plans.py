"""A batch of consolidation costs the same whatever else is in the table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from stepfast import Stepfast
from stepfast.runs import raw_rows as pending
from tests.golden.test_plans import ANALYZE, plan, sorts
from tests.support.consolidation import items, see

INDEX = "stepfast_raw_pending"
SPAN = {"feed": "catalogue", "after": "d00100", "until": "d01900", "limit": 100}
RANGE = {"feed": "catalogue", "first": "d00100", "last": "d00200", "hashes": ["x", "y"]}


@pytest.fixture(params=["no statistics", "statistics", "old statistics"])
def app(database_url: str, request: pytest.FixtureRequest) -> Iterator[Stepfast]:
    """Two thousand raw rows that wait; when the database last counted them, there were none, or they did not wait."""
    with closing(Stepfast(database_url)) as app:
        see(app, "run", items(2_000))
        connection = app.database.connect()
        analyze = ANALYZE[app.database.dialect.name].replace("stepfast_job", "stepfast_raw")
        if request.param == "old statistics":
            connection.execute("UPDATE stepfast_raw SET pending = 0")
        if request.param != "no statistics":
            connection.execute(analyze)
        if request.param == "old statistics":
            connection.execute("UPDATE stepfast_raw SET pending = 1")
        connection.close()
        yield app


def test_the_next_batch_is_read_along_its_index_without_sorting(app: Stepfast) -> None:
    text = plan(app, pending.READ_NEXT_PENDING, **SPAN)

    assert (
        INDEX in text
        or "PRIMARY" in text
        or "sqlite_autoindex_stepfast_raw" in text
        or "stepfast_raw_pkey" in text
    )
    assert not sorts(text)


def test_a_batch_is_marked_in_its_own_range(app: Stepfast) -> None:
    text = plan(app, pending.MARK_APPLIED, **RANGE)

    assert "Seq Scan" not in text
    assert "SCAN stepfast_raw" not in text
    assert '"access_type": "ALL"' not in text
    if (
        app.database.dialect.name == "postgresql"
    ):  # no join that could walk over other rows, no search in a list
        assert "hashed SubPlan" in text
        assert "Join" not in text
        assert "Nested Loop" not in text
