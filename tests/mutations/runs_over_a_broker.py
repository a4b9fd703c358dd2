"""Guards of runs whose messages go over a broker, each taken away once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from stepfast.database.statement import sql
from stepfast.errors import DatabaseError
from stepfast.outbox.broker import AT_ONCE
from stepfast.runs import messages
from stepfast.runs.partitioning.ranges import Range
from stepfast.transports import dead_messages
from stepfast.worker.relay import Attempt
from tests.contract.outbox import test_broker_relay
from tests.contract.runs import (
    test_known_work,
    test_message_dead_letters,
    test_message_fields,
    test_messages,
    test_runs_over_a_broker,
)
from tests.mutations.mutation import Mutation, both, replacing, without

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.outbox.destinations import DueMessage
    from stepfast.worker.broker_listener import HintListener
    from stepfast.worker.relay import BrokerSender


def _nothing(*_: Any, **__: Any) -> None:
    """Announce nothing."""


def _at_once(self: HintListener, heard: Any, why: str) -> None:
    del why
    self._end(heard.delivery, self._transport.complete(heard.delivery))


async def _acknowledge_all(self: HintListener, heard: Any) -> None:
    for it in heard:
        self._end(it.delivery, self._transport.complete(it.delivery))


def _all_or_nothing(self: BrokerSender, batch: Sequence[DueMessage]) -> Attempt:
    failed = self._send(batch)
    return Attempt(len(batch)) if failed is None else Attempt(0, failed, self._judge(batch[0], failed))


_WORK_ITEM = messages.work_item
_OF_PARTITION = messages._of_partition


def _without_seq(*given: Any) -> Any:
    message = _WORK_ITEM(*given)
    headers = dict(message.headers or {})
    return replace(message, headers=headers | {"message-id": headers["message-id"].rpartition(".")[0]})


MUTATIONS = [
    Mutation(
        "partitions are fanned out and nobody is told",
        replacing("stepfast.runs.plan:announce_pages", _nothing),
        test_messages.test_a_plan_stages_one_message_for_each_partition,
        or_with=(ValueError,),
    ),
    Mutation(
        "the next page is not announced",
        replacing("stepfast.runs.page:announce_pages", _nothing),
        test_messages.test_the_next_page_is_staged_with_the_page_before_it_or_not_at_all,
    ),
    Mutation(
        "a retry is not announced",
        replacing("stepfast.runs.repair:announce_pages", _nothing),
        test_messages.test_a_retry_is_announced_under_a_new_epoch,
    ),
    Mutation(
        "a consolidation is not announced",
        replacing("stepfast.runs.lifecycle:announce_consolidation", _nothing),
        test_messages.test_consolidation_is_announced_once,
        or_with=(ValueError,),
    ),
    Mutation(
        "those who were told take what a paused queue holds",
        without(
            "stepfast.jobs.lease:PICK_NAMED",
            "AND queue NOT IN (SELECT id FROM stepfast_queue WHERE paused_at IS NOT NULL)",
        ),
        test_messages.test_a_paused_queue_gives_nothing_to_those_who_were_told,
    ),
    Mutation(
        "a message takes what somebody holds",
        without("stepfast.jobs.lease:PICK_NAMED", "AND state = 'ready'"),
        test_messages.test_a_message_that_comes_again_takes_nothing,
    ),
    Mutation(
        "a told job that is given back waits for a message that never comes",
        without(
            "stepfast.jobs.lease:TAKE_NAMED",
            ",\n           ready_at = CASE WHEN ready_at > {now} THEN {now} ELSE ready_at END",
        ),
        test_messages.test_a_told_job_that_is_given_back_may_be_taken_by_anybody,
    ),
    Mutation(
        "a message about a page that was left behind is taken for the next",
        replacing("stepfast.runs.messages:_of_partition", lambda _, place: messages.NamedJob(place[1])),
        test_messages.test_a_message_that_comes_again_takes_nothing,
    ),
    Mutation(
        "a message is acknowledged although the database did not answer",
        replacing("stepfast.worker.broker_listener:HintListener._ask", _acknowledge_all),
        test_message_dead_letters.test_nothing_is_acknowledged_while_the_database_does_not_answer,
        only_on=("sqlite",),
    ),
    Mutation(
        "a message about a run that nobody knows is acknowledged",
        replacing("stepfast.worker.broker_listener:HintListener._wait_or_refuse", _at_once),
        test_message_dead_letters.test_a_message_that_names_an_unknown_run_is_held_for_a_while_and_then_put_aside,
        only_on=("sqlite",),
    ),
    Mutation(
        "our own late message forces a run",
        replacing(
            "stepfast.runs.messages:_of_run",
            lambda hint, run: messages.ForceRequest(run[0]) if hint.force else messages.StaleHint(""),
        ),
        test_runs_over_a_broker.test_our_own_message_of_a_forced_run_forces_nothing_when_it_comes_late,
        only_on=("sqlite",),
    ),
    Mutation(
        "a letter that comes twice is two",
        replacing(
            "stepfast.transports.dead_messages:KEEP_DEAD_MESSAGE",
            sql(dead_messages.KEEP_DEAD_MESSAGE.text.replace(":source,", ":id,")),
        ),
        test_message_dead_letters.test_a_letter_that_is_taken_over_twice_is_one,
        or_with=(ValueError,),
    ),
    Mutation(
        "half a character is stored as it is",
        replacing("stepfast.transports.dead_messages:storable", str),
        test_message_dead_letters.test_half_a_character_is_spelled_out_wherever_it_stands,
        or_with=(UnicodeError, DatabaseError),
    ),
    Mutation(
        "a letter about work that the database knows fills our list",
        replacing("stepfast.worker.broker_listener:_unknown", lambda _, letters, __: letters),
        test_message_dead_letters.test_a_letter_about_work_that_the_database_knows_is_only_removed,
    ),
    Mutation(
        "a retry has the id that the broker swallows",
        replacing("stepfast.admin.dead_letters:retried_id", lambda message_id: message_id),
        test_message_dead_letters.test_a_retry_sends_it_again_under_a_new_id,
    ),
    Mutation(
        "one message that is refused holds up the others",
        replacing("stepfast.worker.relay:BrokerSender.send", _all_or_nothing),
        test_runs_over_a_broker.test_a_message_that_is_refused_does_not_hold_up_the_others,
        only_on=("sqlite",),
        or_with=(ValueError,),
    ),
    Mutation(
        "a courier that was replaced records what it sent",
        replacing("stepfast.outbox.destinations:_hold", _nothing),
        test_broker_relay.test_a_courier_that_was_replaced_records_nothing,
        {"hints": False},
    ),
    Mutation(
        "a courier that was replaced forgets what it sent",
        replacing("stepfast.outbox.destinations:_hold", _nothing),
        test_broker_relay.test_a_courier_that_was_replaced_records_nothing,
        {"hints": True},
    ),
    Mutation(
        "a hint for each page is kept for a week",
        replacing("stepfast.outbox.destinations:DueMessage.is_hint", property(lambda _: False)),
        test_broker_relay.test_hints_about_jobs_are_forgotten_when_they_are_sent_and_other_messages_are_kept,
    ),
    Mutation(
        "whatever is sent to a broker is forgotten",
        both(
            replacing("stepfast.outbox.destinations:DueMessage.is_hint", property(lambda _: True)),
            without("stepfast.outbox.destinations:FORGET_HINTS", " AND job_id IS NOT NULL"),
        ),
        test_broker_relay.test_hints_about_jobs_are_forgotten_when_they_are_sent_and_other_messages_are_kept,
    ),
    Mutation(
        "a queue with little room is tried with a hundred again and again",
        replacing("stepfast.outbox.broker:Brokers.at_once", lambda *_: AT_ONCE),
        test_broker_relay.test_after_a_failure_fewer_are_tried_and_then_more_again,
        only_on=("sqlite",),
    ),
    Mutation(
        "two requests at the same row have one message id",
        replacing("stepfast.runs.messages:work_item", _without_seq),
        test_messages.test_the_next_page_is_staged_with_the_page_before_it_or_not_at_all,
    ),
    Mutation(
        "a message of an epoch that is over is taken for one of this",
        replacing(
            "stepfast.runs.messages:_of_partition",
            lambda hint, place: _OF_PARTITION(replace(hint, epoch=None), place),
        ),
        test_message_fields.test_messages_of_a_run_that_was_cancelled_or_resumed_are_of_the_past,
        only_on=("sqlite",),
    ),
    Mutation(
        "nobody hears of a message that was skipped",
        replacing("stepfast.worker.broker_listener:HintListener._report_skipped", _nothing),
        test_message_fields.test_a_message_for_another_row_than_the_next_is_acknowledged_skipped_and_told,
        only_on=("sqlite",),
    ),
    Mutation(
        "a range that is not of prices is left out",
        replacing("stepfast.runs.messages:_range", lambda _: {}),
        test_message_fields.test_a_range_of_prices_has_its_own_fields_and_any_other_stands_in_range,
        {"part": Range.of(size=["s"]), "fields": {"range": {"size": ["s"]}}},
        only_on=("sqlite",),
    ),
    Mutation(
        "a partition of any run will do",
        without("stepfast.runs.messages:FIND_KNOWN_WORK", "p.run_id = r.id AND "),
        test_known_work.test_a_partition_of_one_run_is_none_of_another,
    ),
]
