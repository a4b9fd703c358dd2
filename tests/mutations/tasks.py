"""Guards of tasks, each taken away once: store, intake, single-task mode, receiver."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from stepfast import Continue, Reject, Snooze, Stepfast
from stepfast.errors import StepfastError
from stepfast.tasks import held_messages, receiver, single_task
from stepfast.transports.memory import MemoryBroker
from tests.contract.tasks import test_intake, test_receiver, test_single_task, test_tasks
from tests.mutations.mutation import Mutation, both, replacing, without
from tests.support.broker import TaskQueue
from tests.support.http_receiver import SECRET, SETTINGS
from tests.unit.tasks import test_dead_letter_recovery, test_envelope, test_held_messages, test_settings

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from stepfast.database.connection import Transaction
    from tests.support.http_receiver import HttpReceiver


def over_a_broker(test: Callable[..., None], **arguments: Any) -> Callable[..., None]:
    """Run a test of the intake with a broker of its own."""

    def run(app: Stepfast) -> None:
        test(app, TaskQueue(MemoryBroker()), **arguments)

    return run


def telling(test: Callable[..., None]) -> Callable[..., None]:
    """Like `over_a_broker`, with an application whose webhooks arrive."""

    def run(app: Stepfast, receiver: HttpReceiver) -> None:
        mine = Stepfast(database=app.database, notifications=SETTINGS)
        test(mine, TaskQueue(MemoryBroker()), receiver)

    return run


def of_a_single_task(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test of the parent of a single task, with a short pause between its looks."""

    def run(app: Stepfast, receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(single_task, "AWAY", 0.01)
        with TemporaryDirectory() as folder:
            test(Stepfast(database=app.database, notifications=SETTINGS), receiver, Path(folder))

    return run


def of_a_receiver(test: Callable[..., None], **arguments: Any) -> Callable[..., None]:
    def run(app: Stepfast) -> None:
        test(app, receiver.TaskReceiver(app.database, secrets=[SECRET]), **arguments)

    return run


def impatient(test: Callable[..., None]) -> Callable[..., None]:
    def run(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
        test(app, TaskQueue(MemoryBroker()), monkeypatch, lets_us_in=True)

    return run


def no_memory(_: Transaction, __: str, ___: str, job_id: str, ____: int) -> str:
    return job_id


async def no_renewal(*_: object) -> None:
    return


async def greedy(_: object) -> int:
    return 32


async def believing(*_: object) -> bool:
    return True


LIVE = "AND NOT EXISTS (SELECT 1 FROM stepfast_job j WHERE j.id = stepfast_task.id)"

MUTATIONS = [
    Mutation(
        "a task's id is not remembered",
        replacing("stepfast.tasks.store:remember_key", no_memory),
        test_tasks.test_two_who_store_the_same_task_at_once_store_one_job,
    ),
    Mutation(
        "a refused message is not remembered",
        replacing("stepfast.tasks.store:remember_key", no_memory),
        test_tasks.test_the_same_message_is_refused_once,
    ),
    Mutation(
        "another payload under a known id is taken for a repeat",
        replacing("stepfast.tasks.store:_differ", lambda *_: False),
        test_tasks.test_a_known_id_with_another_payload_is_refused_and_not_taken_for_a_repeat,
    ),
    Mutation(
        "the trace that a message names beside its body is lost",
        replacing("stepfast.tasks.store:sender_trace", lambda _: None),
        test_tasks.test_the_trace_that_a_message_names_beside_its_body_goes_on,
        {"name": "Diagnostic-Id"},
    ),
    Mutation(
        "ends without a result are told of by nobody",
        replacing("stepfast.jobs.archive:stage_failure_webhooks", lambda *_: None),
        test_tasks.test_a_task_that_an_operator_cancels_is_told_of,
    ),
    Mutation(
        "crashes are told of by nobody",
        replacing("stepfast.jobs.archive:stage_failure_webhooks", lambda *_: None),
        test_tasks.test_a_task_that_kills_its_workers_is_told_of,
    ),
    Mutation(
        "tasks that are claimed together share a webhook",
        replacing("stepfast.jobs.end_webhook:end_key", lambda _, fence: f"task-end:{fence}"),
        test_tasks.test_tasks_that_are_claimed_and_end_together_are_each_told_of,
    ),
    Mutation(
        "a second life shares the webhook of the first",
        replacing("stepfast.jobs.end_webhook:end_key", lambda job_id, _: f"task-end:{job_id}"),
        test_tasks.test_each_end_is_told_of_once_and_a_second_life_has_an_end_of_its_own,
    ),
    Mutation(
        "a task that is done is told of by nobody",
        replacing("stepfast.tasks.handlers:_with_webhook", lambda _, answer: answer),
        test_tasks.test_a_task_that_is_done_is_told_with_its_result,
        or_with=(ValueError,),
    ),
    Mutation(
        "a task that only waits is told of as done",
        replacing("stepfast.tasks.handlers:Outcome", Continue | Snooze | Reject),
        test_tasks.test_a_task_that_waits_is_told_of_when_it_has_ended,
        or_with=(StepfastError,),
    ),
    Mutation(
        "a running task is given up",
        without("stepfast.tasks.store:GIVE_UP_JOB", "AND state IN ('scheduled', 'ready', 'suspect', 'held')"),
        test_tasks.test_a_task_that_somebody_runs_is_not_given_up_behind_his_back,
        or_with=(StepfastError,),
    ),
    Mutation(
        "a wrong message speaks for a task of the same id",
        replacing("stepfast.tasks.store:is_known", lambda *_: False),
        test_tasks.test_a_wrong_message_says_nothing_about_a_task_of_the_same_id,
    ),
    Mutation(
        "the row of an unfinished task is forgotten",
        without("stepfast.tasks.store:FORGET_TASKS", LIVE),
        test_tasks.test_a_task_is_forgotten_with_its_id_but_not_while_somebody_may_revive_it,
    ),
    Mutation(
        "an end that was told is told under another id",
        both(
            without("stepfast.tasks.store:RESEND_END", "dedupe_key = :key", "1 = 0"),
            without("stepfast.tasks.store:FIND_END", "job_id = :id", "1 = 0"),
        ),
        test_tasks.test_an_end_can_be_told_again_under_the_same_id,
    ),
    Mutation(
        "a message is let go before whoever asked is told",
        replacing("stepfast.tasks.store:TaskEnd.settled", property(lambda _: True)),
        telling(test_intake.test_it_is_held_until_whoever_asked_has_been_told),
        only_on=("sqlite",),
    ),
    Mutation(
        "a held message is not renewed",
        replacing("stepfast.tasks.held_messages:HeldMessages._renew", no_renewal),
        over_a_broker(test_intake.test_a_held_message_is_renewed_for_as_long_as_its_task_takes),
        only_on=("sqlite",),
    ),
    Mutation(
        "everything is taken from the queue",
        replacing("stepfast.tasks.intake:Intake.capacity", greedy),
        over_a_broker(test_intake.test_no_more_is_taken_than_can_be_worked_on_soon),
        only_on=("sqlite",),
    ),
    Mutation(
        "the last delivery is a delivery like any other",
        replacing("stepfast.tasks.store:is_known", lambda *_: True),
        telling(test_intake.test_the_last_delivery_is_used_to_tell_of_it),
        only_on=("sqlite",),
        or_with=(ValueError,),
    ),
    Mutation(
        "a message that is held until its end is taken ahead of time",
        replacing("stepfast.tasks.held_messages:HeldMessages.at_work", property(lambda _: 0)),
        over_a_broker(test_intake.test_what_is_held_until_its_end_is_taken_only_by_who_is_free),
        only_on=("sqlite",),
    ),
    Mutation(
        "a stop in good order counts as a death",
        replacing("stepfast.tasks.held_messages:HeldMessages.give_back", held_messages.HeldMessages.release),
        over_a_broker(test_intake.test_a_worker_that_stops_in_good_order_is_no_death),
        only_on=("sqlite",),
    ),
    Mutation(
        "a message that was lost is no failure",
        replacing("stepfast.tasks.held_messages:HeldMessage.task_unfinished", property(lambda _: False)),
        over_a_broker(test_intake.test_who_loses_the_message_of_the_one_task_has_failed),
        only_on=("sqlite",),
    ),
    Mutation(
        "deaths are forgotten when a message is sent anew",
        replacing("stepfast.tasks.store:deaths_before", lambda _: 0),
        over_a_broker(test_intake.test_stops_in_between_do_not_save_a_task_that_kills),
        only_on=("sqlite",),
    ),
    Mutation(
        "a stop in good order counts where only the queue knows its limit",
        replacing("stepfast.tasks.held_messages:HeldMessages.give_back", held_messages.HeldMessages.release),
        over_a_broker(test_intake.test_nor_is_it_where_only_the_queue_knows_how_often_it_delivers),
        only_on=("sqlite",),
    ),
    Mutation(
        "who comes late gives back what is another's",
        replacing("stepfast.tasks.held_messages:HeldMessages._renew", believing),
        test_held_messages.test_what_another_holds_is_left_to_him,
        only_on=("sqlite",),
    ),
    Mutation(
        "those of all addresses go first",
        without("stepfast.outbox.messages:MESSAGES_BEFORE", "AND b.destination = o.destination"),
        test_tasks.test_a_webhook_that_waits_for_others_to_the_same_address_says_so,
    ),
    Mutation(
        "those behind a message go first",
        without("stepfast.outbox.messages:MESSAGES_BEFORE", "AND b.seq < o.seq"),
        test_tasks.test_a_webhook_that_is_the_first_of_its_line_says_what_became_of_it,
    ),
    Mutation(
        "a message that was given up still waits for others",
        without("stepfast.outbox.messages:MESSAGES_BEFORE", "AND o.state = 'waiting'"),
        test_tasks.test_a_webhook_that_was_given_up_waits_for_nobody,
    ),
    Mutation(
        "a task that a container left a moment ago is taken from its next try",
        without("stepfast.tasks.store:ADOPT_JOBS", "AND updated_at < {now} - :after"),
        test_intake.test_what_a_container_left_a_moment_ago_is_its_own,
    ),
    Mutation(
        "a task that a container works on is taken from it",
        without("stepfast.tasks.store:ADOPT_JOBS", "AND state IN ('ready', 'suspect') "),
        test_intake.test_what_a_container_works_on_is_its_own_however_long_it_takes,
    ),
    Mutation(
        "what any container left behind is taken",
        without("stepfast.tasks.store:ADOPT_JOBS", "queue > :first AND queue < :last AND "),
        test_intake.test_what_the_container_of_another_client_left_behind_is_none_of_ours,
    ),
    Mutation(
        "a moment without the database ends whoever waits for a single task",
        replacing("stepfast.tasks.single_task:_Parent._patiently", lambda _, act: act()),
        of_a_single_task(test_single_task.test_whatever_fails_for_a_moment_the_task_is_done_and_told_of),
        only_on=("sqlite",),
        or_with=(StepfastError,),
    ),
    Mutation(
        "what a container could not do stays in its own queue",
        without("stepfast.tasks.single_task:HAND_OVER_JOB", "queue = :queue", "id = id"),
        test_single_task.test_a_retry_of_a_single_task_is_for_any_worker_of_its_client,
        {"task_type": "bad"},
    ),
    Mutation(
        "what a killed container left behind stays there",
        replacing("stepfast.tasks.store:take_over_task", lambda *_: False),
        over_a_broker(
            test_intake.test_what_a_killed_container_left_behind_is_done_at_once_when_it_is_asked_for_again
        ),
        only_on=("sqlite",),
    ),
    Mutation(
        "the id of a message is stored whole",
        replacing("stepfast.tasks.store:LONGEST_MESSAGE_ID", 1_000),
        test_tasks.test_the_id_of_a_message_may_be_as_long_as_its_sender_likes,
        or_with=(StepfastError,),
    ),
    Mutation(
        "what we refused hides what is worn out",
        replacing("stepfast.tasks.intake:MOST_LETTERS", 256),
        test_dead_letter_recovery.test_what_we_refused_hides_nothing_behind_it_and_stays,
        only_on=("sqlite",),
    ),
    Mutation(
        "what a long pass holds is not renewed",
        replacing("stepfast.tasks.held_messages:HeldMessages.renew_until", no_renewal),
        test_dead_letter_recovery.test_what_was_passed_stays_ours_for_as_long_as_the_pass_takes,
        only_on=("sqlite",),
    ),
    Mutation(
        "a receiver believes everybody",
        replacing("stepfast.tasks.receiver:verify", lambda _, headers, __: headers["webhook-id"]),
        of_a_receiver(test_receiver.test_who_does_not_know_the_secret_is_not_believed, secret=None),
    ),
    Mutation(
        "a sealed result is told as it is stored",
        replacing("stepfast.tasks.store:opened", lambda text, *_: text),
        test_tasks.test_the_end_of_an_encrypted_task_is_told_again_as_it_was,
        or_with=(StepfastError,),
    ),
    Mutation(
        "a result that was emptied is told as none",
        replacing("stepfast.tasks.store:RESULT_EXPIRED", None),
        test_tasks.test_a_result_that_was_emptied_is_told_of_with_the_time_of_its_end,
        or_with=(KeyError,),
    ),
    Mutation(
        "a payload may look as if we had sealed it",
        replacing("stepfast.tasks.envelope:OURS", "\0"),
        test_envelope.test_what_is_no_task_is_refused_with_the_reason,
        {
            "text": test_envelope.task(payload={"stepfast.sealed": "1.aaaa.bbbb"}),
            "reason": "begins with 'stepfast.'",
        },
        only_on=("sqlite",),
    ),
    Mutation(
        "a task shows what was told of another client's",
        without("stepfast.admin.tasks:RECEIVED_ENDS", "AND client = :client"),
        test_tasks.test_clients_do_not_see_what_is_told_of_each_others_tasks,
    ),
    Mutation(
        "what was told last may be of another client's task",
        without("stepfast.tasks.receiver:WEBHOOKS_OF_TASK", "AND client = :client"),
        test_tasks.test_clients_do_not_see_what_is_told_of_each_others_tasks,
    ),
    Mutation(
        "whoever wants one message waits for ever",
        replacing("stepfast.tasks.intake:Outages.report", lambda *_: None),
        impatient(test_intake.test_whoever_wants_one_message_does_not_wait_for_a_broker_for_ever),
        only_on=("sqlite",),
    ),
    Mutation(
        "a database file on a share is used",
        replacing("stepfast.tasks.settings:SHARES", frozenset()),
        test_settings.test_a_file_on_a_share_is_refused_before_anything_is_written_to_it,
        {
            "environment": {"STEPFAST_DATABASE_URL": "sqlite:////mnt/share/work.db"},
            "kind": "cifs",
            "works": False,
        },
        only_on=("sqlite",),
    ),
]
