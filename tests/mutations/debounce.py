"""Ways to break how calls join a job, and what a lent connection keeps, each with the test that must notice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.database import lending as borrowed
from stepfast.database import lending as lendable
from stepfast.errors import ContentionError, DatabaseError
from stepfast.jobs import dead_letters, enqueue, keys
from stepfast.jobs import debounce as joining
from stepfast.jobs import keys as duplicates
from stepfast.worker import committer as settlement
from tests.contract.database import test_async_connections, test_lent_connections
from tests.contract.jobs import test_debounce as test_joining
from tests.contract.jobs import test_replace as test_replacing
from tests.mutations.jobs import SERVERS, Mutation, replacing, without

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.jobs.state import NewJob


def _met_by_a_new_job(tx: Transaction, job: NewJob, key: str) -> joining.KeyHolder | None:
    holder = joining._look(tx, key)
    if holder is not None and holder.has_begun:
        return holder
    if holder is None:
        enqueue.insert_job(tx, job)
    return joining._locked(tx, key)


MUTATIONS = [
    Mutation(
        "a new job overtakes a successor",
        replacing(joining, "_met", _met_by_a_new_job),
        test_joining.test_what_is_asked_last_is_done_last,
    ),
    Mutation(
        "a call that does not merge overtakes a successor whose turn has come",
        replacing(enqueue, "first_in_line", lambda _, job_id, *__: job_id),
        test_joining.test_a_call_that_skips_or_refuses_finds_the_successor_whose_turn_has_come,
    ),
    Mutation(
        "a batch that does not merge overtakes a successor whose turn has come",
        replacing(enqueue, "keys_with_successor", lambda *_: set()),
        test_joining.test_a_call_that_skips_or_refuses_finds_the_successor_whose_turn_has_come,
    ),
    Mutation(
        "a successor undoes what replaced it before its turn",
        replacing(duplicates, "drop_successor", lambda *_: None),
        test_joining.test_a_replacement_before_the_successors_turn_is_the_last_that_is_done,
    ),
    Mutation(
        "a successor undoes what replaced the job that it waited for",
        replacing(enqueue, "drop_successor", lambda *_: None),
        test_joining.test_a_replacement_of_a_job_that_runs_replaces_what_waits_behind_it,
    ),
    Mutation(
        "the answer of a replaced step is taken for that of the new one",
        replacing(settlement, "each_job_once", lambda batch: (batch, [])),
        test_replacing.test_the_old_answer_is_not_taken_for_the_new_one,
    ),
    Mutation(
        "a call joins the job that runs",
        replacing(joining.KeyHolder, "has_begun", property(lambda _: False)),
        test_joining.test_a_job_that_runs_gets_one_successor_which_takes_in_all_further_calls,
        or_with=(ContentionError,),
    ),
    Mutation(
        "a call joins a job in the middle of its steps",
        replacing(joining.KeyHolder, "has_begun", property(lambda it: it.state == "leased")),
        test_joining.test_a_job_in_the_middle_of_its_steps_has_begun,
        or_with=(ContentionError,),
    ),
    Mutation(
        "a merged payload repeats the number of a step that was tried",
        without(joining.MERGE_CALL, "ELSE step + 1", "ELSE step"),
        test_joining.test_a_call_that_joins_a_job_between_its_tries_is_another_step_for_services_outside,
    ),
    Mutation(
        "a debounced call brings the next try forward",
        without(joining.POSTPONE_HOLDER, "AND leased_at IS NULL"),
        test_joining.test_a_debounced_call_does_not_bring_the_next_try_forward,
    ),
    Mutation(
        "a debounced job waits for ever",
        without(joining.POSTPONE_HOLDER, "ELSE created_at + :at_most", "ELSE {now} + :quiet"),
        test_joining.test_a_debounced_job_waits_at_most_so_long_after_the_first_call,
    ),
    Mutation(
        "a successor keeps its waiting key",
        without(joining.PROMOTE_SUCCESSOR, "unique_key = :key, "),
        test_joining.test_the_successor_holds_the_key_when_its_turn_has_come,
    ),
    Mutation(
        "a cancelled successor is revived beside the holder of its key",
        without(dead_letters.REVIVE_JOBS, keys.OWN_KEY, "unique_key"),
        test_joining.test_a_successor_that_was_cancelled_is_revived_under_the_key_itself,
    ),
    Mutation(
        "a running job is locked by whoever follows it",
        replacing(joining, "_look", joining._locked),
        test_joining.test_a_job_that_runs_can_end_while_a_transaction_that_follows_it_is_open,
        only_on=SERVERS,
        or_with=(ContentionError,),
    ),
    Mutation(
        "a window is counted from now",
        without(keys.REMEMBER_KEY, "- {now} % :window "),
        test_joining.test_a_key_is_remembered_until_its_window_is_over,
    ),
    Mutation(
        "a lent transaction asks the past who holds its key",
        without(enqueue.KEY_HOLDERS_NOW, "{for_update}"),
        test_lent_connections.test_a_lent_transaction_that_looks_at_the_past_finds_who_holds_its_key,
        {"options": {"key": "k"}},
        only_on=("mariadb",),
        or_with=(ContentionError,),
    ),
    Mutation(
        "an enqueue that fails half way leaves its first half",
        replacing(borrowed, "_mark", lambda _: None),
        test_lent_connections.test_an_enqueue_that_fails_half_way_leaves_a_lent_transaction_as_it_was,
        only_on=("mariadb",),
    ),
    Mutation(
        "a database is as good as another",
        replacing(borrowed, "require_same_database", lambda *_: None),
        test_async_connections.test_connections_of_aiosqlite_that_cannot_keep_the_promise_are_refused,
        only_on=("sqlite",),
        or_with=(DatabaseError,),
    ),
    Mutation(
        "a pipeline is lent",
        lambda patch, _: patch.setitem(lendable.CHECKS, "psycopg", lambda _: None),
        test_lent_connections.test_a_pipeline_of_psycopg_is_refused_in_words,
        only_on=("postgresql",),
        or_with=(DatabaseError,),
    ),
    Mutation(
        "servers are taken for one if their databases have the same name",
        replacing(lendable, "_installation", lambda *_: "the same"),
        test_lent_connections.test_a_database_of_the_same_name_on_another_server_is_refused_in_words,
        only_on=SERVERS,
    ),
    Mutation(
        "a look at the installation fixes the moment that a lender sees",
        without(lendable.THEIR_INSTALLATION, "LOCK IN SHARE MODE"),
        test_lent_connections.test_an_enqueue_does_not_fix_the_moment_that_a_lent_transaction_sees,
        only_on=("mariadb",),
    ),
]
