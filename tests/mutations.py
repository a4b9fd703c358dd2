"""Ways to break the protocol, each with the test that must notice.

A test that passes whatever the code says is worse than none. So each of these takes one guard out of the engine,
runs one test of the contract, and expects it to fail.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from holdfast import Continue, Done, Snooze
from holdfast.database.connection import Transaction
from holdfast.database.statement import Statement
from holdfast.errors import ContentionError
from holdfast.steps import acknowledge, archive, commit, enqueue, keys, lease, manual, reports, rescue
from holdfast.steps.outcome import Again, Bury, GiveBack
from holdfast.worker import claiming, maintenance
from tests.contract import (
    test_commit,
    test_dead_letters,
    test_enqueue,
    test_keys,
    test_leases,
    test_rescue,
)
from tests.unit import test_claiming

if TYPE_CHECKING:
    import pytest

    from holdfast.database.dialects import Dialect

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
        patch.setitem(
            statement._rendered, dialect.name, Statement(text.replace(part, instead)).render(dialect)
        )

    return break_it


def replacing(owner: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch, Dialect], None]:
    return lambda patch, _: patch.setattr(owner, name, value)


FENCE = "AND fence = :fence"
NEW_FENCE = "fence = :new_fence, "
AGAIN = Again(timedelta(0), "error", "error")
replaced_cannot = test_leases.test_an_owner_that_was_replaced_can_end_nothing

MUTATIONS = [
    # The fence is the guard.
    Mutation(
        "effects run without a look at the fence",
        without(commit.LOCK, FENCE),
        test_leases.test_an_owner_that_was_replaced_leaves_no_effect,
        only_on=("mariadb",),
    ),
    Mutation(
        "anyone finishes",
        without(acknowledge.REMOVE_ONE, FENCE),
        test_leases.test_an_owner_that_was_replaced_leaves_no_effect,
        only_on=("sqlite",),
    ),
    Mutation(
        "anyone moves a job",
        without(acknowledge.MOVE_ONE, FENCE),
        test_leases.test_an_owner_that_was_replaced_leaves_no_effect,
        only_on=("postgresql",),
    ),
    Mutation(
        "a batch is acknowledged without a look at the fences",
        without(acknowledge.LOCK_MANY, FENCE),
        test_commit.test_a_batch_with_some_fences_lost_archives_exactly_the_others,
        {"results": False},
        only_on=("sqlite", "mariadb"),
    ),
    Mutation(
        "a batch is moved without a look at the fences",
        without(acknowledge.MOVE, FENCE),
        test_commit.test_a_batch_with_some_fences_lost_archives_exactly_the_others,
        {"results": False},
        only_on=("postgresql",),
    ),
    Mutation(
        "a batch with results is moved without a look at the fences",
        without(acknowledge.MOVE_WITH_RESULTS, FENCE),
        test_commit.test_a_batch_with_some_fences_lost_archives_exactly_the_others,
        {"results": True},
        only_on=("postgresql",),
    ),
    Mutation("anyone continues", without(commit.CONTINUE, FENCE), replaced_cannot, {"ending": Continue(2)}),
    Mutation(
        "anyone continues here",
        without(commit.CONTINUE_HERE, FENCE),
        test_leases.test_an_owner_that_was_replaced_can_continue_nothing,
        {"stay": True},
    ),
    Mutation("anyone snoozes", without(commit.PUT_BACK, FENCE), replaced_cannot, {"ending": Snooze("1m")}),
    Mutation("anyone fails", without(commit.RETRY, FENCE), replaced_cannot, {"ending": AGAIN}),
    Mutation(
        "anyone buries", without(commit.BLAME, FENCE), replaced_cannot, {"ending": Bury("error", "error")}
    ),
    Mutation(
        "anyone gives back",
        without(commit.GIVE_BACK, FENCE),
        test_leases.test_an_owner_that_was_replaced_can_give_back_nothing,
    ),
    Mutation(
        "anyone reports progress",
        without(reports.PROGRESS, FENCE),
        test_leases.test_an_owner_that_was_replaced_can_report_nothing,
    ),
    Mutation(
        "anyone writes a log",
        without(reports.LOG, FENCE),
        test_leases.test_an_owner_that_was_replaced_can_report_nothing,
    ),
    Mutation(
        "anyone extends a lease by hand",
        without(manual.EXTEND, FENCE),
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
            (commit.CONTINUE, Continue(2)),
            (commit.PUT_BACK, Snooze("1m")),
            (commit.RETRY, AGAIN),
            (commit.GIVE_BACK, GiveBack()),
        )
    ),
    Mutation(
        "a rescued job keeps the fence of the dead",
        without(rescue.SUSPECT, "fence = :fence,"),
        test_leases.test_an_owner_whose_job_was_rescued_but_not_yet_taken_can_commit_nothing,
    ),
    Mutation(
        "a replaced payload keeps its fence",
        without(enqueue.REPLACE, "fence = :fence, "),
        test_keys.test_a_replacement_supersedes_the_one_who_runs_the_old_payload,
    ),
    Mutation(
        "a replaced payload repeats its step's number",
        without(enqueue.REPLACE, "step = step + 1", "step = 0"),
        test_keys.test_a_replacement_is_no_repetition_for_services_outside,
    ),
    Mutation(
        "an id without a job stays remembered",
        without(keys.LET_GO, "id = :id AND", "id = :id AND 1 = 0 AND"),
        test_keys.test_an_id_that_was_refused_in_a_transaction_that_went_on_is_not_remembered,
    ),
    Mutation(
        "a cancelled job forgets which step it committed",
        without(commit.STEP_ON, "step = step + 1", "step = step"),
        test_commit.test_a_cancelled_job_that_is_revived_goes_on_behind_the_step_it_committed,
        {"stay": False},
    ),
    Mutation(
        "a throttled suspect is cleared",
        without(commit.RETRY, ":charge = 0 AND", ":charge = 7 AND"),
        test_commit.test_a_try_that_costs_nothing_leaves_a_suspect_suspect,
    ),
    # A lost COMMIT is decided by the fence it consumed.
    Mutation(
        "a continuation forgets which fence it consumed",
        without(commit.CONTINUE, "committed_fence = :fence, "),
        test_commit.test_a_commit_that_happened_although_nobody_said_so_is_found,
        {"ending": Continue(2)},
    ),
    Mutation(
        "the archive forgets which fence was consumed",
        without(archive.ARCHIVE, "fence, payload, :state", "NULL, payload, :state"),
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
        without(lease.PICK, "{skip_locked}"),
        test_leases.test_two_open_claims_both_get_rows,
        only_on=("mariadb",),
        or_with=(ContentionError,),
    ),
    Mutation(
        "a claim waits for its colleagues",
        without(lease.PICK, "SKIP LOCKED"),
        test_leases.test_two_open_claims_both_get_rows,
        only_on=("postgresql",),
        or_with=(ContentionError,),
    ),
    Mutation(
        "priority does not matter",
        without(lease.PICK, "ORDER BY priority DESC, ready_at, id", "ORDER BY ready_at, id"),
        test_enqueue.test_of_more_jobs_than_are_wanted_the_most_urgent_are_claimed,
    ),
    Mutation(
        "age does not matter",
        without(lease.PICK, "ORDER BY priority DESC, ready_at, id", "ORDER BY priority DESC, id DESC"),
        test_enqueue.test_a_hundred_jobs_are_claimed_in_the_order_of_their_making,
    ),
    Mutation(
        "a paused queue is claimed",
        without(lease.PICK, "paused_at IS NOT NULL", "paused_at IS NULL AND 1 = 0"),
        test_enqueue.test_a_paused_queue_gives_nothing,
    ),
    # Crashes convict only the guilty, and only the dead.
    Mutation(
        "everybody on board is charged",
        without(
            rescue.DECLARE_DEAD,
            "(SELECT count(*) FROM holdfast_job WHERE owner = :incarnation AND state = 'leased')",
            "1",
        ),
        test_rescue.test_of_many_on_board_none_is_charged_and_all_are_suspects,
    ),
    Mutation(
        "nobody is ever charged",
        without(
            rescue.DECLARE_DEAD,
            "(SELECT count(*) FROM holdfast_job WHERE owner = :incarnation AND state = 'leased')",
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
        without(commit.GIVE_BACK, "THEN 'suspect'", "THEN 'ready'"),
        test_rescue.test_a_suspect_that_is_given_back_is_still_a_suspect,
    ),
    # Keys are remembered; chains give way; letters are kept.
    Mutation(
        "a remembered key is given away",
        without(keys.TAKE_OVER, "AND until_at <= {now}"),
        test_keys.test_a_duplicate_after_the_end_is_not_run_again,
        {"request_again": test_keys.by_period},
    ),
    Mutation(
        "an id is forgotten with its job",
        replacing(enqueue, "remember", lambda _tx, _scope, _key, job_id, _keep: job_id),
        test_keys.test_a_duplicate_after_its_job_was_pruned_is_not_run_again,
        {"request_again": test_keys.by_id},
    ),
    Mutation(
        "a chain ignores that its queue is paused",
        without(commit.MORE_URGENT, "paused_at IS NOT NULL", "1 = 0"),
        test_commit.test_a_continuation_does_not_stay_in_the_way,
        {"reason": test_commit.paused},
    ),
    Mutation(
        "a chain ignores more urgent work",
        without(commit.MORE_URGENT, "priority > :priority", "priority > :priority + 1"),
        test_commit.test_a_continuation_does_not_stay_in_the_way,
        {"reason": test_commit.more_urgent},
    ),
    Mutation(
        "a cancelled job lives on",
        without(commit.RETRY, "AND cancel_at IS NULL"),
        test_commit.test_a_job_that_was_asked_to_stop_does_not_live_on,
        {"ending": AGAIN, "stay": False},
    ),
    Mutation(
        "dead letters are pruned",
        without(maintenance.OLD, "state = :state", "(state = :state OR state = 'dead')"),
        test_dead_letters.test_dead_letters_are_kept_whatever_their_age,
    ),
    # The hint is never trusted for long.
    Mutation(
        "the whole queue is never asked again",
        replacing(claiming, "UNHINTED_EVERY", 1e9),
        test_claiming.test_the_whole_queue_is_asked_once_a_second_in_any_case,
        only_on=("sqlite",),
    ),
]
