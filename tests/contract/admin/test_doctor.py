"""The doctor finds the problems of a real database, and names the remedy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from stepfast.admin.doctor import mariadb, postgresql, sqlite
from stepfast.admin.doctor.examination import examine
from stepfast.admin.doctor.finding import Finding, Level, fail
from stepfast.database.drivers import open_database
from stepfast.errors import DatabaseError
from stepfast.testing import drain
from tests.support import rows
from tests.support.failing_runs import broken_at, catalogue, failed_run, run_steps, work_until_idle
from tests.support.feeds import nothing, price_ranges
from tests.support.jobs_in_every_state import died, greeting, leased

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.database.connection import Connection


def findings(app: Stepfast) -> dict[str, Finding]:
    return {finding.name: finding for finding in examine(app.database)}


@contextmanager
def open_transaction(app: Stepfast, statement: str | None) -> Iterator[Connection]:
    """A transaction of another program's session that does not end."""
    connection = app.database.connect()
    if app.database.dialect.name == "postgresql":
        connection.execute("SET application_name = 'psql'")
    connection.begin(
        {"sqlite": "BEGIN", "postgresql": "BEGIN", "mariadb": "START TRANSACTION"}[app.database.dialect.name]
    )
    if statement:
        connection.execute(statement)
    try:
        yield connection
    finally:
        connection.rollback()
        connection.close()


def test_an_idle_database_has_nothing_stuck(app: Stepfast) -> None:
    greeting(app).enqueue(delay="1h")

    found = findings(app)

    for name in ("database", "clock", "tables", "workers", "queues", "leases", "dead letters"):
        assert found[name].level is Level.OK, found[name]
    assert "answers in" in found["database"].found


def test_every_problem_comes_with_a_cure_and_no_finding_shows_the_password(app: Stepfast) -> None:
    greeting(app).enqueue()

    found = examine(app.database)

    password = app.database.url.split("@")[0].rpartition(":")[2]
    for finding in found:
        assert (finding.cure is None) == (finding.level is Level.OK), finding
        assert app.database.dialect.name == "sqlite" or password not in str(finding)


def test_dead_letters_of_brokers_and_of_overtaken_runs_are_counted(app: Stepfast) -> None:
    """The doctor and the list count the same; a run that a later one has overtaken needs nobody."""
    shop = catalogue(app)
    shop.before = broken_at(("page", "price 250..500", 0))
    app.runs.start("catalogue")
    drain(app, with_scheduled=True, raise_errors=False)
    assert findings(app)["dead letters"].level is Level.WARN

    shop.before = nothing
    app.runs.start("catalogue")
    drain(app)
    overtaken = findings(app)["dead letters"]
    assert (overtaken.level, overtaken.found) == (
        Level.OK,
        "1 dead letter, all of runs that a later run has overtaken",
    )

    rows.change(
        app,
        "INSERT INTO stepfast_dead_message (id, source, transport, address, queue, message_id, subject, attempts, reason,"
        " detail, found_at, properties, body) VALUES ('m', 's', 'service-bus', 'here', 'work-items', '1', 'WORK_ITEM', 5,"
        " 'MaxDeliveryCountExceeded', '', 1, '{}', '{}')",
    )
    both = findings(app)["dead letters"]
    listed = len(app.operator.dead_letters()) + len(app.operator.broker_dead_letters())
    assert (both.level, listed) == (Level.WARN, 2)
    assert both.found.startswith(
        "2 dead letters, 1 of them of runs that a later run has overtaken, 1 of them from brokers"
    )


@pytest.mark.only_on("postgresql", "mariadb")
def test_settings_that_lose_commits_in_a_power_cut_are_a_failure(app: Stepfast) -> None:
    """The servers of the tests are that careless."""
    durability = findings(app)["durability"]

    assert durability.level is Level.FAIL
    assert "power cut" in durability.found


@pytest.mark.only_on("sqlite")
def test_the_settings_of_a_local_file_are_good(app: Stepfast) -> None:
    found = findings(app)

    assert found["durability"].level is Level.OK
    assert found["writer"].level is Level.OK


def test_jobs_that_wait_without_a_worker_are_a_failure(app: Stepfast) -> None:
    greeting(app).enqueue()

    assert findings(app)["workers"].level is Level.FAIL


