"""What handlers say while they run is stored: all of it, however much, unless the database is away for long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepfast import Step  # noqa: TC001 - the handlers have it in their signatures
from stepfast.errors import ConstraintError, UnknownCommitError, UnreachableError
from stepfast.jobs.step import Report, write_reports
from stepfast.worker import reporter as reporting
from stepfast.worker.reporter import Reporter
from tests.support import rows
from tests.support.engine import register_work
from tests.support.events import hearing, named
from tests.support.single_threaded_worker import GroupCommittingWorker

if TYPE_CHECKING:
    from stepfast import Stepfast, Transaction
    from stepfast.jobs.lease import Lease


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_burst_of_log_lines_is_stored_and_the_progress_with_it(app: Stepfast, kind: str) -> None:
    lines = 12_000

    def talk(step: Step) -> None:
        step.progress(42, "the answer")
        for number in range(lines):
            step.log(str(number))

    @app.job()
    def plain(step: Step) -> None:
        talk(step)

    @app.job()
    async def waiting(step: Step) -> None:
        talk(step)

    job = (plain if kind == "plain" else waiting).enqueue()
    with hearing() as told, app.worker():
        rows.eventually(lambda: rows.state(app, job.id) == "done", 120)

    assert rows.logs(app, job.id) == [str(number) for number in range(lines)]
    row = rows.ended(app, job.id)
    assert row is not None
    assert (row["progress"], row["progress_note"]) == (42, "the answer")
    assert not named(told, "reports.dropped")


def test_a_handler_that_talks_inside_its_own_transaction_waits_for_nobody(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite the reporter cannot write before that transaction ends."""
    monkeypatch.setattr("stepfast.worker.reporter.FULL", 10)
    monkeypatch.setattr("stepfast.worker.reporter.PATIENCE", 600.0)

    @app.job()
    def talk(step: Step) -> None:
        with app.transaction():
            for number in range(100):
                step.log(str(number))

    job = talk.enqueue()
    with app.worker():
        rows.eventually(lambda: rows.state(app, job.id) == "done")

    assert rows.logs(app, job.id) == [str(number) for number in range(100)]


class Writer:
    """Two jobs that were claimed, and a reporter whose database answers as the test says."""

    def __init__(self, app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
        self.app = app
        self.error: Exception | None = None
        worker = GroupCommittingWorker(app)
        work = register_work(app)
        work.enqueue_many([{}, {}])
        self.one, self.two = worker.take(2)
        self.reporter = Reporter(app.database, worker.leases)
        monkeypatch.setattr(reporting, "FULL", 10)

        def write(tx: Transaction, reports: list[Report]) -> object:
            if self.error is not None:
                raise self.error
            if any(report.message == "poison" for report in reports):
                raise ConstraintError("no such line")
            return write_reports(tx, reports)

        monkeypatch.setattr(reporting, "write_reports", write)

    def say(self, lease: Lease, *words: object) -> None:
        for word in words:
            self.reporter.put(Report(lease, None, None, "info", str(word)))


@pytest.fixture
def writer(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> Writer:
    return Writer(app, monkeypatch)


def test_what_is_dropped_in_an_outage_is_counted_and_told(writer: Writer) -> None:
    one, two, reporter = writer.one, writer.two, writer.reporter
    reporter.put(Report(one, 42, "the answer", None, None))
    writer.say(one, *range(6))
    writer.say(two, "short")
    writer.error = UnreachableError("gone")
    with pytest.raises(UnreachableError):
        reporter._write()
    writer.say(one, *range(6, 30))
    with pytest.raises(UnreachableError):
        reporter._write()
    writer.say(one, 30)
    writer.error = None

    with hearing() as told:
        reporter._write()

    missing = "21 lines are missing here: the database was away when they were written"
    assert rows.logs(writer.app, one.job_id) == [missing, *map(str, range(21, 31))]
    assert rows.logs(writer.app, two.job_id) == ["short"]
    row = rows.live(writer.app, one.job_id)
    assert row is not None
    assert (row["progress"], row["progress_note"]) == (42, "the answer")
    (dropped,) = named(told, "reports.dropped")
    assert (dropped["reports"], dropped["job_id"]) == (21, one.job_id)


def test_the_commit_of_a_step_writes_what_is_left_and_tells_what_is_missing(writer: Writer) -> None:
    writer.error = UnreachableError("gone")
    writer.say(writer.one, "first")
    with pytest.raises(UnreachableError):
        writer.reporter._write()
    writer.say(writer.one, *range(11))

    with hearing() as told:
        taken = writer.reporter.take(writer.one)

    assert [it.message for it in taken[1:]] == [str(number) for number in range(1, 11)]
    assert taken[0].message is not None
    assert taken[0].message.startswith("2 lines are missing here")
    assert [it["reports"] for it in named(told, "reports.dropped")] == [2]
    assert writer.reporter.take(writer.one) == []


def test_a_line_that_cannot_be_stored_silences_only_its_own_step(writer: Writer) -> None:
    writer.say(writer.one, "poison")
    writer.say(writer.two, "well")

    with hearing() as told:
        writer.reporter._write()

    assert rows.logs(writer.app, writer.two.job_id) == ["well"]
    (dropped,) = named(told, "reports.dropped")
    assert (dropped["job_id"], dropped["reports"]) == (writer.one.job_id, 1)


def test_lines_whose_commit_is_unknown_are_not_written_twice(writer: Writer) -> None:
    writer.say(writer.one, "perhaps")
    writer.error = UnknownCommitError("the line went dead")

    with hearing() as told:
        writer.reporter._write()
    writer.error = None
    writer.reporter._write()

    assert rows.logs(writer.app, writer.one.job_id) == []
    assert [it["reports"] for it in named(told, "reports.dropped")] == [1]
