"""Guards of calls that meet a job with their key: debounce, merge, replace, successors; each taken away once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.errors import ContentionError
from stepfast.jobs import debounce, enqueue, keys
from tests.contract.jobs import test_debounce, test_replace
from tests.mutations.mutation import SERVERS, Mutation, replacing, without

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.jobs.state import NewJob


def _held_by_a_new_job(tx: Transaction, job: NewJob, key: str) -> debounce.KeyHolder | None:
    holder = debounce._look_at_holder(tx, job.kind, key)
    if holder is not None and holder.has_begun:
        return holder
    if holder is None:
        enqueue.insert_job(tx, job)
    return debounce._lock_holder(tx, job.kind, key)


MUTATIONS = [
    Mutation(
        "a new job overtakes a successor",
        replacing("stepfast.jobs.debounce:_holder_or_new", _held_by_a_new_job),
        test_debounce.test_what_is_asked_last_is_done_last,
    ),
    Mutation(
        "a call that does not merge overtakes a successor whose turn has come",
        replacing("stepfast.jobs.enqueue:first_in_line", lambda _, job, *__: job.id),
        test_debounce.test_a_call_that_skips_or_refuses_finds_the_successor_whose_turn_has_come,
    ),
    Mutation(
        "a batch that does not merge overtakes a successor whose turn has come",
        replacing("stepfast.jobs.enqueue:keys_with_successor", lambda *_: set()),
        test_debounce.test_a_call_that_skips_or_refuses_finds_the_successor_whose_turn_has_come,
    ),
    Mutation(
        "a successor undoes what replaced it before its turn",
        replacing("stepfast.jobs.keys:drop_successor", lambda *_: None),
        test_debounce.test_a_replacement_before_the_successors_turn_is_the_last_that_is_done,
    ),
    Mutation(
        "a successor undoes what replaced the job that it waited for",
        replacing("stepfast.jobs.enqueue:drop_successor", lambda *_: None),
        test_debounce.test_a_replacement_of_a_job_that_runs_replaces_what_waits_behind_it,
    ),
    Mutation(
        "the answer of a replaced step is taken for that of the new one",
        replacing("stepfast.worker.committer:each_job_once", lambda batch: (batch, [])),
        test_replace.test_the_old_answer_is_not_taken_for_the_new_one,
    ),
    Mutation(
        "a call joins the job that runs",
        replacing("stepfast.jobs.debounce:KeyHolder.has_begun", property(lambda _: False)),
        test_debounce.test_a_job_that_runs_gets_one_successor_which_takes_in_all_further_calls,
        or_with=(ContentionError,),
    ),
    Mutation(
        "a call joins a job in the middle of its steps",
        replacing("stepfast.jobs.debounce:KeyHolder.has_begun", property(lambda it: it.state == "leased")),
        test_debounce.test_a_job_in_the_middle_of_its_steps_has_begun,
        or_with=(ContentionError,),
    ),
    Mutation(
        "a merged payload repeats the number of a step that was tried",
        without("stepfast.jobs.debounce:MERGE_CALL", "ELSE step + 1", "ELSE step"),
        test_debounce.test_a_call_that_joins_a_job_between_its_tries_is_another_step_for_services_outside,
    ),
    Mutation(
        "a debounced call brings the next try forward",
        without("stepfast.jobs.debounce:POSTPONE_HOLDER", "AND leased_at IS NULL"),
        test_debounce.test_a_debounced_call_does_not_bring_the_next_try_forward,
    ),
    Mutation(
        "a debounced job waits for ever",
        without(
            "stepfast.jobs.debounce:POSTPONE_HOLDER", "ELSE created_at + :at_most", "ELSE {now} + :quiet"
        ),
        test_debounce.test_a_debounced_job_waits_at_most_so_long_after_the_first_call,
    ),
    Mutation(
        "a successor keeps its waiting key",
        without("stepfast.jobs.debounce:PROMOTE_SUCCESSOR", "unique_key = :key, "),
        test_debounce.test_the_successor_holds_the_key_when_its_turn_has_come,
    ),
    Mutation(
        "a cancelled successor is revived beside the holder of its key",
        without("stepfast.jobs.dead_letters:REVIVE_JOBS", keys.OWN_KEY, "unique_key"),
        test_debounce.test_a_successor_that_was_cancelled_is_revived_under_the_key_itself,
    ),
    Mutation(
        "a running job is locked by whoever follows it",
        replacing("stepfast.jobs.debounce:_look_at_holder", debounce._lock_holder),
        test_debounce.test_a_job_that_runs_can_end_while_a_transaction_that_follows_it_is_open,
        only_on=SERVERS,
        or_with=(ContentionError,),
    ),
    Mutation(
        "a window is counted from now",
        without("stepfast.jobs.keys:REMEMBER_KEY", "- {now} % :window "),
        test_debounce.test_a_key_is_remembered_until_its_window_is_over,
    ),
]