def test_stuck_work_is_found_in_the_tables(app: Stepfast) -> None:
    greet = greeting(app, queue="mail")
    died(app, greet, "OSError: no answer")
    rows.change(app, "UPDATE stepfast_worker SET queues = 'calls', lease = 3600000000")
    overdue = greet.enqueue(delay="1h").id
    unknown = greet.enqueue().id
    suspect = greet.enqueue().id
    rows.change(
        app,
        "UPDATE stepfast_job SET ready_at = :then WHERE id = :id",
        then=rows.now(app) - rows.HOUR,
        id=overdue,
    )
    rows.change(
        app, "UPDATE stepfast_job SET error_group = 'UnknownKindError: no handler' WHERE id = :id", id=unknown
    )
    rows.change(
        app,
        "UPDATE stepfast_job SET state = 'suspect', ready_at = :then WHERE id = :id",
        then=rows.now(app) - rows.HOUR,
        id=suspect,
    )
    greet.enqueue(queue="held")
    rows.change(app, "INSERT INTO stepfast_queue (id, paused_at) VALUES ('held', 1)")
    greet.enqueue(queue="other")
    leased(app, queue="other", alive_for=-rows.HOUR, worker_id="silent")

    found = findings(app)

    stuck = {name: finding.level for name, finding in found.items() if finding.level is not Level.OK}
    for name in ("unserved queues", "scheduled jobs", "unknown kinds"):
        assert stuck[name] is Level.FAIL
    for name in ("paused queues", "suspects", "leases", "silent workers", "dead letters", "lease"):
        assert stuck[name] is Level.WARN
    assert "mail" in found["unserved queues"].found
    assert "silent" in found["silent workers"].found
    assert "greet: OSError" in found["dead letters"].found


