"""Alerts about runs: their texts, and how often they are sent."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Retry
from stepfast.database.database import persist
from stepfast.notifications.settings import NotificationSettings
from stepfast.runs import alerts
from stepfast.testing import drain
from stepfast.worker.relay import Relay
from tests.contract.runs.test_watchdog import consolidating, end, reading, stand_still, watchdog
from tests.support import rows
from tests.support.feeds import Catalogue, Shop, prepare
from tests.support.mail_receiver import MailReceiver, receiving_mail
from tests.support.run_facts import begin, run_of
from tests.support.single_threaded_worker import SingleThreadedWorker

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.runs.paging.decision import Cursor
    from stepfast.runs.partitioning.ranges import Range
    from stepfast.runs.run import Run


@pytest.fixture
def box() -> Iterator[MailReceiver]:
    with receiving_mail() as found:
        yield found


def relayed(app: Stepfast, box: MailReceiver) -> None:
    Relay(app.database, NotificationSettings(alert_urls=(box.url,))).drain()


def alert(app: Stepfast) -> rows.Row:
    (found,) = rows.query(app, "SELECT * FROM stepfast_alert")
    return found


def not_a_page(what: str, part: Range, _cursor: Cursor | None) -> None:
    if what == "page" and part.name.startswith("price 250"):
        raise ValueError("not a page")


def failed(app: Stepfast) -> Run:
    """A run of which one partition gave up, after five attempts."""
    shop = reading(app)
    shop.before = not_a_page
    run = begin(app)
    SingleThreadedWorker(app).finish()
    assert watchdog(app).look() == 1
    return run_of(app, run.id)


def test_a_failed_partition_sends_exactly_one_mail_however_often_it_was_tried(
    app: Stepfast, box: MailReceiver
) -> None:
    """One cause is one mail: not one per attempt, nor one for the job and one for the run. (F40)"""
    run = failed(app)

    for _ in range(3):
        watchdog(app).look()
        watchdog(app).tidy()
        relayed(app, box)

    assert box.subjects == ["Consolidation Skipped"]
    assert f"Run ID: {run.id}" in box.text()


def test_the_mail_about_a_skipped_consolidation_says_what_the_operators_need(app: Stepfast) -> None:
    """Run id, expected and completed and failed, and what to do. (F40)"""
    run = failed(app)

    found = alert(app)

    assert found["title"] == "Consolidation Skipped"
    assert found["body"] == (
        f"Run ID: {run.id}\n"
        "Feed: catalogue\n"
        "Partitions: 4 expected, 3 completed, 1 failed\n"
        "Watermark NOT advanced\n"
        f"Action: review the failed partitions with: stepfast runs show {run.id}\n"
        f"then retry them with: stepfast runs retry {run.id}"
    )


def test_the_mail_about_a_failed_consolidation_says_why(app: Stepfast, box: MailReceiver) -> None:
    """Run id, error, that the watermark stays, and what to do. (F40)"""
    reading(app)
    run = consolidating(app)
    (shard,) = rows.query(app, "SELECT id FROM stepfast_job")
    end(app, shard["id"], "dead", "OperationalError: disk full")

    watchdog(app).look()
    relayed(app, box)
    relayed(app, box)

    assert box.subjects == ["Consolidation Failed"]
    assert alert(app)["body"] == (
        f"Run ID: {run.id}\n"
        "Feed: catalogue\n"
        "Error: OperationalError: disk full\n"
        "Watermark NOT advanced\n"
        f"Action: review it with: stepfast runs show {run.id}\n"
        f"then go on with: stepfast runs consolidate {run.id}"
    )


def test_a_stalled_run_is_told_with_its_state_and_since_when(app: Stepfast) -> None:
    reading(app)
    run = begin(app)
    stand_still(app)

    watchdog(app).look()

    assert alert(app)["title"] == "Run stalled"
    assert alert(app)["body"] == (
        f"Run ID: {run.id}\n"
        "Feed: catalogue\n"
        "State: planning, without a movement for 31 min\n"
        "Why: no step of it has been committed; its jobs wait, or fail\n"
        f"Action: see what it waits for with: stepfast runs show {run.id}"
    )


def test_an_old_watermark_is_told_with_its_age(app: Stepfast) -> None:
    reading(app)

    persist(
        app.database,
        lambda tx: alerts.watermark_too_old(tx, "catalogue", timedelta(hours=3), timedelta(hours=2)),
    )

    assert alert(app)["title"] == "Watermark too old"
    assert alert(app)["body"] == (
        "Feed: catalogue\n"
        "Age: 3 h; it should be fresh within 2 h\n"
        "Action: see its runs with: stepfast runs list --feed catalogue"
    )


def test_a_plan_that_gave_up_is_told_with_its_error(app: Stepfast) -> None:
    shop = Shop()
    app.feed(Unplanned(shop))
    prepare(app)
    run = begin(app)
    drain(app, with_scheduled=True, raise_errors=False)

    assert alert(app)["title"] == "Planning Failed"
    assert alert(app)["body"] == (
        f"Run ID: {run.id}\n"
        "Feed: catalogue\n"
        "Error: KeyError: 'password=***'\n"
        "Watermark NOT advanced\n"
        f"Action: review it with: stepfast runs show {run.id}\n"
        f"then go on with: stepfast runs retry {run.id}"
    )


class Unplanned(Catalogue):
    partitioner = None

    def plan(self, _window: Any, /) -> list[Range]:
        raise KeyError("password=hunter2")


def test_a_cause_that_is_seen_at_every_look_is_raised_once_an_hour(app: Stepfast) -> None:
    def tell() -> bool:
        return persist(
            app.database,
            lambda tx: alerts.watermark_too_old(tx, "catalogue", timedelta(hours=3), timedelta(hours=2)),
        )

    assert [tell(), tell(), tell()] == [True, False, False]

    rows.change(app, "UPDATE stepfast_alert SET last_at = last_at - :hour", hour=rows.HOUR + rows.SECOND)
    assert tell()
    assert alert(app)["raised"] == 2


def test_the_deaths_of_other_jobs_are_still_told(app: Stepfast, box: MailReceiver) -> None:
    failed(app)

    @app.job(retry=Retry(attempts=1))
    def other() -> None:
        raise ValueError("no")

    other.enqueue()
    drain(app, raise_errors=False)
    relayed(app, box)

    assert sorted(box.subjects) == ["Consolidation Skipped", "Job other died"]
