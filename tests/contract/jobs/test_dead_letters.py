"""Dead letters are kept until an operator decides; finished jobs are pruned after their retention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepfast import Continue, Done
from stepfast.errors import DuplicateKeyError, LeaseLostError, NotFoundError, StateError
from stepfast.jobs.dead_letters import (
    Filter,
    choose_dead,
    count_dead,
    failure_groups,
    purge,
    revive,
    revive_many,
)
from stepfast.jobs.outcome import Bury, Stop
from stepfast.jobs.retry import describe, fingerprint
from stepfast.jobs.step import Report, write_reports
from stepfast.worker.maintenance import prune
from tests.support import rows
from tests.support.engine import ALICE, commit_step, register_work, rescue_all, take

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.jobs.lease import Lease
    from stepfast.results.enqueued_job import EnqueuedJob

FOREVER = 2**62


def bury(app: Stepfast, error: Exception | None = None, *, queue: str = "default", kind: str = "work") -> str:
    """A job that died of `error`."""
    error = error or ValueError("no")
    job = register_work(app).enqueue(queue=queue)
    rows.change(app, "UPDATE stepfast_job SET kind = :kind, queue = 'default'", kind=kind)
    held = take(app)
    commit_step(app, held, Bury(describe(error), fingerprint(error)))
    rows.change(app, "UPDATE stepfast_archive SET queue = :queue WHERE id = :id", queue=queue, id=job.id)
    return job.id


def finish(app: Stepfast, *, cancelled: bool = False) -> str:
    job = register_work(app).enqueue()
    commit_step(app, take(app), Stop("cancelled") if cancelled else Done())
    return job.id


def write_log(app: Stepfast, held: Lease, line: str) -> None:
    with app.transaction() as tx:
        write_reports(tx, [Report(held, None, None, "info", line)])


def age(app: Stepfast, days: int) -> None:
    rows.change(app, "UPDATE stepfast_archive SET finished_at = finished_at - :days", days=days * rows.DAY)


def pruned(app: Stepfast, limit: int = 1000) -> int:
    with app.transaction() as tx:
        return prune(tx, 7 * rows.DAY, limit)


def test_a_revived_job_gets_fresh_attempts_at_the_step_where_it_stopped(app: Stepfast) -> None:
    job = register_work(app).enqueue(n=3, priority=2)
    commit_step(app, take(app), Continue({"page": 7}))
    commit_step(app, take(app), Bury("broken", "broken"))

    with app.transaction() as tx:
        revive(tx, job.id)

    held = take(app)
    assert (held.job_id, held.attempt, held.step, held.cursor, held.payload, held.priority) == (
        job.id,
        1,
        1,
        '{"page":7}',
        '{"n":3}',
        2,
    )
    assert rows.ended(app, job.id) is None


def test_a_revived_job_remembers_what_it_died_of(app: Stepfast) -> None:
    job_id = bury(app, ValueError("broken"))

    with app.transaction() as tx:
        revive(tx, job_id)

    row = rows.live(app, job_id)
    assert row is not None
    assert (row["state"], row["last_error"]) == ("ready", "ValueError: broken")


def test_nobody_who_held_the_job_before_its_death_can_end_it_again(app: Stepfast) -> None:
    register_work(app).enqueue()
    held = take(app)
    commit_step(app, held, Bury("broken", "broken"))
    with app.transaction() as tx:
        revive(tx, held.job_id)
    new = take(app)

    with pytest.raises(LeaseLostError):
        commit_step(app, held, Done())

    commit_step(app, new, Done())
    assert rows.state(app, held.job_id) == "done"


def test_a_letter_that_died_of_crashes_comes_back_as_a_suspect(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    rows.add_worker(app, ALICE, alive_for=-rows.SECOND)
    take(app, ALICE)
    assert rescue_all(app, crash_limit=1).died == 1

    with app.transaction() as tx:
        revive(tx, job.id)

    assert rows.state(app, job.id) == "suspect"


def test_a_cancelled_job_can_be_revived(app: Stepfast) -> None:
    job_id = finish(app, cancelled=True)

    with app.transaction() as tx:
        revive(tx, job_id)

    assert rows.state(app, job_id) == "ready"


def test_a_done_job_cannot_be_revived(app: Stepfast) -> None:
    job_id = finish(app)

    with pytest.raises(StateError, match="is done"), app.transaction() as tx:
        revive(tx, job_id)


def test_an_unfinished_job_needs_no_reviving(app: Stepfast) -> None:
    job = register_work(app).enqueue()

    with pytest.raises(NotFoundError, match=job.id), app.transaction() as tx:
        revive(tx, job.id)


def test_a_letter_dies_revives_and_dies_again(app: Stepfast) -> None:
    job_id = bury(app)
    with app.transaction() as tx:
        revive(tx, job_id)

    commit_step(app, take(app), Bury("again", "again"))

    row = rows.ended(app, job_id)
    assert row is not None
    assert (row["state"], row["last_error"]) == ("dead", "again")


def test_letters_are_chosen_by_kind_queue_and_error(app: Stepfast) -> None:
    mail = bury(app, ValueError("order 7"), queue="mail", kind="send")
    also = bury(app, ValueError("order 8"), queue="mail", kind="send")
    other = bury(app, KeyError("x"), kind="import")

    def chosen(which: Filter) -> list[str]:
        with app.transaction() as tx:
            assert count_dead(tx, which, FOREVER) == len(choose_dead(tx, which, 100, FOREVER))
            return [it.id for it in choose_dead(tx, which, 100, FOREVER)]

    assert chosen(Filter()) == [mail, also, other]
    assert chosen(Filter(kind="send")) == [mail, also]
    assert chosen(Filter(queue="default")) == [other]
    assert chosen(Filter(error_group=fingerprint(ValueError("order 9")))) == [mail, also]
    assert chosen(Filter(kind="send", queue="default")) == []


def test_letters_are_chosen_oldest_first_and_each_once(app: Stepfast) -> None:
    letters = [bury(app) for _ in range(5)]
    rows.change(app, "UPDATE stepfast_archive SET finished_at = 5")

    with app.transaction() as tx:
        first = choose_dead(tx, Filter(), 3, FOREVER)
        rest = choose_dead(tx, Filter(), 3, FOREVER, after=first[-1])

    assert [it.id for it in first + rest] == letters


def test_a_letter_that_died_after_the_count_was_taken_is_not_chosen(app: Stepfast) -> None:
    bury(app)
    rows.change(app, "UPDATE stepfast_archive SET finished_at = 10")

    with app.transaction() as tx:
        assert choose_dead(tx, Filter(), 10, until=9) == []


def test_many_are_revived_together_except_those_whose_key_is_taken(app: Stepfast) -> None:
    work = register_work(app)
    free = bury(app)
    keyed = work.enqueue(key="k")
    commit_step(app, take(app), Bury("broken", "broken"))
    work.enqueue(key="k")

    with app.transaction() as tx:
        revived = revive_many(tx, choose_dead(tx, Filter(), 10, FOREVER))

    assert revived == 1
    assert (rows.state(app, free), rows.state(app, keyed.id)) == ("ready", "dead")


def test_two_letters_with_one_key_are_not_both_revived(app: Stepfast) -> None:
    work = register_work(app)
    letters: list[EnqueuedJob[None]] = []
    for _ in range(2):
        letters.append(work.enqueue(key="k"))
        commit_step(app, take(app), Bury("broken", "broken"))

    with app.transaction() as tx:
        revived = revive_many(tx, choose_dead(tx, Filter(), 10, FOREVER))

    assert revived == 1
    assert [rows.state(app, it.id) for it in letters] == ["ready", "dead"]
    with pytest.raises(DuplicateKeyError), app.transaction() as tx:
        revive(tx, letters[1].id)


def test_failures_are_grouped_by_their_cause(app: Stepfast) -> None:
    newest = [bury(app, ValueError(f"order {n}: amount 'x{n}' is wrong")) for n in range(3)][-1]
    bury(app, KeyError("missing"))

    with app.transaction() as tx:
        groups = failure_groups(tx)

    assert [(it.kind, it.error_group, it.count) for it in groups] == [
        ("work", "ValueError: order …: amount … is wrong", 3),
        ("work", "KeyError: …", 1),
    ]
    assert groups[0].newest_id == newest
    assert groups[0].first_at <= groups[0].last_at


def test_a_purged_letter_takes_its_log_with_it(app: Stepfast) -> None:
    work = register_work(app)
    gone, kept = work.enqueue(), work.enqueue()
    for _ in range(2):
        held = take(app)
        write_log(app, held, f"line of {held.job_id}")
        commit_step(app, held, Bury("broken", "broken"))

    with app.transaction() as tx:
        removed = purge(tx, [gone.id])

    assert removed == 1
    assert (rows.state(app, gone.id), rows.logs(app, gone.id)) == (None, [])
    assert (rows.state(app, kept.id), rows.logs(app, kept.id)) == ("dead", [f"line of {kept.id}"])


def test_purging_nothing_is_nothing(app: Stepfast) -> None:
    bury(app)

    with app.transaction() as tx:
        assert purge(tx, []) == 0

    assert rows.count(app, "stepfast_archive") == 1


# Retention


def test_finished_and_cancelled_jobs_are_forgotten_after_their_time(app: Stepfast) -> None:
    old = [finish(app), finish(app, cancelled=True)]
    age(app, days=8)
    young = [finish(app), finish(app, cancelled=True)]

    removed = pruned(app)

    assert removed == 2
    assert [rows.state(app, it) for it in old + young] == [None, None, "done", "cancelled"]


def test_dead_letters_are_kept_whatever_their_age(app: Stepfast) -> None:
    letter = bury(app)
    age(app, days=4000)

    assert pruned(app) == 0
    assert rows.state(app, letter) == "dead"


def test_unfinished_jobs_are_kept_whatever_their_age(app: Stepfast) -> None:
    job = register_work(app).enqueue()
    rows.change(app, "UPDATE stepfast_job SET created_at = 1, updated_at = 1, ready_at = 1")

    assert pruned(app) == 0
    assert rows.state(app, job.id) == "ready"


def test_pruning_goes_in_bounded_batches_oldest_first(app: Stepfast) -> None:
    jobs = [finish(app) for _ in range(5)]
    age(app, days=8)

    counts = [pruned(app, limit=2) for _ in range(4)]

    assert counts == [2, 2, 1, 0]
    assert [rows.state(app, it) for it in jobs] == [None] * 5


def test_logs_are_pruned_with_their_jobs(app: Stepfast) -> None:
    work = register_work(app)
    old, live = work.enqueue(), work.enqueue()
    held = take(app)
    write_log(app, held, "old")
    commit_step(app, held, Done())
    write_log(app, take(app), "live")
    age(app, days=8)

    pruned(app)

    assert (rows.logs(app, old.id), rows.logs(app, live.id)) == ([], ["live"])
