"""Guards of events, waits and callbacks, each taken away once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.contract.jobs import test_callbacks, test_encryption, test_events
from tests.mutations.mutation import SERVERS, Break, Mutation, replacing, without

if TYPE_CHECKING:
    import pytest

    from stepfast.database.dialects import Dialect


def with_keys(broken: Break) -> Break:
    """Add the settings that the tests of encryption and callbacks need."""

    def change(patch: pytest.MonkeyPatch, dialect: Dialect) -> None:
        patch.setenv("STEPFAST_SECRET_KEY", test_encryption.OLD)
        patch.setenv("STEPFAST_CALLBACK_URL", test_callbacks.BASE)
        broken.change(patch, dialect)

    return Break(broken.targets, change)


MUTATIONS = [
    Mutation(
        "an event and a wait do not lock their name",
        replacing("stepfast.jobs.events:_lock", lambda *_: None),
        test_events.test_an_event_and_a_wait_of_the_same_moment_never_miss_each_other,
        only_on=SERVERS,
    ),
    Mutation(
        "who begins to wait does not look at what is kept",
        without("stepfast.jobs.events:OLDEST_KEPT_EVENT", "name = :name", "1 = 0 AND name = :name"),
        test_events.test_an_event_that_comes_first_is_kept_for_the_wait,
    ),
    Mutation(
        "what was kept too long is delivered",
        without("stepfast.jobs.events:OLDEST_KEPT_EVENT", "AND until_at > {now}", ""),
        test_events.test_what_was_kept_long_enough_is_not_delivered,
    ),
    Mutation(
        "an event is given to a job that waits no more",
        without(
            "stepfast.jobs.events:LOCK_WAITING_JOB",
            "AND fence = :fence AND state = 'scheduled'",
            "AND :fence <> 0",
        ),
        test_events.test_a_job_that_waits_no_more_takes_no_event,
        {"end": "hastened"},
    ),
    Mutation(
        "a job that was replaced gets the event of the old one",
        without("stepfast.jobs.events:LOCK_WAITING_JOB", "AND fence = :fence", "AND :fence <> 0"),
        test_events.test_a_job_that_waits_no_more_takes_no_event,
        {"end": "replaced"},
        or_with=(Exception,),
    ),
    Mutation(
        "an event that was taken stays",
        without("stepfast.jobs.events:TAKE_EVENT", "id = :id", "id = :id AND 1 = 0"),
        test_events.test_events_that_are_kept_are_delivered_in_their_order,
    ),
    Mutation(
        "the same id is sent twice",
        replacing("stepfast.jobs.events:remember_key", lambda _tx, _scope, _key, mine, _keep: mine),
        test_events.test_the_same_id_again_changes_nothing,
    ),
    Mutation(
        "waits are answered in any order",
        without("stepfast.jobs.events:OLDEST_WAITS", "ORDER BY id", "ORDER BY id DESC"),
        test_events.test_each_event_goes_to_one_wait_the_oldest_first,
    ),
    Mutation(
        "what is still wanted is forgotten",
        without("stepfast.jobs.events:OLD_EVENTS", "until_at <= {now} - :age", "until_at > :age"),
        test_events.test_what_is_over_is_forgotten_and_what_is_not_stays,
    ),
    # Callbacks
    Mutation(
        "a callback is believed whoever signed it",
        with_keys(replacing("stepfast.encryption:Keyring.signed", lambda *_: True)),
        test_callbacks.test_nothing_but_what_we_signed_is_believed,
        or_with=(Exception,),
        only_on=("sqlite",),
    ),
    Mutation(
        "a callback never ends",
        with_keys(without("stepfast.callbacks:CALLBACK_TIME", "{now}", "0")),
        test_callbacks.test_after_its_end_by_the_databases_clock_it_is_refused,
    ),
    Mutation(
        "a callback is good for ever",
        with_keys(replacing("stepfast.callbacks:_single_use_id", lambda *_: None)),
        test_callbacks.test_two_addresses_of_one_event_are_good_for_one_time_each,
        only_on=("sqlite",),
    ),
    Mutation(
        "a callback that was used is forgotten before it ends",
        with_keys(replacing("stepfast.callbacks:replace", lambda event, **_: event)),
        test_callbacks.test_a_callback_that_lasts_long_is_good_for_once_all_the_time,
    ),
    Mutation(
        "a longer address of the same step outlives what is remembered",
        with_keys(without("stepfast.jobs.keys:PROLONG_KEY", "{now} + :keep WHERE", "until_at WHERE")),
        test_callbacks.test_the_addresses_of_one_step_are_good_for_one_time_all_the_time,
        {"lasts": "1h", "of_the_second": "60d"},
    ),
]
