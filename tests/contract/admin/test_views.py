"""The view `processing_jobs` answers the queries of the operators' documents."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Done
from stepfast.clock import moment
from stepfast.errors import DatabaseError
from stepfast.jobs.lease import claim_suspect
from stepfast.jobs.outcome import Again, Bury, GiveBack, Stop
from tests.support import rows
from tests.support.engine import ALICE, BOB, claim, commit_step, make_silent, register_work, rescue_all, take

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.jobs.outcome import Ending

COLUMNS = [
    "id",
    "job_id",
    "order_id",
    "job_type",
    "status",
    "progress",
    "attempts",
    "locked_by",
    "locked_until",
    "last_error",
    "created_at",
    "updated_at",
    "finished_at",
]

# As the operators' guide has them, blanks at line ends included.
LEASE_OF_A_JOB = (
    "SELECT id, status, attempts, locked_by, locked_until, last_error \n"
    "FROM processing_jobs \n"
    "WHERE job_id = 'test-crash-job';"
)
STUCK = (
    "-- See stuck jobs\n"
    "SELECT id, job_id, status, attempts, locked_by, locked_until, last_error\n"
    "FROM processing_jobs \n"
    "WHERE status = 'processing' \n"
    "AND locked_until < NOW();"
)
FAILED = (
    "SELECT id, job_id, attempts, last_error\n"
    "FROM processing_jobs \n"
    "WHERE status = 'failed' \n"
    "AND attempts >= 3;"
)
QUEUED = "SELECT * FROM processing_jobs WHERE status = 'queued'"
LOCKED = "SELECT * FROM processing_jobs WHERE locked_until > NOW()"
NEXT = (
    "SELECT id FROM (\n"
    "        SELECT id \n"
    "        FROM processing_jobs \n"
    "        WHERE status IN ('queued', 'pending')\n"
    "        AND (locked_until IS NULL OR locked_until < NOW())\n"
    "        AND attempts < 3\n"
    "        ORDER BY created_at ASC\n"
    "        LIMIT 1\n"
    "    ) AS subquery"
)


def seen(app: Stepfast, job_id: str) -> rows.Row:
    (row,) = rows.query(app, "SELECT * FROM processing_jobs WHERE id = :id", id=job_id)
    return row


def instant(value: Any) -> datetime:
    """What the three drivers return for a timestamp, as one thing."""
    at = datetime.fromisoformat(value) if isinstance(value, str) else value
    assert isinstance(at, datetime)
    return at.replace(tzinfo=moment(0).tzinfo) if at.tzinfo is None else at


@pytest.fixture
def stuck(app: Stepfast) -> str:
    """A job whose owner has been silent for a minute, and whose `job_id` is that of the guide."""
    rows.add_worker(app, ALICE, worker_id="worker-123", alive_for=-60 * rows.SECOND)
    job = register_work(app).enqueue(key="test-crash-job")
    take(app, ALICE)
    return job.id


def test_the_columns_are_those_of_the_documents_in_order(app: Stepfast) -> None:
    register_work(app).enqueue()

    (row,) = rows.query(app, "SELECT * FROM processing_jobs")

    assert list(row) == COLUMNS


def test_a_new_job_reads_as_queued_with_nothing_counted(app: Stepfast) -> None:
    @app.job()
    def usb_processing(order_id: str) -> None: ...

    job = usb_processing.enqueue(order_id="A-17")

    row = seen(app, job.id)
    assert (row["job_id"], row["order_id"], row["job_type"]) == (job.id, "A-17", "usb_processing")
    assert (row["status"], row["progress"], row["attempts"]) == ("queued", 0, 0)
    assert (row["locked_by"], row["locked_until"], row["last_error"], row["finished_at"]) == (None,) * 4


def test_a_payload_without_an_order_has_none(app: Stepfast) -> None:
    job = register_work(app).enqueue(n=1)
    assert seen(app, job.id)["order_id"] is None

    commit_step(app, take(app), Done())
    assert seen(app, job.id)["order_id"] is None


def test_a_payload_with_a_nul_character_does_not_hide_the_others(app: Stepfast) -> None:
    @app.job()
    def work(text: str, order_id: str = "A-17") -> None: ...

    strange, plain = work.enqueue(text="a\0b"), work.enqueue(text="ab", order_id="B-4")
    commit_step(app, take(app), Done())

    found = rows.query(app, "SELECT id, order_id FROM processing_jobs ORDER BY created_at, id")
    assert [row["id"] for row in found] == [strange.id, plain.id]
    assert found[1]["order_id"] == "B-4"


def test_the_key_is_the_job_id_of_the_documents(app: Stepfast) -> None:
    job = register_work(app).enqueue(key="order:17")
    assert seen(app, job.id)["job_id"] == "order:17"

    commit_step(app, take(app), Done())
    assert seen(app, job.id)["job_id"] == "order:17"


def test_every_state_has_a_word_of_the_documents(app: Stepfast) -> None:
    work = register_work(app)
    ended = [work.enqueue() for _ in range(3)]
    endings: list[Ending] = [Done(), Bury("broken", "broken"), Stop("cancelled")]
    for held, ending in zip(claim(app, limit=3), endings, strict=True):
        commit_step(app, held, ending)
    leased = work.enqueue()
    take(app)
    scheduled, suspect, ready = work.enqueue(delay="1h"), work.enqueue(), work.enqueue()
    rows.change(app, "UPDATE stepfast_job SET state = 'suspect' WHERE id = :id", id=suspect.id)

    words = [seen(app, job.id)["status"] for job in (*ended, leased, scheduled, suspect, ready)]

    assert words == ["done", "failed", "failed", "processing", "pending", "queued", "queued"]


def test_attempts_count_at_acquisition_and_crashes_count_as_well(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    rows.add_worker(app, ALICE)
    counts = [seen(app, job.id)["attempts"]]

    held = take(app, ALICE)
    counts.append(seen(app, job.id)["attempts"])
    commit_step(app, held, Again(timedelta(0), "error", "error"))
    counts.append(seen(app, job.id)["attempts"])
    take(app, ALICE)
    counts.append(seen(app, job.id)["attempts"])
    make_silent(app, ALICE)
    rescue_all(app)
    counts.append(seen(app, job.id)["attempts"])
    with app.transaction() as tx:
        last = claim_suspect(tx, BOB, [])
    assert last is not None
    commit_step(app, last, Done())
    counts.append(seen(app, job.id)["attempts"])

    assert counts == [0, 1, 1, 2, 2, 3]


def test_a_job_given_back_has_burnt_no_attempt(app: Stepfast) -> None:
    job = register_work(app).enqueue()

    commit_step(app, take(app), GiveBack())

    row = seen(app, job.id)
    assert (row["status"], row["attempts"], row["locked_by"], row["locked_until"]) == (
        "queued",
        0,
        None,
        None,
    )


def test_a_failed_job_says_when_and_why(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    commit_step(app, take(app), Bury("ValueError: 3", "ValueError: …"))

    row = seen(app, job.id)
    assert (row["status"], row["last_error"]) == ("failed", "ValueError: 3")
    assert instant(row["finished_at"]) >= instant(row["created_at"])


def test_crash_and_error_are_both_in_last_error(app: Stepfast, stuck: str) -> None:
    rows.change(app, "UPDATE stepfast_job SET last_error = 'ValueError: 3'")

    rescue_all(app)

    assert seen(app, stuck)["last_error"] == "ValueError: 3; Lease expired - worker crashed or timed out"


def test_owner_and_expiry_are_those_of_the_process(app: Stepfast) -> None:
    rows.add_worker(app, ALICE, worker_id="worker-123", alive_for=30 * rows.SECOND)
    job = register_work(app).enqueue()
    take(app, ALICE)

    row = seen(app, job.id)
    (worker,) = rows.query(app, "SELECT alive_until FROM stepfast_worker")
    assert row["locked_by"] == "worker-123"
    assert abs(instant(row["locked_until"]) - moment(worker["alive_until"])) < timedelta(milliseconds=1)


def test_a_renewal_of_the_process_moves_expiry_and_update_of_its_jobs(app: Stepfast) -> None:
    rows.add_worker(app, ALICE)
    job = register_work(app).enqueue()
    take(app, ALICE)
    before = seen(app, job.id)

    rows.change(
        app,
        "UPDATE stepfast_worker SET beat_at = beat_at + :hour, alive_until = alive_until + :hour",
        hour=rows.HOUR,
    )

    after = seen(app, job.id)
    assert instant(after["locked_until"]) - instant(before["locked_until"]) == timedelta(hours=1)
    assert timedelta(minutes=59) < instant(after["updated_at"]) - instant(before["updated_at"])


def test_a_lease_by_hand_has_an_owner_and_an_expiry_of_its_own(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    held = app.acquire("my-worker-1", 300)
    assert held is not None

    row = seen(app, job.id)
    assert row["locked_by"] == "my-worker-1"
    assert abs(instant(row["locked_until"]) - held.until) < timedelta(milliseconds=1)


def test_timestamps_are_instants_not_numbers(app: Stepfast) -> None:
    at = moment(rows.now(app))
    job = register_work(app).enqueue()
    commit_step(app, take(app), Done())

    row = seen(app, job.id)
    for column in ("created_at", "updated_at", "finished_at"):
        assert abs(instant(row[column]) - at) < timedelta(minutes=1), column


@pytest.mark.only_on("postgresql", "mariadb")
def test_the_lease_columns_have_the_types_of_the_documents(app: Stepfast) -> None:
    found = rows.query(
        app,
        "SELECT column_name AS name, data_type AS type, character_maximum_length AS length"
        " FROM information_schema.columns WHERE table_name = 'processing_jobs'"
        " AND table_schema IN ('public', :name)",
        name=app.database.url.rpartition("/")[2],
    )

    types = {row["name"]: (row["type"], row["length"]) for row in found}
    assert list(types) == COLUMNS
    assert types["locked_by"][0] in {"varchar", "character varying"}
    assert types["locked_by"][1] == 100
    instants = {types[name][0] for name in ("locked_until", "created_at", "updated_at", "finished_at")}
    assert instants <= {"timestamp with time zone", "timestamp", "datetime"}
    assert types["attempts"][0] in {"integer", "int", "bigint"}
    assert types["last_error"][0] in {"text", "longtext"}


@pytest.mark.only_on("mariadb")
def test_describe_shows_the_lease_columns(app: Stepfast) -> None:
    found = rows.query(app, "DESCRIBE processing_jobs;")

    assert [row["Field"] for row in found] == COLUMNS


# The queries of the guide, verbatim


def test_the_guide_finds_the_lease_of_a_job(app: Stepfast, stuck: str) -> None:
    (row,) = rows.query(app, LEASE_OF_A_JOB)

    assert (row["id"], row["status"], row["attempts"], row["locked_by"]) == (
        stuck,
        "processing",
        1,
        "worker-123",
    )
    assert list(row) == ["id", "status", "attempts", "locked_by", "locked_until", "last_error"]


@pytest.mark.only_on("postgresql", "mariadb")
def test_the_guide_finds_stuck_jobs(app: Stepfast, stuck: str) -> None:
    rows.add_worker(app, BOB, worker_id="bob")
    register_work(app).enqueue()
    take(app, BOB)

    assert [row["id"] for row in rows.query(app, STUCK)] == [stuck]


def test_the_guide_finds_jobs_that_failed_after_three_attempts(app: Stepfast) -> None:
    work = register_work(app)
    thrice, once = work.enqueue(), work.enqueue()
    rows.change(app, "UPDATE stepfast_job SET failures = 2 WHERE id = :id", id=thrice.id)
    for held in claim(app, limit=2):
        commit_step(app, held, Bury("broken", "broken"))

    assert rows.query(app, FAILED) == [
        {"id": thrice.id, "job_id": thrice.id, "attempts": 3, "last_error": "broken"}
    ]
    assert seen(app, once.id)["attempts"] == 1


def test_the_guide_finds_queued_jobs(app: Stepfast) -> None:
    work = register_work(app)
    work.enqueue()
    take(app)
    queued = work.enqueue()

    assert [row["id"] for row in rows.query(app, QUEUED)] == [queued.id]


@pytest.mark.only_on("postgresql", "mariadb")
def test_the_guide_finds_leases_in_force(app: Stepfast, stuck: str) -> None:
    rows.add_worker(app, BOB, worker_id="bob")
    active = register_work(app).enqueue()
    take(app, BOB)

    found = [row["id"] for row in rows.query(app, LOCKED)]

    assert found == [active.id]
    assert stuck not in found


@pytest.mark.only_on("postgresql", "mariadb")
def test_the_guide_finds_the_next_job(app: Stepfast) -> None:
    work = register_work(app)
    first = work.enqueue()
    work.enqueue()
    rows.change(app, "UPDATE stepfast_job SET created_at = 5 WHERE id = :id", id=first.id)

    assert [row["id"] for row in rows.query(app, NEXT)] == [first.id]


@pytest.mark.only_on("postgresql", "mariadb")
@pytest.mark.parametrize("hours", [-11, 0, 9])
def test_a_session_in_another_time_zone_compares_right_with_now(
    app: Stepfast, stuck: str, hours: int
) -> None:
    rows.add_worker(app, BOB, worker_id="bob", alive_for=60 * rows.SECOND)
    active = register_work(app).enqueue()
    take(app, BOB)
    connection = app.database.connect()
    zone = {"mariadb": f"'{hours:+03d}:00'", "postgresql": f"INTERVAL '{hours:+03d}:00'"}
    name = app.database.dialect.name
    connection.execute(f"SET {'TIME ZONE' if name == 'postgresql' else 'time_zone ='} {zone[name]}")

    locked = connection.execute(LOCKED).fetchall()
    late = connection.execute(STUCK).fetchall()
    young = connection.execute(
        "SELECT id FROM processing_jobs WHERE created_at BETWEEN NOW() - INTERVAL '1' HOUR AND NOW() + INTERVAL '1' HOUR"
    ).fetchall()
    connection.close()

    assert [row[0] for row in locked] == [active.id]
    assert [row[0] for row in late] == [stuck]
    assert {row[0] for row in young} == {active.id, stuck}


@pytest.mark.parametrize(
    "text",
    [
        "INSERT INTO processing_jobs (job_id, job_type, status) VALUES ('test-crash-job', 'test', 'queued')",
        "UPDATE processing_jobs SET locked_by = NULL, status = 'queued' WHERE status = 'processing'",
        "DELETE FROM processing_jobs",
    ],
    ids=["insert", "update", "delete"],
)
def test_writing_to_the_view_fails_clearly(app: Stepfast, stuck: str, text: str) -> None:
    with pytest.raises(DatabaseError, match="processing_jobs"):
        rows.change(app, text)

    assert seen(app, stuck)["status"] == "processing"


@pytest.mark.only_on("sqlite", "postgresql")  # MariaDB has no triggers on views
def test_an_insert_into_the_view_is_told_where_to_insert(app: Stepfast) -> None:
    text = "INSERT INTO {} (job_id, job_type, status) VALUES ('test-crash-job', 'test', 'queued')"

    with pytest.raises(DatabaseError, match="the view processing_jobs; insert the job into stepfast_job"):
        rows.change(app, text.format("processing_jobs"))

    app.migrate(views="work_")
    with pytest.raises(
        DatabaseError, match="the view work_processing_jobs; insert the job into stepfast_job"
    ):
        rows.change(app, text.format("work_processing_jobs"))
    assert rows.count(app, "stepfast_job") == 0
