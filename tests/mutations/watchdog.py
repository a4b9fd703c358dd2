"""Guards of the watchdog of runs and of its alerts, each taken away once."""

from __future__ import annotations

from stepfast.runs import watchdog
from tests.contract.runs import test_alerts, test_watchdog
from tests.mutations.mutation import Mutation, replacing, without

MUTATIONS = [
    Mutation(
        "a drain does not watch over runs",
        replacing("stepfast.testing.draining:Drain._watch_over_runs", lambda _: 0),
        test_watchdog.test_a_partition_whose_job_gave_up_fails_and_so_does_its_run,
    ),
    Mutation(
        "a job that lives is taken for lost",
        replacing("stepfast.runs.watchdog:missing_job", lambda *_: watchdog.MissingJob(gave_up=False)),
        test_watchdog.test_a_partition_whose_job_lives_is_left_alone,
    ),
    Mutation(
        "shards that vanished are still waited for",
        without("stepfast.runs.watchdog:FORGET_SHARDS", "shards = 0", "shards = shards"),
        test_watchdog.test_shards_that_vanished_are_followed_by_another_round,
    ),
    Mutation(
        "a run that stalls has moved",
        without("stepfast.runs.watchdog:STALL_RUN", "SET ", "SET updated_at = {now}, "),
        test_watchdog.test_a_run_that_nothing_has_moved_for_too_long_is_stalled_and_told_once,
    ),
    Mutation(
        "what partitions do is no movement of their run",
        without("stepfast.runs.watchdog:STILL_FOR", "max(p.updated_at)", "min(0)"),
        test_watchdog.test_a_run_that_moves_is_not_stalled_however_old_its_row_is,
    ),
    Mutation(
        "what a failed partition has seen is forgotten",
        without("stepfast.runs.watchdog:IS_SEEN_NEEDED", "p.id = :id AND", "p.id = :id AND 1 = 0 AND"),
        test_watchdog.test_what_a_failed_partition_has_seen_is_kept_until_it_cannot_be_read_on,
    ),
    Mutation(
        "runs are forgotten at once",
        without("stepfast.runs.watchdog:FIND_OLD_RUN", "< {now} - :age", "< {now} + :age"),
        test_watchdog.test_runs_that_are_not_old_are_kept,
    ),
    Mutation(
        "the run that moved the watermark is forgotten",
        without("stepfast.runs.watchdog:FIND_OLD_RUN", "f.last_run = r.id", "f.last_run <> f.last_run"),
        test_watchdog.test_old_runs_are_forgotten_with_their_ledgers_but_not_the_newest,
    ),
    Mutation(
        "what is seen at every look is raised at every look",
        without("stepfast.runs.alerts:RAISED_LATELY", "WHERE", "WHERE 1 = 0 AND"),
        test_alerts.test_a_cause_that_is_seen_at_every_look_is_raised_once_an_hour,
    ),
    Mutation(
        "a job of a run is told beside its run",
        replacing("stepfast.worker.relay:_without_runs", lambda _, found: found),
        test_alerts.test_a_failed_partition_sends_exactly_one_mail_however_often_it_was_tried,
    ),
]
