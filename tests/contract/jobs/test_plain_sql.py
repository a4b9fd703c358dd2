"""The INSERT that the documentation shows enqueues a job, in any language and on each database."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.engine import drain
from tests.support.markdown import ROOT, blocks

if TYPE_CHECKING:
    from stepfast import Stepfast

PAGE = ROOT / "docs" / "howto" / "enqueue-with-plain-sql.md"


def shown(product: str) -> str:
    """The statement that the page shows for this product."""
    (block,) = (it for it in blocks(PAGE, "sql") if it.words[1:] == (product,))
    return block.text


def send(app: Stepfast, text: str) -> None:
    """As any client would: on a connection that knows nothing of Stepfast's transactions."""
    connection = app.database.connect()
    try:
        connection.raw.cursor().execute(text)
    finally:
        connection.close()


def test_the_insert_of_the_documentation_is_run_by_a_worker(app: Stepfast) -> None:
    sent: list[str] = []

    @app.job()
    def send_invoice(order_id: str) -> None:
        sent.append(order_id)

    send(app, shown(app.database.dialect.name))
    drain(app)

    assert sent == ["A-17"]
    assert [job.state for job in app.operator.jobs(kind="send_invoice")] == ["done"]


def test_the_insert_of_the_documentation_may_be_sent_again(app: Stepfast) -> None:
    send(app, shown(app.database.dialect.name))
    send(app, shown(app.database.dialect.name))

    jobs = app.operator.jobs(kind="send_invoice")

    assert len({job.id for job in jobs}) == 2
    assert {(job.queue, job.state, job.priority, job.attempts) for job in jobs} == {
        ("default", "ready", 0, 0)
    }


def test_the_page_has_one_statement_for_each_database() -> None:
    assert [block.words[1] for block in blocks(PAGE, "sql")] == ["sqlite", "postgresql", "mariadb"]
