"""Ways to break the protocol, each with the test that must notice.

A test that passes whatever the code says is worse than none. So each of these takes one guard out of the engine,
runs one test of the contract, and expects it to fail.
"""

from __future__ import annotations

import hmac
import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import httpx
from msgspec.structs import replace

from stepfast import Continue, Done, ResultExpiredError, Snooze, WaitTimeoutError
from stepfast.admin import audit, statistics
from stepfast.admin import jobs as actions
from stepfast.admin import run_reports as partition_reports
from stepfast.admin import statistics as gauges
from stepfast.database.connection import Transaction
from stepfast.database.statement import Statement
from stepfast.errors import ConstraintError, ContentionError, DatabaseError, DestinationLostError
from stepfast.jobs import archive, commit, dead_letters, enqueue, keys, lease, rescue
from stepfast.jobs import commit as acknowledge
from stepfast.jobs import manual_lease as manual
from stepfast.jobs import step as reports
from stepfast.jobs.outcome import Again, Bury, GiveBack
from stepfast.limits import slots
from stepfast.limits import slots as admission
from stepfast.limits import slots as limit_rows
from stepfast.limits import slots as release
from stepfast.notifications import network as addresses
from stepfast.notifications import webhook
from stepfast.outbox import alerts
from stepfast.outbox import destinations as outbox_relay
from stepfast.outbox import destinations as retention
from stepfast.outbox import exports as files
from stepfast.outbox import messages as outbox_messages
from stepfast.results import outcome as expiry
from stepfast.results import watch as waiting
from stepfast.results import watch as watching
from stepfast.runs import alerts as run_alerts
from stepfast.runs import breaker, partition, repair
from stepfast.runs import breaker as pause
from stepfast.runs import debts as run_debts
from stepfast.runs import lifecycle as sweep_start
from stepfast.runs import page as observing
from stepfast.runs import page as reading
from stepfast.runs import repair as restarting
from stepfast.runs import replay as replaying
from stepfast.runs import sweep as gone
from stepfast.runs import sweep as sweep_state
from stepfast.runs import sweep_step as sweeping
from stepfast.runs import watchdog as mending
from stepfast.runs import watchdog as pruning
from stepfast.runs import watchdog as vigil
from stepfast.runs import watermark as run_watermark
from stepfast.runs.breaker import Trouble, TroubleKind
from stepfast.runs.feed import Sweep
from stepfast.runs.paging import decide as deciding
from stepfast.runs.paging import decide as offset_paging
from stepfast.runs.paging import decide as token_paging
from stepfast.runs.paging import decision as verification
from stepfast.runs.partitioning import heatmap as heatmap_cut
from stepfast.runs.partitioning import heatmap as heatmap_scan
from stepfast.runs.partitioning.contract import Plan
from stepfast.runs.partitioning.dimension import Dimension
from stepfast.runs.partitioning.ranges import Bounds
from stepfast.runs.run import lock_run
from stepfast.schedules import firing, schedule
from stepfast.schedules import schedule as changes
from stepfast.telemetry import masking
from stepfast.testing import assertions as stored
from stepfast.testing import crash as points
from stepfast.testing import draining as left
from stepfast.testing import draining as until_idle
from stepfast.testing import inline_run as inline_mode
from stepfast.testing import test_clock as moved_clock
from stepfast.worker import claimer as claiming
from stepfast.worker import maintenance, running
from stepfast.worker import metrics as scrape
from stepfast.worker import relay as deaths
from stepfast.worker import worker as loop
from stepfast.worker.running import Ended
from tests.contract.admin import test_audit, test_run_reports
from tests.contract.admin import test_reports as test_admin_reports
from tests.contract.jobs import (
    test_commit,
    test_dead_letters,
    test_enqueue,
    test_keys,
    test_leases,
    test_limits,
    test_rescue,
    test_result_expiry,
    test_results,
)
from tests.contract.jobs import test_watch as test_watching
from tests.contract.outbox import test_alerts, test_outbox, test_relay
from tests.contract.runs import test_alerts as test_run_alerts
from tests.contract.runs import test_breaker, test_debts, test_odd_rows, test_sweep, test_watermark
from tests.contract.runs import test_repair as test_run_repair
from tests.contract.runs import test_watchdog as test_vigil
from tests.contract.runs import test_watermark_export as test_export
from tests.contract.schedules import test_declared_schedules, test_schedules
from tests.contract.testing import test_clock as test_moved_clock
from tests.contract.testing import test_crash_points, test_drain, test_inline
from tests.contract.worker import test_telemetry as test_observed
from tests.contract.worker import test_traces as test_tracing
from tests.unit.notifications import test_signature
from tests.unit.runs.paging import test_offset as test_paging_offset
from tests.unit.runs.paging import test_tokens as test_paging_tokens
from tests.unit.runs.partitioning import test_estimate, test_heatmap
from tests.unit.telemetry import test_sinks as test_telemetry
from tests.unit.worker import test_claimer as test_claiming

if TYPE_CHECKING:
    import pytest

    from stepfast.database.dialects import Dialect

Patch = Callable[["pytest.MonkeyPatch"], None]
SERVERS = ("postgresql", "mariadb")
EVERYWHERE = ("sqlite", *SERVERS)


@dataclass(frozen=True)
class Mutation:
    """`break_it` takes a guard away; then `noticed_by` must fail."""

    name: str
    break_it: Callable[[pytest.MonkeyPatch, Dialect], None]
    noticed_by: Callable[..., None]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    only_on: tuple[str, ...] = EVERYWHERE
    or_with: tuple[type[Exception], ...] = ()  # another way in which the test may fail

    def run(self, **fixtures: Any) -> None:
        """Run the test with the fixtures it asks for."""
        wanted = inspect.signature(self.noticed_by).parameters
        self.noticed_by(**{name: it for name, it in fixtures.items() if name in wanted}, **self.arguments)


def without(
    statement: Statement, part: str, instead: str = ""
) -> Callable[[pytest.MonkeyPatch, Dialect], None]:
    """The statement with `part` of its text taken out."""

    def break_it(patch: pytest.MonkeyPatch, dialect: Dialect) -> None:
        text = statement.overrides.get(dialect.name, statement.text)
        assert part in text, f"nothing to take out on {dialect.name}: {text}"
        broken = text.replace(part, instead)
        patch.setitem(statement.overrides, dialect.name, broken)  # read where a test moved the clock
        patch.setitem(statement._rendered, dialect.name, Statement(broken).render(dialect))

    return break_it


