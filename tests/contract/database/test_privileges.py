"""The roles of docs/howto/least-privilege.md, created as that page prints them: what each can do, and what it cannot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from stepfast import Stepfast
from stepfast.admin.doctor.examination import examine
from stepfast.admin.doctor.finding import Level
from stepfast.database.drivers import open_database
from stepfast.database.migrate import migrate
from stepfast.errors import DatabaseError, SchemaError
from tests.support.markdown import ROOT, blocks

if TYPE_CHECKING:
    from devtools.server import Server
    from stepfast import Job

PAGE = ROOT / "docs" / "howto" / "least-privilege.md"
PLAIN_SQL = ROOT / "docs" / "howto" / "enqueue-with-plain-sql.md"
ROLES = ("owner", "worker", "producer", "operator", "reader")
DENIED = "permission denied|command denied|must be owner"
AppAs = Callable[[str], Stepfast]

pytestmark = pytest.mark.only_on("postgresql", "mariadb")


def statements(*words: str) -> list[str]:
    """The statements of the page's blocks with exactly these words."""
    found = [it.text for it in blocks(PAGE, "sql") if it.words[1:] == words]
    assert found, words
    return [it.strip() for text in found for it in text.split(";\n") if it.strip()]


def run(url: str, *texts: str) -> list[Any]:
    """Run statements as any client would; returns the first column of the last answer."""
    with closing(open_database(url).connect()) as connection:
        cursor = connection.raw.cursor()
        for text in texts:
            cursor.execute(text)
        return [row[0] for row in cursor.fetchall()] if cursor.description else []


