"""Guards of the leased step, each taken away once: fences, claims, commits, crashes, keys, dead letters."""

from __future__ import annotations

from datetime import timedelta

from stepfast import Continue, Done, Snooze
from stepfast.errors import ContentionError, DatabaseError
from stepfast.jobs.outcome import Again, Bury, GiveBack
from tests.contract.jobs import (
    test_commit,
    test_dead_letters,
    test_enqueue,
    test_keys,
    test_leases,
    test_rescue,
)
from tests.mutations.mutation import Mutation, replacing, without

FENCE = "AND fence = :fence"
NEW_FENCE = "fence = :new_fence, "
AGAIN = Again(timedelta(0), "error", "error")
replaced_cannot = test_leases.test_an_owner_that_was_replaced_can_end_nothing

MUTATIONS = [
    # The fence is the guard.
    Mutation(
        "effects run without a look at the fence",
        without("stepfast.jobs.commit:LOCK_LEASED_JOB", FENCE),
        test_leases.test_an_owner_that_was_replaced_leaves_no_effect,
        only_on=("mariadb",),
    ),
    Mutation(
        "anyone finishes",
        without("stepfast.jobs.commit:REMOVE_DONE_JOB", FENCE),
        test_leases.test_an_owner_that_was_replaced_leaves_no_effect,
        only_on=("sqlite",),
    ),
    Mutation(
        "anyone moves a job",
        without("stepfast.jobs.commit:MOVE_DONE_JOB", FENCE),
        test_leases.test_an_owner_that_was_replaced_leaves_no_effect,
        only_on=("postgresql",),
    ),
    Mutation(
        "a batch is acknowledged without a look at the fences",
        without("stepfast.jobs.commit:LOCK_LEASED_JOBS", FENCE),
        test_commit.test_a_batch_with_some_fences_lost_archives_exactly_the_others,
        {"results": False},
        only_on=("sqlite", "mariadb"),
    ),
    Mutation(
        "a batch is moved without a look at the fences",
        without("stepfast.jobs.commit:MOVE_DONE_JOBS", FENCE),
        test_commit.test_a_batch_with_some_fences_lost_archives_exactly_the_others,
        {"results": False},
        only_on=("postgresql",),
    ),
    Mutation(
        "a batch with results is moved without a look at the fences",
        without("stepfast.jobs.commit:MOVE_DONE_JOBS_WITH_RESULTS", FENCE),
        test_commit.test_a_batch_with_some_fences_lost_archives_exactly_the_others,
        {"results": True},
        only_on=("postgresql",),
    ),
    Mutation(
        "anyone continues",
        without("stepfast.jobs.commit:CONTINUE_JOB", FENCE),
        replaced_cannot,
        {"ending": Continue(2)},
    ),
    Mutation(
        "anyone continues here",
        without("stepfast.jobs.commit:CONTINUE_JOB_HERE", FENCE),
        test_leases.test_an_owner_that_was_replaced_can_continue_nothing,
        {"stay": True},
    ),
    Mutation(
        "anyone snoozes",
        without("stepfast.jobs.commit:SNOOZE_JOB", FENCE),
        replaced_cannot,
        {"ending": Snooze("1m")},
    ),
    Mutation(
        "anyone fails", without("stepfast.jobs.commit:RETRY_JOB", FENCE), replaced_cannot, {"ending": AGAIN}
    ),
    Mutation(
        "anyone buries",
        without("stepfast.jobs.commit:RECORD_FAILURE", FENCE),
        replaced_cannot,
        {"ending": Bury("error", "error")},
    ),
    Mutation(
        "anyone gives back",
        without("stepfast.jobs.commit:GIVE_BACK_JOBS", FENCE),
        test_leases.test_an_owner_that_was_replaced_can_give_back_nothing,
    ),
    Mutation(
        "anyone reports progress",
        without("stepfast.jobs.step:WRITE_PROGRESS", FENCE),
        test_leases.test_an_owner_that_was_replaced_can_report_nothing,
    ),
    Mutation(
        "anyone writes a log",
        without("stepfast.jobs.step:WRITE_LOG", FENCE),
        test_leases.test_an_owner_that_was_replaced_can_report_nothing,
    ),
    Mutation(
        "anyone extends a lease by hand",
        without("stepfast.jobs.manual_lease:EXTEND_LEASE", FENCE),
        test_leases.test_a_zombie_can_extend_nothing,
    ),
    # Every ending that leaves the job alive consumes the fence.
    *(
        Mutation(
            f"a step ends twice: {type(first).__name__}",
            without(f"stepfast.jobs.commit:{statement}", NEW_FENCE),
            test_leases.test_a_step_ends_once,
            {"first": first, "second": Done()},
        )
        for statement, first in (
            ("CONTINUE_JOB", Continue(2)),
            ("SNOOZE_JOB", Snooze("1m")),
            ("RETRY_JOB", AGAIN),
            ("GIVE_BACK_JOBS", GiveBack()),
        )
    ),
    Mutation(
        "a job whose step had not started keeps the fence of the dead",
        without("stepfast.jobs.rescue:TAKE_BACK_UNSTARTED", "fence = :fence,"),
        test_rescue.test_a_worker_that_its_guardian_declared_dead_can_commit_nothing,
    ),
    Mutation(
        "a suspect whose step had not started runs among others",
        without("stepfast.jobs.rescue:TAKE_BACK_UNSTARTED", "THEN 'suspect'", "THEN 'ready'"),
        test_rescue.test_a_suspect_whose_step_had_not_started_stays_a_suspect,
    ),
    Mutation(
        "suspects run beside others again and again",
        replacing("stepfast.jobs.rescue:Death.runs_alone", lambda *_: False),
        test_rescue.test_suspects_that_were_together_when_their_process_died_run_alone_from_then_on,
    ),
    Mutation(
        "suspects that run alone are claimed with the others",
        without("stepfast.jobs.lease:PICK_SUSPECTS", "AND alone >= :least_alone AND alone <= :most_alone"),
        test_rescue.test_suspects_that_run_alone_are_claimed_apart_from_the_others,
    ),
    Mutation(
        "a rescued job keeps the fence of the dead",
        without("stepfast.jobs.rescue:TAKE_BACK_JOBS", "fence = :fence,"),
        test_leases.test_an_owner_whose_job_was_rescued_but_not_yet_taken_can_commit_nothing,
    ),
    Mutation(
        "a replaced payload keeps its fence",
        without("stepfast.jobs.enqueue:REPLACE_JOB", "fence = :fence, "),
        test_keys.test_a_replacement_supersedes_the_one_who_runs_the_old_payload,
    ),
    Mutation(
        "a replaced payload repeats its step's number",
        without("stepfast.jobs.enqueue:REPLACE_JOB", "step = step + 1", "step = 0"),
        test_keys.test_a_replacement_is_no_repetition_for_services_outside,
    ),
    Mutation(
        "an id without a job stays remembered",
        without("stepfast.jobs.keys:RELEASE_KEY", "id = :id AND", "id = :id AND 1 = 0 AND"),
        test_keys.test_an_id_that_was_refused_in_a_transaction_that_went_on_is_not_remembered,
    ),
    Mutation(
        "a cancelled job forgets which step it committed",
        without("stepfast.jobs.commit:ADVANCE_CANCELLED_JOB", "step = step + 1", "step = step"),
        test_commit.test_a_cancelled_job_that_is_revived_goes_on_behind_the_step_it_committed,
        {"stay": False},
    ),
    Mutation(
        "a throttled suspect is cleared",
        without("stepfast.jobs.commit:RETRY_JOB", ":charge = 0 AND", ":charge = 7 AND"),
        test_commit.test_a_try_that_costs_nothing_leaves_a_suspect_suspect,
    ),
    # A lost COMMIT is decided by the fence it consumed.
    Mutation(
        "a continuation forgets which fence it consumed",
        without("stepfast.jobs.commit:CONTINUE_JOB", "committed_fence = :fence, "),
        test_commit.test_a_commit_that_happened_although_nobody_said_so_is_found,
        {"ending": Continue(2)},
    ),
    Mutation(
        "the archive forgets which fence was consumed",
        without("stepfast.jobs.archive:ARCHIVE_JOBS", "fence, payload, :state", "NULL, payload, :state"),
        test_commit.test_a_commit_that_happened_although_nobody_said_so_is_found,
        {"ending": Bury("error", "error")},
    ),
    # What was swallowed cannot be committed.
    Mutation(
        "a poisoned transaction goes on",
        replacing("stepfast.database.connection:Transaction._guard", lambda _: None),
        test_commit.test_a_swallowed_constraint_error_cannot_be_committed,
        only_on=("sqlite", "mariadb"),  # PostgreSQL itself refuses to go on
    ),
    Mutation(
        "a transaction that was ended goes on",
        replacing("stepfast.database.connection:Transaction._require_open", lambda _: None),
        test_commit.test_a_commit_by_ddl_that_slipped_through_stops_everything_after_it,
        only_on=("mariadb",),
    ),
    # One owner at a time, in order.
    Mutation(
        "a claim locks nothing",
        without("stepfast.jobs.lease:PICK_JOBS", "{skip_locked}"),
        test_leases.test_two_open_claims_both_get_rows,
        only_on=("mariadb",),
        or_with=(ContentionError,),
    ),
    Mutation(
        "a claim waits for its colleagues",
        without("stepfast.jobs.lease:PICK_JOBS", "SKIP LOCKED"),
        test_leases.test_two_open_claims_both_get_rows,
        only_on=("postgresql",),
        or_with=(ContentionError,),
    ),
    Mutation(
        "priority does not matter",
        without(
            "stepfast.jobs.lease:PICK_JOBS", "ORDER BY priority DESC, ready_at, id", "ORDER BY ready_at, id"
        ),
        test_enqueue.test_of_more_jobs_than_are_wanted_the_most_urgent_are_claimed,
    ),
    Mutation(
        "age does not matter",
        without(
            "stepfast.jobs.lease:PICK_JOBS",
            "ORDER BY priority DESC, ready_at, id",
            "ORDER BY priority DESC, id DESC",
        ),
        test_enqueue.test_a_hundred_jobs_are_claimed_in_the_order_of_their_making,
    ),
    Mutation(
        "a paused queue is claimed",
        without("stepfast.jobs.lease:PICK_JOBS", "paused_at IS NOT NULL", "paused_at IS NULL AND 1 = 0"),
        test_enqueue.test_a_paused_queue_gives_nothing,
    ),
    Mutation(
        "a payload of bytes stops every claim of its queue",
        without("stepfast.jobs.lease:PICK_JOBS", "CAST(payload AS TEXT)", "payload"),
        test_leases.test_a_claim_takes_what_loose_columns_let_in,
        only_on=("sqlite",),
        or_with=(DatabaseError,),
    ),
    # Crashes convict only the guilty, and only the dead.
    Mutation(
        "everybody on board is charged",
        without(
            "stepfast.jobs.rescue:DECLARE_DEAD",
            "(SELECT count(*) FROM stepfast_job WHERE owner = :incarnation AND state = 'leased')",
            "1",
        ),
        test_rescue.test_of_many_on_board_none_is_charged_and_all_are_suspects,
    ),
    Mutation(
        "nobody is ever charged",
        without(
            "stepfast.jobs.rescue:DECLARE_DEAD",
            "(SELECT count(*) FROM stepfast_job WHERE owner = :incarnation AND state = 'leased')",
            "2",
        ),
        test_rescue.test_a_job_that_kills_three_workers_is_a_dead_letter_with_that_reason,
    ),
    Mutation(
        "a process that renewed is declared dead",
        without("stepfast.jobs.rescue:DECLARE_DEAD", "AND (alive_until < {now} OR :proven = 1)"),
        test_rescue.test_a_process_that_renews_at_the_last_moment_stays_alive,
    ),
    Mutation(
        "a suspect that is given back goes among the others",
        without("stepfast.jobs.commit:GIVE_BACK_JOBS", "THEN 'suspect'", "THEN 'ready'"),
        test_rescue.test_a_suspect_that_is_given_back_is_still_a_suspect,
    ),
    Mutation(
        "a suspect that is snoozed for no time goes among the others",
        without("stepfast.jobs.commit:SNOOZE_JOB", "THEN 'suspect'", "THEN 'ready'"),
        test_commit.test_a_suspect_that_may_run_again_at_once_is_still_a_suspect,
        {"ending": Snooze(0)},
    ),
    Mutation(
        "a suspect that failed by itself runs alone for ever",
        without("stepfast.jobs.commit:RETRY_JOB", "WHEN :charge > 0 OR :crash > 0 THEN 'ready' "),
        test_commit.test_a_suspect_that_failed_by_itself_is_an_ordinary_job,
    ),
    # Keys are remembered; chains give way; letters are kept.
    Mutation(
        "a remembered key is given away",
        without("stepfast.jobs.keys:TAKE_OVER_KEY", "AND until_at <= {now}"),
        test_keys.test_a_duplicate_after_the_end_is_not_run_again,
        {"request_again": test_keys.by_period},
    ),
    Mutation(
        "an id is forgotten with its job",
        replacing("stepfast.jobs.enqueue:remember_key", lambda _tx, _scope, _key, job_id, _keep, **_: job_id),
        test_keys.test_a_duplicate_after_its_job_was_pruned_is_not_run_again,
        {"request_again": test_keys.by_id},
    ),
    Mutation(
        "a key is looked for among all kinds",
        without("stepfast.jobs.enqueue:KEY_HOLDERS", "AND kind = :kind"),
        test_keys.test_many_jobs_of_two_kinds_may_have_the_same_keys,
    ),
    Mutation(
        "a successor waits for the key of another kind",
        without("stepfast.jobs.debounce:FREE_SUCCESSORS", "AND h.kind = s.kind"),
        test_keys.test_a_successor_takes_the_key_of_its_own_kind_only,
    ),
    Mutation(
        "the kind of a forgotten job is forgotten with it",
        replacing("stepfast.jobs.enqueue:remembered_kind", lambda *_: None),
        test_keys.test_the_id_of_another_kinds_job_is_refused_with_that_kind,
        {"since": "pruned"},
    ),
    Mutation(
        "a chain ignores that its queue is paused",
        without("stepfast.jobs.commit:MORE_URGENT_WORK", "paused_at IS NOT NULL", "1 = 0"),
        test_commit.test_a_continuation_does_not_stay_in_the_way,
        {"reason": test_commit.paused},
    ),
    Mutation(
        "a chain ignores more urgent work",
        without("stepfast.jobs.commit:MORE_URGENT_WORK", "priority > :priority", "priority > :priority + 1"),
        test_commit.test_a_continuation_does_not_stay_in_the_way,
        {"reason": test_commit.more_urgent},
    ),
    Mutation(
        "a cancelled job lives on",
        without("stepfast.jobs.commit:RETRY_JOB", "AND cancel_at IS NULL"),
        test_commit.test_a_job_that_was_asked_to_stop_does_not_live_on,
        {"ending": AGAIN, "stay": False},
    ),
    Mutation(
        "dead letters are pruned",
        without(
            "stepfast.worker.maintenance:OLD_JOBS", "state = :state", "(state = :state OR state = 'dead')"
        ),
        test_dead_letters.test_dead_letters_are_kept_whatever_their_age,
    ),
]