@pytest.mark.only_on("postgresql", "mariadb")
def test_a_foreign_transaction_that_holds_our_rows_is_named_without_its_values(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = greeting(app).enqueue().id
    monkeypatch.setattr(postgresql, "OLD_TRANSACTION", 0)
    monkeypatch.setattr(mariadb, "OLD_TRANSACTION", 0)

    with open_transaction(app, f"UPDATE stepfast_job SET priority = 5 WHERE id = '{job_id}'") as foreign:
        session = foreign.execute(
            "SELECT pg_backend_pid()"
            if app.database.dialect.name == "postgresql"
            else "SELECT connection_id()"
        ).fetchall()[0][0]
        finding = findings(app)["sessions"]

    assert finding.level is (Level.FAIL if app.database.dialect.name == "postgresql" else Level.WARN)
    assert f"session {session} " in finding.found
    assert "user stepfast" in finding.found
    assert job_id not in str(finding)
    assert str(session) in str(finding.cure)


@pytest.mark.only_on("postgresql")
def test_nobody_is_advised_to_end_a_session_of_stepfast(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    greeting(app).enqueue()
    monkeypatch.setattr(postgresql, "OLD_TRANSACTION", 0)
    monkeypatch.setattr(postgresql, "PINNED", 0)

    with app.transaction() as tx:
        tx.execute("UPDATE stepfast_job SET priority = 5")
        found = findings(app)

    assert "takes long" in found["own sessions"].found
    assert not any("pg_terminate_backend" in str(it.cure) for it in found.values())


@pytest.mark.only_on("postgresql", "mariadb")
def test_on_a_server_that_takes_no_writes_nothing_is_advised_that_writes(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    greeting(app).enqueue()
    leased(app, alive_for=-rows.HOUR, worker_id="silent")
    product = {"postgresql": postgresql, "mariadb": mariadb}[app.database.dialect.name]
    role = fail("role", "this server is read-only", "point the URL at the primary")
    monkeypatch.setattr(product, "checks", lambda _: [("settings", lambda _: [role])])

    found = findings(app)

    assert found["work"].level is Level.WARN
    assert not any("leases reset" in str(it.cure) for it in found.values())


def test_jobs_of_a_worker_that_shows_none_running_are_a_failure(app: Stepfast) -> None:
    job = greeting(app).enqueue()
    leased(app, worker_id="forgetful")
    assert "forgotten leases" not in findings(app)
    rows.change(app, "UPDATE stepfast_job SET leased_at = 1 WHERE id = :id", id=job.id)

    found = findings(app)["forgotten leases"]

    assert found.level is Level.FAIL
    assert "forgetful" in found.found


@pytest.mark.only_on("mariadb")
def test_a_transaction_that_others_wait_for_is_a_failure(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = greeting(app).enqueue().id
    monkeypatch.setattr(mariadb, "OLD_TRANSACTION", 0)
    change = f"UPDATE stepfast_job SET priority = 5 WHERE id = '{job_id}'"
    patient = "SET SESSION innodb_lock_wait_timeout = 20"

    with open_transaction(app, change), open_transaction(app, patient) as waiting:

        def wait() -> None:
            with suppress(DatabaseError):
                waiting.execute(change)

        waiter = threading.Thread(target=wait)
        waiter.start()
        rows.eventually(lambda: _waiting(app))
        found = [it for it in examine(app.database) if it.name == "sessions"]
        (victim,) = rows.query(
            app, "SELECT id FROM information_schema.processlist WHERE info LIKE 'UPDATE stepfast_job%'"
        )
        rows.change(app, f"KILL QUERY {victim['id']}")
        waiter.join()

    # The one that waits may be named as well: it has a lock of its own, on the way to the row.
    (failure,) = (it for it in found if it.level is Level.FAIL)
    assert "1 wait for it" in failure.found


@pytest.mark.only_on("postgresql")
def test_a_transaction_that_pins_dead_rows_is_a_warning(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "OLD_TRANSACTION", 0)
    monkeypatch.setattr(postgresql, "PINNED", 0)
    with open_transaction(app, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ") as reader:
        reader.execute("SELECT 1 FROM stepfast_job")

        finding = findings(app)["sessions"]

    assert finding.level is Level.WARN
    assert "keeps dead rows" in finding.found


@pytest.mark.only_on("sqlite")
def test_a_writer_that_does_not_let_go_is_a_failure(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "PATIENCE", 0.0)
    greeting(app).enqueue()

    with open_transaction(app, "UPDATE stepfast_job SET priority = 5"):
        finding = findings(app)["writer"]

    assert finding.level is Level.FAIL
    assert "this very process" in finding.found
    assert findings(app)["writer"].level is Level.OK


def test_a_look_that_is_refused_is_a_warning_and_the_others_go_on(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    product = {"sqlite": sqlite, "postgresql": postgresql, "mariadb": mariadb}[app.database.dialect.name]
    monkeypatch.setattr(
        product, "checks", lambda _: [("sessions", lambda tx: tx.query("SELECT * FROM nowhere"))]
    )

    found = findings(app)

    assert found["sessions"].level is Level.WARN
    assert "could not look" in found["sessions"].found
    assert found["tables"].level is Level.OK


def test_tables_that_are_missing_old_or_new_are_a_failure(empty_database_url: str) -> None:
    with closing(open_database(empty_database_url)) as database:
        missing = {it.name: it for it in examine(database)}["tables"]

    assert (missing.level, missing.cure) == (Level.FAIL, "stepfast migrate")


@pytest.mark.parametrize(("version", "word"), [(0, "this code needs"), (999, "newer than this code")])
def test_tables_of_another_version_are_a_failure(app: Stepfast, version: int, word: str) -> None:
    rows.set_schema_version(app, version)

    found = findings(app)

    assert found["tables"].level is Level.FAIL
    assert word in found["tables"].found
    assert "workers" not in found  # nobody knows what those tables mean


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:hunter2@127.0.0.1:1/x",
        "mysql://me:hunter2@127.0.0.1:1/x",
        "sqlite:////no/such/folder/x.db",
    ],
)
def test_a_database_that_does_not_answer_is_the_only_finding(url: str) -> None:
    (finding,) = examine(open_database(url))

    assert finding.level is Level.FAIL
    assert "hunter2" not in str(finding)


def _waiting(app: Stepfast) -> bool:
    (row,) = rows.query(app, "SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")
    return str(row["Value"]) != "0"


# Feeds and runs


def about_feeds(app: Stepfast) -> list[Finding]:
    names = ("feeds", "sources", "runs", "partitions", "debts")
    return [finding for finding in app.operator.doctor() if finding.name in names]


def test_without_feeds_nothing_is_said_about_them(app: Stepfast) -> None:
    assert about_feeds(app) == []


def test_feeds_and_runs_that_are_well_have_their_lines(app: Stepfast) -> None:
    catalogue(app)
    app.runs.start("catalogue")
    work_until_idle(app)

    feeds, sources, runs = about_feeds(app)

    assert {finding.level for finding in (feeds, sources, runs)} == {Level.OK}
    assert feeds.found.startswith("catalogue is read up to 20")
    assert sources.found == "no source of 1 feed is in trouble"
    assert runs.found == "0 runs active, no run waits for an operator"


def test_a_failed_run_is_named_until_a_later_one_has_completed(app: Stepfast) -> None:
    shop = catalogue(app)
    run = failed_run(app, shop, price_ranges(250, 500, 750)[1].name)

    found = {finding.name: finding for finding in app.operator.doctor()}

    assert found["runs"].level is Level.WARN
    assert (
        found["runs"].found
        == f"the newest run of feed catalogue, {run.id}, is failed: 1 of 4 partitions failed"
    )
    assert f"stepfast runs retry {run.id}" in str(found["runs"].cure)
    assert found["dead letters"].level is Level.WARN
    app.runs.start("catalogue")
    work_until_idle(app)
    later = {finding.name: finding for finding in app.operator.doctor()}
    assert (later["runs"].level, later["dead letters"].level) == (Level.OK, Level.OK)


def test_a_stalled_run_is_named_with_the_command_that_moves_it(app: Stepfast) -> None:
    catalogue(app)
    run = app.runs.start("catalogue")
    rows.change(
        app, "UPDATE stepfast_run SET state = 'stalled', stalled_in = 'planning', reason = 'its jobs wait'"
    )

    (finding,) = [it for it in about_feeds(app) if it.name == "runs"]

    assert finding.level is Level.WARN
    assert finding.found == f"run {run.id} of feed catalogue has stalled: its jobs wait"
    assert f"stepfast runs resume {run.id}" in str(finding.cure)


def test_a_source_in_trouble_is_named_with_its_reason_and_its_pause(app: Stepfast) -> None:
    catalogue(app)
    app.runs.start("catalogue")
    rows.change(
        app,
        "UPDATE stepfast_feed SET troubles = 3, troubled_at = :since, paused_until = :until, pause_reason = 'outage: no answer'",
        since=rows.now(app) - 2 * rows.HOUR,
        until=rows.now(app) + rows.HOUR,
    )

    (finding,) = [it for it in about_feeds(app) if it.name == "sources"]

    assert finding.level is Level.WARN
    assert finding.found.startswith(
        "the source of feed catalogue is in trouble for 2 h (3 times): outage: no answer; "
    )
    assert "it is not asked before 20" in finding.found


def test_partitions_that_no_job_reads_and_debts_that_were_given_up_are_named(app: Stepfast) -> None:
    shop = catalogue(app)
    first = failed_run(app, shop, price_ranges(250, 500, 750)[1].name)
    app.runs.consolidate(first.id, force=True)
    work_until_idle(app)
    rows.change(app, "UPDATE stepfast_debt SET tries = 3")
    run = app.runs.start("catalogue")
    run_steps(app, 1)
    rows.change(app, "DELETE FROM stepfast_job")

    found = {finding.name: finding for finding in about_feeds(app)}

    assert found["partitions"].level is Level.WARN
    assert f"no job reads 4 open partitions of run {run.id}" in found["partitions"].found
    assert f"stepfast runs resume {run.id}" in str(found["partitions"].cure)
    assert found["debts"].found.startswith("1 range of feed catalogue could not be verified")


def test_a_watermark_older_than_its_feed_allows_is_named(app: Stepfast) -> None:
    catalogue(app, fresh_within="2h")
    app.runs.start("catalogue")
    work_until_idle(app)
    rows.change(app, "UPDATE stepfast_feed SET watermark = watermark - :age", age=5 * rows.HOUR)

    warned = [it for it in about_feeds(app) if it.name == "feeds" and it.level is Level.WARN]

    assert len(warned) == 1
    assert warned[0].found.endswith("5 h ago; it should be at most 2 h behind")