def as_role(url: str, role: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(
        parts._replace(netloc=f"stepfast_{role}:change-me-{role}@{parts.netloc.rpartition('@')[2]}")
    )


@pytest.fixture
def shop(server: Server, database_kind: str) -> Iterator[str]:
    """The database of the page, with its roles and its rights; its administrator's URL."""
    server.create_database("shop")
    url = server.url("shop")
    try:
        run(url, *statements(database_kind, "administrator")[: None if database_kind == "postgresql" else 9])
        with closing(open_database(as_role(url, "owner"))) as database:
            migrate(database)
        if database_kind == "postgresql":
            run(as_role(url, "owner"), *statements("postgresql", "owner"))
        else:
            run(url, *run(url, *statements("mariadb", "administrator", "prints")))
            run(url, *statements("mariadb", "administrator")[9:])
        yield url
    finally:
        server.drop_database("shop")
        drop = "DROP ROLE IF EXISTS" if database_kind == "postgresql" else "DROP USER IF EXISTS"
        run(
            server.url("postgres" if database_kind == "postgresql" else "mysql"),
            *(f"{drop} stepfast_{it}" for it in ROLES),
        )


@pytest.fixture
def app_as(shop: str) -> Iterator[AppAs]:
    """An application on that database, as one of the roles."""
    with ExitStack() as stack:
        yield lambda role: stack.enter_context(closing(Stepfast(as_role(shop, role))))


def greeting(app: Stepfast) -> Job[..., str]:
    @app.job()
    def greet(name: str) -> str:
        return f"hello {name}"

    return greet


def refused(app: Stepfast, *texts: str) -> None:
    """Each of the statements is refused for a missing right."""
    for text in texts:
        with closing(app._database.connect()) as connection, pytest.raises(DatabaseError, match=DENIED):
            connection.execute(text)


def test_a_producer_can_add_jobs_and_nothing_else(shop: str, app_as: AppAs, database_kind: str) -> None:
    insert = next(it.text for it in blocks(PLAIN_SQL, "sql") if it.words[1] == database_kind)
    run(as_role(shop, "producer"), insert)
    app = app_as("producer")

    assert run(shop, "SELECT count(*) FROM " + table(shop, "stepfast_job")) == [1]
    refused(
        app,
        "SELECT payload FROM stepfast_job",
        "UPDATE stepfast_job SET payload = '{}'",
        "DELETE FROM stepfast_job",
        "SELECT * FROM stepfast_archive",
        "INSERT INTO stepfast_outbox (id, channel) VALUES ('x', 'export')",
        "INSERT INTO stepfast_key (id, job_id, until_at) VALUES ('x', 'x', 0)",
        "CREATE TABLE mine (x INTEGER)",
    )


def test_a_producer_can_enqueue_through_stepfast_and_see_keys_but_no_payload(
    shop: str, app_as: AppAs, database_kind: str
) -> None:
    if database_kind == "mariadb":
        run(shop, *statements("mariadb", "administrator", "library"))
    app = app_as("producer")
    greet = greeting(app)

    greet.enqueue(name="you")
    greet.enqueue_many([{"name": "you"}, {"name": "me"}])
    with pytest.raises(DatabaseError, match=DENIED):
        greet.enqueue(name="you", key="needs more")

    role = "owner" if database_kind == "postgresql" else "administrator"
    run(as_role(shop, "owner") if role == "owner" else shop, *statements(database_kind, role, "keys"))
    first = greet.enqueue(name="you", key="a", unique_for="1h")
    again = greet.enqueue(name="you", key="a", on_duplicate="skip", unique_for="1h")
    greet.enqueue(name="you", id="mine")
    greet.enqueue(name="you", id="mine")

    assert (first.id, again.created) == (again.id, False)
    refused(
        app,
        "SELECT payload FROM stepfast_job",
        "SELECT result FROM stepfast_archive",
        "DELETE FROM stepfast_job",
        "INSERT INTO stepfast_outbox (id, channel) VALUES ('x', 'export')",
    )


def test_a_worker_runs_jobs_and_changes_no_table(app_as: AppAs, database_kind: str) -> None:
    app = app_as("worker")
    greet = greeting(app)

    with app.worker(lease="5s"):
        assert greet.enqueue(name="you").wait(timeout="30s").result == "hello you"

    refused(
        app,
        "CREATE TABLE mine (x INTEGER)",
        "DROP TABLE stepfast_job",
        "ALTER TABLE stepfast_job ADD x INTEGER",
    )
    if database_kind == "postgresql":
        refused(app, "UPDATE stepfast_schema SET version = 99", "TRUNCATE stepfast_job")


def test_an_operator_acts_and_cannot_rewrite_the_audit(app_as: AppAs) -> None:
    job = greeting(app_as("worker")).enqueue(name="you")
    app = app_as("operator")

    app.operator.cancel(job.id)
    app.operator.pause("default")
    app.operator.retry_dead_letters()  # in batches, which are counted in its entry

    assert {entry.what for entry in app.operator.audit()} >= {"job.cancel", "queue.pause"}
    refused(
        app,
        "DELETE FROM stepfast_audit",
        "UPDATE stepfast_audit SET what = 'nothing'",
        "UPDATE stepfast_schema SET version = 99",
        "CREATE TABLE mine (x INTEGER)",
    )


def test_a_reader_sees_everything_and_writes_nothing(app_as: AppAs) -> None:
    job = greeting(app_as("worker")).enqueue(name="you")
    app = app_as("reader")

    assert [it.id for it in app.operator.jobs()] == [job.id]
    assert app.operator.job(job.id).payload == {"name": "you"}
    found = {it.name: it for it in examine(app.database)}
    assert found["tables"].level is Level.OK
    assert not [it for it in found.values() if "could not look" in it.found]
    refused(
        app,
        "DELETE FROM stepfast_job",
        "UPDATE stepfast_job SET priority = 1",
        "CREATE TABLE mine (x INTEGER)",
    )
    with pytest.raises(DatabaseError, match=DENIED):
        app.operator.pause("default")


@pytest.mark.only_on("postgresql")
def test_tables_of_later_migrations_have_the_same_rights(shop: str, app_as: AppAs) -> None:
    run(as_role(shop, "owner"), "CREATE TABLE stepfast_later (x INTEGER)")

    run(as_role(shop, "worker"), "INSERT INTO stepfast_later VALUES (1)")
    assert run(as_role(shop, "reader"), "SELECT x FROM stepfast_later") == [1]
    refused(app_as("reader"), "DELETE FROM stepfast_later")
    refused(app_as("producer"), "SELECT x FROM stepfast_later")


@pytest.mark.only_on("postgresql")
def test_a_schema_named_like_the_role_does_not_come_first(shop: str, app_as: AppAs) -> None:
    run(
        shop,
        "CREATE SCHEMA stepfast_worker",
        "CREATE TABLE stepfast_worker.stepfast_schema (LIKE stepfast.stepfast_schema)",
    )
    run(shop, "GRANT USAGE ON SCHEMA stepfast_worker TO stepfast_worker")
    run(shop, "GRANT SELECT ON stepfast_worker.stepfast_schema TO stepfast_worker")
    assert app_as("worker").operator.jobs() == []

    run(
        shop, "ALTER ROLE stepfast_worker IN DATABASE shop RESET search_path"
    )  # what the page advises against
    with pytest.raises(SchemaError, match="no Stepfast tables"):
        app_as("worker").operator.jobs()


@pytest.mark.only_on("postgresql")
def test_every_role_of_the_database_hears_the_names_of_queues_and_nothing_more(
    shop: str, app_as: AppAs
) -> None:
    with closing(open_database(as_role(shop, "reader")).connect()) as listening:
        listening.raw.execute("LISTEN stepfast")

        greeting(app_as("producer")).enqueue(name="secret", queue="payroll")

        heard = next(listening.raw.notifies(timeout=20, stop_after=1))
    assert (heard.channel, heard.payload) == ("stepfast", "payroll")


def table(url: str, name: str) -> str:
    return f"stepfast.{name}" if url.startswith("postgresql") else name