def without_kind(statement: Statement) -> Callable[[pytest.MonkeyPatch, Dialect], None]:
    """The statement, about results of any kind."""

    def break_it(patch: pytest.MonkeyPatch, dialect: Dialect) -> None:
        column = "result_kind" if dialect.name == "mariadb" else "kind"
        without(statement, f"{column} = :kind AND", "")(patch, dialect)

    return break_it


def both(
    one: Callable[[pytest.MonkeyPatch, Dialect], None], other: Callable[[pytest.MonkeyPatch, Dialect], None]
) -> Callable[[pytest.MonkeyPatch, Dialect], None]:
    """Two guards that stand for each other, taken away together."""

    def break_it(patch: pytest.MonkeyPatch, dialect: Dialect) -> None:
        one(patch, dialect)
        other(patch, dialect)

    return break_it


def replacing(owner: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch, Dialect], None]:
    return lambda patch, _: patch.setattr(owner, name, value)


def _locked_without_a_second_look(tx: Transaction, run_id: str) -> Any:
    return partition.lock_partitions(tx, run_id), lock_run(tx, run_id)


FENCE = "AND fence = :fence"
NEW_FENCE = "fence = :new_fence, "
AGAIN = Again(timedelta(0), "error", "error")
IMPATIENT = replacing(test_results, "LESS_PATIENCE", 2)  # what it waits for will not come
replaced_cannot = test_leases.test_an_owner_that_was_replaced_can_end_nothing

