"""Ways to break waits, callbacks, encryption and masking, each with the test that must notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from stepfast import callbacks
from stepfast.admin import encryption as keys
from stepfast.admin import jobs as documents
from stepfast.encryption import Keyring
from stepfast.jobs import events
from stepfast.jobs import keys as step_keys
from stepfast.telemetry import masking
from stepfast.telemetry.masking import Rules
from stepfast.worker import running
from tests.contract.admin import test_masking
from tests.contract.jobs import test_callbacks, test_encryption, test_events
from tests.mutations.jobs import SERVERS, Mutation, replacing, without

if TYPE_CHECKING:
    import pytest

    from stepfast.database.dialects import Dialect

Break = Callable[["pytest.MonkeyPatch", "Dialect"], None]


def keyed(break_it: Break) -> Break:
    """With the settings that the tests of keys and callbacks have."""

    def broken(patch: pytest.MonkeyPatch, dialect: Dialect) -> None:
        patch.setenv("STEPFAST_SECRET_KEY", test_encryption.OLD)
        patch.setenv("STEPFAST_CALLBACK_URL", test_callbacks.BASE)
        break_it(patch, dialect)

    return broken


def without_rules(break_it: Break) -> Break:
    """Rules hold in a whole process: none from before, and none is left."""

    def broken(patch: pytest.MonkeyPatch, dialect: Dialect) -> None:
        for name, value in vars(Rules()).items():
            patch.setattr(masking._RULES, name, value)
        break_it(patch, dialect)

    return broken


MUTATIONS = [
    Mutation(
        "an event and a wait do not lock their name",
        replacing(events, "_lock", lambda *_: None),
        test_events.test_an_event_and_a_wait_of_the_same_moment_never_miss_each_other,
        only_on=SERVERS,
    ),
    Mutation(
        "who begins to wait does not look at what is kept",
        without(events.OLDEST_KEPT_EVENT, "name = :name", "1 = 0 AND name = :name"),
        test_events.test_an_event_that_comes_first_is_kept_for_the_wait,
    ),
    Mutation(
        "what was kept too long is delivered",
        without(events.OLDEST_KEPT_EVENT, "AND until_at > {now}", ""),
        test_events.test_what_was_kept_long_enough_is_not_delivered,
    ),
    Mutation(
        "an event is given to a job that waits no more",
        without(events.LOCK_WAITING_JOB, "AND fence = :fence AND state = 'scheduled'", "AND :fence <> 0"),
        test_events.test_a_job_that_waits_no_more_takes_no_event,
        {"end": "hastened"},
    ),
    Mutation(
        "a job that was replaced gets the event of the old one",
        without(events.LOCK_WAITING_JOB, "AND fence = :fence", "AND :fence <> 0"),
        test_events.test_a_job_that_waits_no_more_takes_no_event,
        {"end": "replaced"},
        or_with=(Exception,),
    ),
    Mutation(
        "an event that was taken stays",
        without(events.TAKE_EVENT, "id = :id", "id = :id AND 1 = 0"),
        test_events.test_events_that_are_kept_are_delivered_in_their_order,
    ),
    Mutation(
        "the same id is sent twice",
        replacing(events, "remember_key", lambda _tx, _scope, _key, mine, _keep: mine),
        test_events.test_the_same_id_again_changes_nothing,
    ),
    Mutation(
        "waits are answered in any order",
        without(events.OLDEST_WAITS, "ORDER BY id", "ORDER BY id DESC"),
        test_events.test_each_event_goes_to_one_wait_the_oldest_first,
    ),
    Mutation(
        "what is still wanted is forgotten",
        without(events.OLD_EVENTS, "until_at <= {now} - :age", "until_at > :age"),
        test_events.test_what_is_over_is_forgotten_and_what_is_not_stays,
    ),
    # Callbacks
    Mutation(
        "a callback is believed whoever signed it",
        keyed(replacing(Keyring, "signed", lambda *_: True)),
        test_callbacks.test_nothing_but_what_we_signed_is_believed,
        or_with=(Exception,),
        only_on=("sqlite",),
    ),
    Mutation(
        "a callback never ends",
        keyed(without(callbacks.CALLBACK_TIME, "{now}", "0")),
        test_callbacks.test_after_its_end_by_the_databases_clock_it_is_refused,
    ),
    Mutation(
        "a callback is good for ever",
        keyed(replacing(callbacks, "_used", lambda *_: None)),
        test_callbacks.test_two_addresses_of_one_event_are_good_for_one_time_each,
        only_on=("sqlite",),
    ),
    Mutation(
        "a callback that was used is forgotten before it ends",
        keyed(replacing(callbacks, "replace", lambda event, **_: event)),
        test_callbacks.test_a_callback_that_lasts_long_is_good_for_once_all_the_time,
    ),
    Mutation(
        "a longer address of the same step outlives what is remembered",
        keyed(without(step_keys.PROLONG_KEY, "{now} + :keep WHERE", "until_at WHERE")),
        test_callbacks.test_the_addresses_of_one_step_are_good_for_one_time_all_the_time,
        {"lasts": "1h", "of_the_second": "60d"},
    ),
    # Encryption
    Mutation(
        "reports show what is encrypted",
        keyed(replacing(documents, "is_sealed", lambda _: False)),
        test_encryption.test_reports_say_encrypted_and_decrypting_is_written_down,
        only_on=("sqlite",),
    ),
    Mutation(
        "nobody writes down who decrypts",
        keyed(replacing(keys, "record", lambda *_, **__: None)),
        test_encryption.test_reports_say_encrypted_and_decrypting_is_written_down,
        or_with=(ValueError,),
        only_on=("sqlite",),
    ),
    Mutation(
        "rotation leaves the payloads of unfinished jobs as they are",
        keyed(without(keys.WRITE_JOB, "= {json_of:payload}", "= COALESCE(payload, :payload)")),
        test_encryption.test_rotation_seals_everything_under_the_first_key_and_the_old_one_may_go,
        only_on=("sqlite",),
    ),
    # Masking
    Mutation(
        "an error quotes what is hidden of the arguments",
        without_rules(replacing(running, "hidden_in", lambda _: ())),
        test_masking.test_an_error_that_quotes_a_hidden_argument_is_kept_without_it,
        only_on=("sqlite",),
    ),
]
