"""A worker keeps to the number of connections that the documentation tells people to count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast import Step  # noqa: TC001 - handlers are read with their hints
from tests import rows

if TYPE_CHECKING:
    from holdfast import Holdfast

BOUND = 10  # docs/howto/run-on-postgresql.md

OURS = {
    "postgresql": "SELECT count(*) AS n FROM pg_stat_activity WHERE application_name = 'holdfast' AND datname = current_database()",
    "mariadb": "SELECT count(*) AS n FROM information_schema.processlist WHERE db = database()",
}


@pytest.mark.only_on("postgresql", "mariadb")
@pytest.mark.usefixtures("ledger")
def test_a_busy_worker_uses_no_more_connections_than_the_documentation_says(app: Holdfast) -> None:
    @app.job()
    async def book(step: Step, n: int) -> None:
        step.log("a line of its own")
        step.upsert("ledger", [{"id": str(n), "amount": n}], key="id")

    book.enqueue_many([{"n": n} for n in range(300)])
    most = 0

    def finished() -> bool:
        nonlocal most
        most = max(most, int(rows.query(app, OURS[app.database.dialect.name])[0]["n"]))
        return rows.count(app, "holdfast_job") == 0

    with app.worker(concurrency=50):
        rows.eventually(finished)

    assert 3 < most <= BOUND + 1  # and the one that counts