MUTATIONS = [
    # The fence is the guard.
    Mutation(
        "effects run without a look at the fence",
        without(commit.LOCK_LEASED_JOB, FENCE),
        test_leases.test_an_owner_that_was_replaced_leaves_no_effect,
        only_on=("mariadb",),
    ),
    Mutation(
        "anyone finishes",
        without(acknowledge.REMOVE_DONE_JOB, FENCE),
        test_leases.test_an_owner_that_was_replaced_leaves_no_effect,
        only_on=("sqlite",),
    ),
    Mutation(
        "anyone moves a job",
        without(acknowledge.MOVE_DONE_JOB, FENCE),
        test_leases.test_an_owner_that_was_replaced_leaves_no_effect,
        only_on=("postgresql",),
    ),
    Mutation(
        "a batch is acknowledged without a look at the fences",
        without(acknowledge.LOCK_LEASED_JOBS, FENCE),
        test_commit.test_a_batch_with_some_fences_lost_archives_exactly_the_others,
        {"results": False},
        only_on=("sqlite", "mariadb"),
    ),
    Mutation(
        "a batch is moved without a look at the fences",
        without(acknowledge.MOVE_DONE_JOBS, FENCE),
        test_commit.test_a_batch_with_some_fences_lost_archives_exactly_the_others,
        {"results": False},
        only_on=("postgresql",),
    ),
    Mutation(
        "a batch with results is moved without a look at the fences",
        without(acknowledge.MOVE_DONE_JOBS_WITH_RESULTS, FENCE),
        test_commit.test_a_batch_with_some_fences_lost_archives_exactly_the_others,
        {"results": True},
        only_on=("postgresql",),
    ),
    Mutation(
        "anyone continues", without(commit.CONTINUE_JOB, FENCE), replaced_cannot, {"ending": Continue(2)}
    ),
    Mutation(
        "anyone continues here",
        without(commit.CONTINUE_JOB_HERE, FENCE),
        test_leases.test_an_owner_that_was_replaced_can_continue_nothing,
        {"stay": True},
    ),
    Mutation("anyone snoozes", without(commit.SNOOZE_JOB, FENCE), replaced_cannot, {"ending": Snooze("1m")}),
    Mutation("anyone fails", without(commit.RETRY_JOB, FENCE), replaced_cannot, {"ending": AGAIN}),
    Mutation(
        "anyone buries",
        without(commit.RECORD_FAILURE, FENCE),
        replaced_cannot,
        {"ending": Bury("error", "error")},
    ),
    Mutation(
        "anyone gives back",
        without(commit.GIVE_BACK_JOBS, FENCE),
        test_leases.test_an_owner_that_was_replaced_can_give_back_nothing,
    ),
    Mutation(
        "anyone reports progress",
        without(reports.WRITE_PROGRESS, FENCE),
        test_leases.test_an_owner_that_was_replaced_can_report_nothing,
    ),
    Mutation(
        "anyone writes a log",
        without(reports.WRITE_LOG, FENCE),
        test_leases.test_an_owner_that_was_replaced_can_report_nothing,
    ),
    Mutation(
        "anyone extends a lease by hand",
        without(manual.EXTEND_LEASE, FENCE),
        test_leases.test_a_zombie_can_extend_nothing,
    ),
    # Every ending that leaves the job alive consumes the fence.
    *(
        Mutation(
            f"a step ends twice: {type(first).__name__}",
            without(statement, NEW_FENCE),
            test_leases.test_a_step_ends_once,
            {"first": first, "second": Done()},
        )
        for statement, first in (
            (commit.CONTINUE_JOB, Continue(2)),
            (commit.SNOOZE_JOB, Snooze("1m")),
            (commit.RETRY_JOB, AGAIN),
            (commit.GIVE_BACK_JOBS, GiveBack()),
        )
    ),
    Mutation(
        "a rescued job keeps the fence of the dead",
        without(rescue.TAKE_BACK_JOBS, "fence = :fence,"),
        test_leases.test_an_owner_whose_job_was_rescued_but_not_yet_taken_can_commit_nothing,
    ),
    Mutation(
        "a replaced payload keeps its fence",
        without(enqueue.REPLACE_JOB, "fence = :fence, "),
        test_keys.test_a_replacement_supersedes_the_one_who_runs_the_old_payload,
    ),
    Mutation(
        "a replaced payload repeats its step's number",
        without(enqueue.REPLACE_JOB, "step = step + 1", "step = 0"),
        test_keys.test_a_replacement_is_no_repetition_for_services_outside,
    ),
    Mutation(
        "an id without a job stays remembered",
        without(keys.RELEASE_KEY, "id = :id AND", "id = :id AND 1 = 0 AND"),
        test_keys.test_an_id_that_was_refused_in_a_transaction_that_went_on_is_not_remembered,
    ),
    Mutation(
        "a cancelled job forgets which step it committed",
        without(commit.ADVANCE_CANCELLED_JOB, "step = step + 1", "step = step"),
        test_commit.test_a_cancelled_job_that_is_revived_goes_on_behind_the_step_it_committed,
        {"stay": False},
    ),
    Mutation(
        "a throttled suspect is cleared",
        without(commit.RETRY_JOB, ":charge = 0 AND", ":charge = 7 AND"),
        test_commit.test_a_try_that_costs_nothing_leaves_a_suspect_suspect,
    ),
    # A lost COMMIT is decided by the fence it consumed.
    Mutation(
        "a continuation forgets which fence it consumed",
        without(commit.CONTINUE_JOB, "committed_fence = :fence, "),
        test_commit.test_a_commit_that_happened_although_nobody_said_so_is_found,
        {"ending": Continue(2)},
    ),
    Mutation(
        "the archive forgets which fence was consumed",
        without(archive.ARCHIVE_JOBS, "fence, payload, :state", "NULL, payload, :state"),
        test_commit.test_a_commit_that_happened_although_nobody_said_so_is_found,
        {"ending": Bury("error", "error")},
    ),
    # What was swallowed cannot be committed.
    Mutation(
        "a poisoned transaction goes on",
        replacing(Transaction, "_guard", lambda _: None),
        test_commit.test_a_swallowed_constraint_error_cannot_be_committed,
        only_on=("sqlite", "mariadb"),  # PostgreSQL itself refuses to go on
    ),
    Mutation(
        "a transaction that was ended goes on",
        replacing(Transaction, "_require_open", lambda _: None),
        test_commit.test_a_commit_by_ddl_that_slipped_through_stops_everything_after_it,
        only_on=("mariadb",),
    ),
    # One owner at a time, in order.
    Mutation(
        "a claim locks nothing",
        without(lease.PICK_JOBS, "{skip_locked}"),
        test_leases.test_two_open_claims_both_get_rows,
        only_on=("mariadb",),
        or_with=(ContentionError,),
    ),
    Mutation(
        "a claim waits for its colleagues",
        without(lease.PICK_JOBS, "SKIP LOCKED"),
        test_leases.test_two_open_claims_both_get_rows,
        only_on=("postgresql",),
        or_with=(ContentionError,),
    ),
    Mutation(
        "priority does not matter",
        without(lease.PICK_JOBS, "ORDER BY priority DESC, ready_at, id", "ORDER BY ready_at, id"),
        test_enqueue.test_of_more_jobs_than_are_wanted_the_most_urgent_are_claimed,
    ),
    Mutation(
        "age does not matter",
        without(lease.PICK_JOBS, "ORDER BY priority DESC, ready_at, id", "ORDER BY priority DESC, id DESC"),
        test_enqueue.test_a_hundred_jobs_are_claimed_in_the_order_of_their_making,
    ),
    Mutation(
        "a paused queue is claimed",
        without(lease.PICK_JOBS, "paused_at IS NOT NULL", "paused_at IS NULL AND 1 = 0"),
        test_enqueue.test_a_paused_queue_gives_nothing,
    ),
    Mutation(
        "a payload of bytes stops every claim of its queue",
        without(lease.PICK_JOBS, "CAST(payload AS TEXT)", "payload"),
        test_leases.test_a_claim_takes_what_loose_columns_let_in,
        only_on=("sqlite",),
        or_with=(DatabaseError,),
    ),
    # Crashes convict only the guilty, and only the dead.
    Mutation(
        "everybody on board is charged",
        without(
            rescue.DECLARE_DEAD,
            "(SELECT count(*) FROM stepfast_job WHERE owner = :incarnation AND state = 'leased')",
            "1",
        ),
        test_rescue.test_of_many_on_board_none_is_charged_and_all_are_suspects,
    ),
    Mutation(
        "nobody is ever charged",
        without(
            rescue.DECLARE_DEAD,
            "(SELECT count(*) FROM stepfast_job WHERE owner = :incarnation AND state = 'leased')",
            "2",
        ),
        test_rescue.test_a_job_that_kills_three_workers_is_a_dead_letter_with_that_reason,
    ),
    Mutation(
        "a process that renewed is declared dead",
        without(rescue.DECLARE_DEAD, "AND (alive_until < {now} OR :proven = 1)"),
        test_rescue.test_a_process_that_renews_at_the_last_moment_stays_alive,
    ),
    Mutation(
        "a suspect that is given back goes among the others",
        without(commit.GIVE_BACK_JOBS, "THEN 'suspect'", "THEN 'ready'"),
        test_rescue.test_a_suspect_that_is_given_back_is_still_a_suspect,
    ),
    # Keys are remembered; chains give way; letters are kept.
    Mutation(
        "a remembered key is given away",
        without(keys.TAKE_OVER_KEY, "AND until_at <= {now}"),
        test_keys.test_a_duplicate_after_the_end_is_not_run_again,
        {"request_again": test_keys.by_period},
    ),
    Mutation(
        "an id is forgotten with its job",
        replacing(enqueue, "remember_key", lambda _tx, _scope, _key, job_id, _keep: job_id),
        test_keys.test_a_duplicate_after_its_job_was_pruned_is_not_run_again,
        {"request_again": test_keys.by_id},
    ),
    Mutation(
        "a chain ignores that its queue is paused",
        without(commit.MORE_URGENT_WORK, "paused_at IS NOT NULL", "1 = 0"),
        test_commit.test_a_continuation_does_not_stay_in_the_way,
        {"reason": test_commit.paused},
    ),
    Mutation(
        "a chain ignores more urgent work",
        without(commit.MORE_URGENT_WORK, "priority > :priority", "priority > :priority + 1"),
        test_commit.test_a_continuation_does_not_stay_in_the_way,
        {"reason": test_commit.more_urgent},
    ),
    Mutation(
        "a cancelled job lives on",
        without(commit.RETRY_JOB, "AND cancel_at IS NULL"),
        test_commit.test_a_job_that_was_asked_to_stop_does_not_live_on,
        {"ending": AGAIN, "stay": False},
    ),
    Mutation(
        "dead letters are pruned",
        without(maintenance.OLD, "state = :state", "(state = :state OR state = 'dead')"),
        test_dead_letters.test_dead_letters_are_kept_whatever_their_age,
    ),
    # Limits are asked under a lock, and a slot lives as long as its fence.
    Mutation(
        "who asks a limit locks nothing",
        without(limit_rows.LOCK_LIMITS, "{for_update}"),
        test_limits.test_who_asks_waits_for_the_answer_of_who_asked_before,
        only_on=SERVERS,
        or_with=(ContentionError,),
    ),
    Mutation(
        "a held job keeps its fence",
        without(admission.HOLD_JOBS, "fence = :new_fence, "),
        test_limits.test_a_job_that_was_put_aside_is_no_longer_its_claimers,
    ),
    Mutation(
        "anyone is put aside",
        without(admission.HOLD_JOBS, "fence = :fence AND cancel_at IS NULL", "cancel_at IS NULL"),
        test_limits.test_a_job_that_somebody_else_has_meanwhile_is_not_put_aside,
        only_on=("sqlite", "postgresql"),
    ),
    Mutation(
        "a slot is freed by anyone",
        without(slots.FREE_SLOTS, FENCE),
        test_limits.test_a_replaced_owner_does_not_free_the_slot_of_its_successor,
    ),
    Mutation(
        "the slots of the dead are never free",
        without(slots.DROP_STALE_SLOTS, "AND NOT EXISTS", "AND 1 = 0 AND NOT EXISTS"),
        test_limits.test_a_slot_whose_fence_has_moved_on_is_free,
    ),
    Mutation(
        "nobody looks when a worker has died",
        without(release.LOOK_AT_LIMITS_OF_JOBS, "due_at IS NOT NULL AND", "1 = 0 AND"),
        test_limits.test_the_slots_of_a_dead_worker_come_back_with_it,
    ),
    # What operators do is written down, in the same transaction.
    Mutation(
        "a slot that was freed while a job was put aside is found half a minute later",
        replacing(admission, "LOOK_SOON", release.LOOK_AGAIN),
        test_limits.test_a_slot_that_is_freed_while_a_job_is_put_aside_is_found_soon,
        only_on=("postgresql",),
    ),
    Mutation(
        "a drain leaves who is held beside a free slot",
        without(left.LEFT, "l.due_at IS NOT NULL AND", "1 = 0 AND"),
        test_limits.test_a_drain_does_not_leave_a_held_job_beside_a_free_slot,
    ),
    Mutation(
        "an action is not written down",
        replacing(actions, "record", lambda *_, **__: None),
        test_audit.test_an_action_is_written_down_with_who_what_and_why,
        {"deed": test_audit.cancel_a_waiting_job},
    ),
    Mutation(
        "only the first batch is counted",
        without(audit.ADD, "touched + :touched", "touched"),
        test_audit.test_an_action_is_written_down_with_who_what_and_why,
        {"deed": test_audit.retry_dead_letters},
    ),
    Mutation(
        "a command that was cut short looks complete",
        without(audit.WRITE_DOWN, "CASE WHEN :ended = 1 THEN {now} END", "{now}"),
        test_audit.test_a_command_that_stops_in_the_middle_says_how_far_it_came,
        or_with=(ConstraintError,),
    ),
    Mutation(
        "what operators did lately is forgotten",
        without(audit.OLD, "at < {now} - :age", "1 = 1"),
        test_audit.test_old_entries_are_forgotten_in_batches,
    ),
    # Results are kept for their time, and who waits hears of the end.
    Mutation(
        "a result is emptied before its time",
        without(expiry.EXPIRED_RESULTS, "AND finished_at < {now} - :age", ""),
        test_result_expiry.test_a_worker_says_how_long_results_are_kept,
        or_with=(ResultExpiredError,),
    ),
    Mutation(
        "results of all kinds are emptied",
        without_kind(expiry.EXPIRED_RESULTS),
        test_result_expiry.test_a_kind_may_keep_its_results_for_another_time,
    ),
    Mutation(
        "an emptied result looks like none",
        without(expiry.EMPTY_RESULTS, ", result_expired_at = {now}"),
        test_result_expiry.test_reading_an_expired_result_says_when_and_which_setting,
    ),
    Mutation(
        "nobody is told of what this process ended",
        both(replacing(loop, "ended", lambda *_: None), IMPATIENT),
        test_results.test_who_waits_hears_at_once_of_a_job_that_this_process_ended,
        only_on=("sqlite",),
        or_with=(WaitTimeoutError,),
    ),
    Mutation(
        "news that come during a look are missed",
        both(replacing(waiting, "TAKEN", waiting.NOW), IMPATIENT),
        test_results.test_news_that_come_while_the_database_is_asked_are_not_missed,
        only_on=("sqlite",),
        or_with=(WaitTimeoutError,),
    ),
    Mutation(
        "a line that was committed late is missed",
        replacing(watching.Log, "_read_late", lambda *_: None),
        test_watching.test_a_line_that_is_committed_after_a_later_one_is_not_missed,
        only_on=SERVERS,
    ),
    # The hint is never trusted for long.
    Mutation(
        "the whole queue is never asked again",
        replacing(claiming, "UNHINTED_EVERY", 1e9),
        test_claiming.test_the_whole_queue_is_asked_once_a_second_in_any_case,
        only_on=("sqlite",),
    ),
    # A test sees what happened, and what would happen.
    Mutation(
        "a jump of the clock kills the living",
        without(moved_clock.CARRY_ON, "alive_until + :passed", "alive_until + 0 * :passed"),
        test_moved_clock.test_a_worker_that_lives_survives_a_jump,
    ),
    Mutation(
        "a drain does not wait for jobs that run",
        without(left.LEFT, "(state = 'leased' AND", "(1 = 0 AND"),
        test_drain.test_a_slow_job_is_waited_for,
    ),
    Mutation(
        "a drain reports what it did not touch",
        without(stored.ENDED_JOBS_SINCE, "finished_at >= :since", "finished_at >= 0 * :since"),
        test_drain.test_what_was_done_before_is_not_reported_again,
    ),
    Mutation(
        "the deadlock of a job is taken for one of its enqueue",
        replacing(inline_mode, "DatabaseError", ZeroDivisionError),
        test_inline.test_a_handler_that_meets_a_deadlock_is_not_enqueued_again,
        or_with=(ContentionError,),
    ),
    Mutation(
        "the dead go on writing",
        replacing(points.Trap, "_refuse", lambda *_: None),
        test_crash_points.test_the_dead_do_not_clean_up,
    ),
    # What is told of it.
    Mutation(
        "a replaced payload keeps the trace of the old one",
        without(enqueue.REPLACE_JOB, "trace = :trace", "trace = COALESCE(trace, :trace)"),
        test_tracing.test_a_payload_replaced_outside_of_any_trace_begins_its_own,
    ),
    Mutation(
        "what a handler enqueues is nobody's child",
        replacing(running, "CURRENT", ContextVar("nobody", default=None)),
        test_tracing.test_without_opentelemetry_one_id_follows_a_job_and_its_children,
    ),
    Mutation(
        "what an effect enqueues is nobody's child",
        replacing(Ended, "inside", lambda _: nullcontext()),
        test_tracing.test_without_opentelemetry_one_id_follows_a_job_and_its_children,
    ),
    Mutation(
        "a silent worker counts as alive",
        without(gauges.WORKERS, "AND alive_until >= {now}"),
        test_observed.test_a_scrape_shows_how_full_the_database_is,
    ),
    Mutation(
        "the time of what died counts among the times of what is done",
        without(statistics.TIMES, "state = 'done' AND "),
        test_admin_reports.test_statistics_tell_the_median_and_the_slow_ones,
    ),
    Mutation(
        "failures of long ago count for ever",
        without(statistics.FAILED, "finished_at >= {now} - :span", "finished_at >= 0 * :span"),
        test_admin_reports.test_statistics_tell_what_jobs_failed_of_and_what_became_of_them,
    ),
    Mutation(
        "a log quotes the data that a library complains of",
        replacing(masking, "_QUOTED_DATA", re.compile("(?!)")),
        test_telemetry.test_a_log_shows_no_secret_and_no_data_that_a_library_quotes,
        {"text": "DETAIL:  Key (email)=(hunter2) already exists."},
        only_on=("sqlite",),
    ),
    Mutation(
        "labels of metrics are as many as the names of jobs",
        replacing(scrape, "MOST_VALUES", 1_000_000),
        test_observed.test_queues_without_number_are_shown_as_others,
        only_on=("sqlite",),
        or_with=(KeyError,),
    ),
    # A tick becomes one job.
    Mutation(
        "whoever meant to fire a tick fires it",
        without(firing.MOVE, "AND next_at = :due AND revision = :revision"),
        test_schedules.test_of_two_who_mean_to_fire_the_same_tick_one_does,
    ),
    Mutation(
        "a tick that was fired is not remembered",
        replacing(firing, "remember_key", lambda _tx, _scope, _key, job_id, _keep: job_id),
        test_schedules.test_a_plan_that_begins_anew_after_the_clock_was_set_back_fires_nothing_twice,
    ),
    Mutation(
        "a schedule is fired as it was before it was changed",
        without(firing.MOVE, "AND revision = :revision"),
        test_schedules.test_a_schedule_that_was_changed_after_somebody_meant_to_fire_it_fires_as_it_is_now,
    ),
    Mutation(
        "a change does not wait for the tick that is being fired",
        without(schedule.LOCK, "{for_update}"),
        test_schedules.test_a_pause_waits_for_a_tick_that_is_being_fired,
        only_on=SERVERS,
    ),
    Mutation(
        "a one-off that the code declares is forgotten, and declared anew",
        without(changes.FORGET, "AND declared IS NULL "),
        test_declared_schedules.test_a_declared_one_off_that_is_over_is_not_forgotten,
    ),
    # A message arrives at least once, in order, from one relay at a time.
    Mutation(
        "a relay that was replaced records what it did",
        without(outbox_relay.RENEW, "AND fence = :fence"),
        test_relay.test_a_relay_that_was_replaced_records_nothing,
    ),
    Mutation(
        "a relay that was replaced lets a destination go",
        without(outbox_relay.RELEASE, "AND fence = :fence"),
        test_relay.test_a_relay_that_was_replaced_records_nothing,
        or_with=(DestinationLostError,),
    ),
    Mutation(
        "a destination is taken from whoever serves it",
        both(
            without(outbox_relay.HEADS, "AND d.leased_until > {now}", "AND 1 = 0"),
            both(
                without(outbox_relay.FREE, "AND leased_until <= {now}"),
                without(outbox_relay.TAKE, "AND leased_until <= {now}"),
            ),
        ),
        test_relay.test_a_destination_that_somebody_serves_is_left_to_him,
    ),
    Mutation(
        "the youngest message goes first",
        without(outbox_relay.HEAD, "ORDER BY seq", "ORDER BY seq DESC"),
        test_relay.test_messages_of_a_destination_arrive_in_the_order_of_their_staging,
    ),
    Mutation(
        "a head that has to wait is overtaken",
        without(
            outbox_relay.HEAD,
            "AND destination = :destination",
            "AND destination = :destination AND due_at <= {now}",
        ),
        test_relay.test_the_head_of_the_line_holds_up_those_behind_it_and_nobody_else,
    ),
    Mutation(
        "what failed is tried again at once",
        without(outbox_relay.AGAIN, "due_at = {now} + :delay", "due_at = {now} + 0 * :delay"),
        test_relay.test_a_message_that_is_not_due_is_left_alone,
    ),
    Mutation(
        "messages that were given up are forgotten",
        both(
            without(retention.OLD, "state = 'sent' AND"),
            without(retention.FORGET, "AND state = 'sent'"),
        ),
        test_outbox.test_what_was_sent_is_forgotten_in_bounded_batches_and_what_died_is_not,
    ),
    Mutation(
        "the same cause is staged for one destination only",
        without(outbox_messages.HOLDER, "destination = :destination AND", ":destination = :destination AND"),
        test_outbox.test_the_same_cause_may_be_told_to_others,
    ),
    Mutation(
        "every address is public",
        replacing(addresses, "is_public", lambda _: True),
        test_relay.test_an_address_behind_the_wall_is_never_reached,
    ),
    Mutation(
        "a redirect is as good as an answer",
        replacing(webhook, "ENOUGH", range(200, 400)),
        test_relay.test_a_redirect_ends_in_a_sentence,
    ),
    Mutation(
        "any signature will do",
        replacing(hmac, "compare_digest", lambda _ours, _theirs: True),
        test_signature.test_one_secret_of_several_is_enough_on_either_side,
        only_on=("sqlite",),
    ),
    # An alert per cause and quiet time; every death is noticed, once.
    Mutation(
        "an alert is told however quiet it should be",
        without(alerts.TOLD, "quiet_until = {now} + :quiet", "quiet_until = {now} + 0 * :quiet"),
        test_alerts.test_one_cause_is_told_once_in_its_quiet_time_and_counted_meanwhile,
    ),
    Mutation(
        "what was told is told again",
        without(alerts.TOLD, "notify_at = NULL", "notify_at = {now}"),
        test_alerts.test_of_two_relays_that_tell_at_once_one_does,
    ),
    Mutation(
        "an old alert that nobody told keeps new ones from being told",
        without(alerts.RAISE, "WHEN notify_at > {now} - :too_old", "WHEN notify_at > 0 * :too_old"),
        test_alerts.test_what_nobody_could_tell_for_a_day_is_only_listed_until_it_is_raised_again,
    ),
    Mutation(
        "a death is noticed again and again",
        without(deaths.NOTICE, "VALUES (:id, :finished_at)", "VALUES (:id, :finished_at + 1)"),
        test_alerts.test_a_death_is_noticed_once_by_however_many,
    ),
    Mutation(
        "a death behind the bookmark is overlooked",
        replacing(deaths, "OVERLAP", timedelta(0)),
        test_alerts.test_a_death_that_is_committed_after_a_younger_one_is_noticed,
    ),
    # Partitions leave nothing out.
    Mutation(
        "bounds end before the next ones begin",
        replacing(
            Dimension, "part", lambda self, first, last: Bounds(first, max(first, last - 1), self.closed)
        ),
        test_heatmap.test_no_price_lies_between_two_partitions_or_beyond_the_last,
        only_on=("sqlite",),
    ),
    Mutation(
        "every plan is complete",
        replacing(Plan, "gap", property(lambda _: None)),
        test_heatmap.test_a_capped_plan_says_that_it_is_partial_and_what_it_leaves_out,
        only_on=("sqlite",),
    ),
    Mutation(
        "a partition is replaced by pieces that do not tile it",
        replacing(Plan, "gap", property(lambda _: None)),
        test_estimate.test_pieces_that_do_not_tile_their_parent_replace_nothing,
        only_on=("sqlite",),
    ),
    Mutation(
        "rows that a second dimension does not know are forgotten",
        replacing(heatmap_scan, "loses_rows", lambda *_: False),
        test_heatmap.test_a_second_dimension_that_loses_rows_is_not_used,
        only_on=("sqlite",),
    ),
    Mutation(
        "a price that is too dense is left as it is",
        replacing(heatmap_cut, "_other_axis", lambda *_: None),
        test_heatmap.test_partitions_of_the_lab_grown_profile_are_within_a_fifth_of_the_target,
        {"target": 3_000},
        only_on=("sqlite",),
    ),
    Mutation(
        "any answer is a count",
        replacing(heatmap_scan, "checked", lambda counts: counts),
        test_heatmap.test_an_answer_that_is_no_count_is_refused,
        {"answer": -1},
        only_on=("sqlite",),
    ),
    Mutation(
        "shrunken partitions of the last run are kept apart",
        replacing(heatmap_scan, "joined_if_small", lambda regions, _: regions),
        test_heatmap.test_prior_partitions_that_have_shrunk_are_joined,
        only_on=("sqlite",),
    ),
    Mutation(
        "partitions may be as many as they like",
        replacing(heatmap_scan, "few_enough", lambda regions, *_: regions),
        test_heatmap.test_indivisible_prices_do_not_break_the_limit_of_partitions,
        only_on=("sqlite",),
    ),
    # A page counts only where it belongs, and an end only with its proof.
    Mutation(
        "a page that skips rows is taken for the next one",
        replacing(offset_paging, "_anchors", lambda *_: 0),
        test_paging_offset.test_a_row_that_leaves_behind_us_is_noticed_and_the_next_one_read,
        only_on=("sqlite",),
    ),
    Mutation(
        "one known row is enough where several share a place",
        replacing(offset_paging, "_anchors", lambda paging, state: int(state.ordered and bool(paging.ties))),
        test_paging_offset.test_rows_that_share_a_place_may_be_shuffled_if_the_feed_says_how_many,
        {"ties": 3},
        only_on=("sqlite",),
    ),
    Mutation(
        "one page is believed that it is the last",
        replacing(offset_paging, "SURE", 1),
        test_paging_offset.test_a_partition_of_any_size_is_read_once_and_verified,
        {"count": 40},
        only_on=("sqlite",),
    ),
    Mutation(
        "any number of rows is enough",
        replacing(verification, "_enough", lambda *_: True),
        test_paging_offset.test_rows_that_the_source_counts_and_does_not_show_are_never_passed_over_in_silence,
        only_on=("sqlite",),
    ),
    Mutation(
        "a pass may take as many requests as it likes",
        replacing(deciding, "over_budget", lambda *_: None),
        test_paging_offset.test_a_pass_has_a_hard_bound_on_its_requests,
        only_on=("sqlite",),
    ),
    Mutation(
        "a circle of tokens is followed",
        replacing(token_paging, "follow", lambda state, token: (replace(state, after=token), False)),
        test_paging_tokens.test_a_token_that_leads_to_itself_is_followed_once,
        only_on=("sqlite",),
    ),
    # What operators do to a run happens once, and forgets nothing.
    Mutation(
        "a page is believed whatever its epoch",
        without(partition.ADVANCE, "AND epoch = :epoch "),
        test_run_repair.test_the_late_page_of_an_earlier_epoch_changes_nothing,
    ),
    Mutation(
        "a restart has the epoch of what it restarts",
        without(restarting.RESTART, "epoch = epoch + 1, "),
        test_run_repair.test_a_retry_goes_on_where_the_partition_stopped,
    ),
    Mutation(
        "a restart begins at the first page",
        replacing(restarting, "_fresh", lambda _: None),
        test_run_repair.test_a_retry_goes_on_where_the_partition_stopped,
    ),
    Mutation(
        "what was seen is believed from the start",
        without(restarting.FORGET_SEEN, "WHERE", "WHERE 1 = 0 AND"),
        test_run_repair.test_from_the_start_means_that_nothing_is_believed,
    ),
    Mutation(
        "a restarted partition is still counted as failed",
        replacing(repair, "recount", lambda *_: None),
        test_run_repair.test_a_retry_does_not_wait_for_the_others,
    ),
    Mutation(
        "a reopened run counts what it counted before",
        replacing(restarting, "recount", lambda *_: None),
        test_run_repair.test_only_the_partitions_that_are_named_are_read_again,
    ),
    Mutation(
        "a dead letter waits although its work is done",
        without(dead_letters.CANCEL_DEAD, "AND state = 'dead'", "AND state = 'gone'"),
        test_run_repair.test_the_job_of_a_retry_is_another_one,
    ),
    Mutation(
        "a run is reopened beside a newer one",
        replacing(repair, "blocked_by", lambda *_: None),
        test_run_repair.test_a_run_that_was_overtaken_is_not_reopened_but_owed,
        or_with=(ConstraintError,),
    ),
    Mutation(
        "a debt is owed once more for each who asks",
        without(restarting.OWED, "WHERE", "WHERE 1 = 0 AND"),
        test_run_repair.test_a_run_that_was_overtaken_is_not_reopened_but_owed,
    ),
    Mutation(
        "what a later run has read is owed",
        without(restarting.LATER_WINDOWS, "WHERE", "WHERE 1 = 0 AND"),
        test_run_repair.test_what_a_later_run_has_read_is_not_owed,
    ),
    Mutation(
        "a forced run owes nothing",
        replacing(repair, "owe", lambda *_: (0, 0)),
        test_run_repair.test_a_failed_partition_withholds_consolidation_until_it_is_forced,
    ),
    Mutation(
        "the jobs of a cancelled run go on",
        replacing(repair, "live_jobs", lambda *_: []),
        test_run_repair.test_a_cancelled_run_leaves_nothing_that_works_for_it,
    ),
    Mutation(
        "a cancel overlooks partitions that it has not locked",
        both(
            replacing(repair, "locked", _locked_without_a_second_look),
            without(restarting.LIVE_JOBS, "p.run_id = :run_id", "p.run_id = :run_id AND p.number < 0"),
        ),
        test_run_repair.test_a_cancel_does_not_overlook_partitions_that_are_just_being_written,
        only_on=("postgresql",),
    ),
    Mutation(
        "a worker that is gone is believed to read",
        without(
            partition_reports.LIST_PARTITIONS,
            " OR (j.state = 'leased' AND COALESCE(j.lease_until, w.alive_until, 0) < {now})",
        ),
        test_run_reports.test_a_partition_that_waits_its_turn_is_not_stuck,
    ),
    # A source in trouble is left alone by everybody, and a run that stopped is noticed.
    Mutation(
        "everybody who meets trouble begins a pause",
        without(pause.PAUSE, "AND (paused_until IS NULL OR paused_until <= {now})"),
        test_breaker.test_many_who_meet_the_same_trouble_count_as_one,
    ),
    Mutation(
        "any good answer ends any pause",
        without(pause.ALL_IS_WELL, "AND troubles = :troubles AND paused_until = :paused_until"),
        test_breaker.test_a_good_answer_does_not_end_a_pause_that_began_after_its_request,
    ),
    Mutation(
        "the first wait that a source asks for is the last word",
        without(pause.LENGTHEN, "paused_until < {now} + :pause", "paused_until < {now} - :pause"),
        test_breaker.test_the_longest_of_several_waits_that_the_source_asks_for_is_kept,
    ),
    Mutation(
        "whoever met the trouble asks first",
        replacing(pause.TroubleMet, "_probe", lambda self, _: self.job_id),
        test_breaker.test_when_the_pause_is_over_one_asks_first_and_not_the_one_who_met_it,
    ),
    Mutation(
        "a pause is for the one who met it",
        replacing(breaker, "paused", lambda *_: timedelta(0)),
        test_breaker.test_who_comes_during_the_pause_does_not_ask,
    ),
    Mutation(
        "every error of a source costs an attempt",
        replacing(breaker, "classify", lambda *_: Trouble(TroubleKind.BUG)),
        test_breaker.test_planning_waits_for_its_source_too,
        or_with=(httpx.HTTPStatusError,),
    ),
    Mutation(
        "a drain does not watch over runs",
        replacing(until_idle.Drain, "_watch_over_runs", lambda _: 0),
        test_vigil.test_a_partition_whose_job_gave_up_fails_and_so_does_its_run,
    ),
    Mutation(
        "a job that lives is taken for lost",
        replacing(mending, "fate_of", lambda *_: mending.Ended(mending.Fate.LOST)),
        test_vigil.test_a_partition_whose_job_lives_is_left_alone,
    ),
    Mutation(
        "shards that vanished are still waited for",
        without(mending.FORGET_SHARDS, "shards = 0", "shards = shards"),
        test_vigil.test_shards_that_vanished_are_followed_by_another_round,
    ),
    Mutation(
        "a run that stalls has moved",
        without(vigil.STALL, "SET ", "SET updated_at = {now}, "),
        test_vigil.test_a_run_that_nothing_has_moved_for_too_long_is_stalled_and_told_once,
    ),
    Mutation(
        "what partitions do is no movement of their run",
        without(vigil.STILL_FOR, "max(p.updated_at)", "min(0)"),
        test_vigil.test_a_run_that_moves_is_not_stalled_however_old_its_row_is,
    ),
    Mutation(
        "what a failed partition has seen is forgotten",
        without(pruning.NEEDED, "p.id = :id AND", "p.id = :id AND 1 = 0 AND"),
        test_vigil.test_what_a_failed_partition_has_seen_is_kept_until_it_cannot_be_read_on,
    ),
    Mutation(
        "runs are forgotten at once",
        without(pruning.OLD_RUN, "< {now} - :age", "< {now} + :age"),
        test_vigil.test_runs_that_are_not_old_are_kept,
    ),
    Mutation(
        "the run that moved the watermark is forgotten",
        without(pruning.OLD_RUN, "f.last_run = r.id", "f.last_run <> f.last_run"),
        test_vigil.test_old_runs_are_forgotten_with_their_ledgers_but_not_the_newest,
    ),
    Mutation(
        "what is seen at every look is raised at every look",
        without(run_alerts.LATELY, "WHERE", "WHERE 1 = 0 AND"),
        test_run_alerts.test_a_cause_that_is_seen_at_every_look_is_raised_once_an_hour,
    ),
    Mutation(
        "a job of a run is told beside its run",
        replacing(deaths, "_without_runs", lambda _, found: found),
        test_run_alerts.test_a_failed_partition_sends_exactly_one_mail_however_often_it_was_tried,
    ),
    # Nothing lies between two windows, and nobody is taken for gone who was not looked for.
    Mutation(
        "a watermark is moved by who read another one",
        without(run_watermark.MOVE, "AND version = :version", ""),
        test_watermark.test_who_decided_about_another_watermark_moves_nothing,
    ),
    Mutation(
        "a watermark goes back",
        replacing(run_watermark, "watermark_after", lambda _, window: window.to),
        test_watermark.test_an_older_run_that_ends_last_does_not_take_the_watermark_back,
    ),
    Mutation(
        "a run jumps over what an operator wanted to be read again",
        replacing(run_watermark, "leaves_a_gap", lambda *_: False),
        test_watermark.test_a_run_that_began_behind_a_watermark_that_was_set_back_does_not_skip_what_lies_between,
    ),
    Mutation(
        "an older document is written over a newer one",
        replacing(files, "_read", lambda _: None),
        test_export.test_an_export_that_is_repeated_late_does_not_bring_an_older_watermark_back,
    ),
    Mutation(
        "a debt is read for ever",
        replacing(run_debts, "TRIES", 100),
        test_debts.test_after_three_tries_somebody_is_told_and_nobody_reads_it_any_more,
    ),
    Mutation(
        "a try is counted although a person has closed the debt",
        without(run_debts.TRIED, "AND state = 'open'", ""),
        test_debts.test_a_try_of_a_debt_that_is_closed_is_not_counted,
    ),
    Mutation(
        "a later debt is one more debt",
        replacing(run_debts, "_absorb", lambda *_: 0),
        test_debts.test_a_later_debt_of_the_same_range_takes_the_place_of_the_one_that_it_covers,
    ),
    Mutation(
        "a debt is left to a run that does not cover it",
        replacing(run_debts, "covers", lambda *_: True),
        test_debts.test_the_next_run_reads_a_debt_in_the_window_in_which_it_was_missed,
        or_with=(ValueError,),
    ),
    Mutation(
        "every run may sweep",
        replacing(sweep_start, "applies", lambda *_: True),
        test_sweep.test_a_run_that_shows_nothing_may_not_sweep_even_if_it_is_asked_to,
        arguments={"changes": {"unverified": 1}},
    ),
    Mutation(
        "what nobody could verify is taken for gone",
        replacing(sweep_start, "open_debts", lambda *_: []),
        test_sweep.test_nobody_is_struck_while_a_debt_is_open_that_the_run_does_not_cover,
    ),
    Mutation(
        "a fuse that never blows",
        replacing(Sweep, "holds", lambda *_: None),
        test_sweep.test_more_than_the_fuse_allows_waits_for_a_person,
    ),
    Mutation(
        "a row that was observed meanwhile is struck",
        without(gone.LOCK_UNSEEN, "AND observed_at < :before", "AND :before > 0"),
        test_sweep.test_a_row_that_is_observed_after_it_was_found_is_not_struck,
    ),
    Mutation(
        "a row is taken for gone by the run that saw it",
        without(gone.WALK, "AND run_id <> :run_id", ""),
        test_sweep.test_what_a_run_has_seen_itself_is_never_struck_whatever_the_clocks_say,
    ),
    Mutation(
        "a run strikes a row twice",
        both(
            without(gone.WALK, "struck_by IS NULL OR struck_by <> :run_id", "1 = 1"),
            both(
                without(gone.UNSEEN, "struck_by IS NULL OR struck_by <> :run_id", "1 = 1"),
                without(gone.LOCK_UNSEEN, "struck_by IS NULL OR struck_by <> :run_id", "1 = 1"),
            ),
        ),
        test_sweep.test_no_run_strikes_a_row_twice_however_often_its_sweep_begins,
    ),
    Mutation(
        "a row that comes back as it was stays marked",
        without(gone.GO, ", applied_hash = NULL", ""),
        test_sweep.test_a_row_that_is_seen_again_is_back,
        arguments={"price": None},
    ),
    Mutation(
        "who was not counted goes with those who were",
        replacing(sweeping, "_counted_anew", lambda it: it.then(unseen=2**60)),
        test_sweep.test_more_rows_than_were_counted_are_counted_again_and_held_again,
    ),
    Mutation(
        "a sweep goes on from where it is not any more",
        without(sweep_state.KEEP, "AND frontier = :was", "AND :was = :was"),
        test_sweep.test_a_step_that_was_overtaken_writes_nothing,
    ),
    Mutation(
        "undoing brings back what others removed",
        both(
            without(gone.REMOVED, "struck_by = :run_id", ":run_id = :run_id"),
            without(gone.LOCK_REMOVED, "struck_by = :run_id", ":run_id = :run_id"),
        ),
        test_sweep.test_everything_that_a_run_marked_as_gone_can_be_brought_back,
    ),
    Mutation(
        "a number that JSON does not know becomes null",
        replacing(observing, "is_finite", lambda _: True),
        test_odd_rows.test_a_row_that_cannot_be_kept_as_it_is_goes_to_quarantine_and_the_others_go_on,
        arguments={"odd": lambda it: it | {"weight": float("nan")}, "reason": "NaN"},
    ),
    Mutation(
        "a row that was altered to be kept is applied",
        replacing(replaying, "NOT_STORABLE", "never"),
        test_odd_rows.test_what_was_altered_to_be_kept_is_never_applied_by_a_replay,
    ),
    Mutation(
        "a row without identity counts each time it is read",
        replacing(reading, "_rejected", lambda _, __, asked: asked.page.rejected),
        test_odd_rows.test_a_row_without_identity_counts_once_however_often_it_is_read,
    ),
]
