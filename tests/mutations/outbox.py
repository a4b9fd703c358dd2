"""Guards of the outbox, each taken away once: the relay, webhooks, alerts."""

from __future__ import annotations

from datetime import timedelta

from stepfast.errors import DestinationLostError
from tests.contract.outbox import test_alerts, test_outbox, test_permissions, test_relay
from tests.mutations.mutation import Mutation, both, replacing, without
from tests.unit.notifications import test_signature
from tests.unit.outbox import test_hosts

MUTATIONS = [
    # A message arrives at least once, in order, from one relay at a time.
    Mutation(
        "a relay that was replaced records what it did",
        without("stepfast.outbox.destinations:RENEW_DESTINATION", "AND fence = :fence"),
        test_relay.test_a_relay_that_was_replaced_records_nothing,
    ),
    Mutation(
        "a relay that was replaced lets a destination go",
        without("stepfast.outbox.destinations:RELEASE_DESTINATION", "AND fence = :fence"),
        test_relay.test_a_relay_that_was_replaced_records_nothing,
        or_with=(DestinationLostError,),
    ),
    Mutation(
        "a destination is taken from whoever serves it",
        both(
            without(
                "stepfast.outbox.destinations:DUE_DESTINATIONS", "AND d.leased_until > {now}", "AND 1 = 0"
            ),
            both(
                without("stepfast.outbox.destinations:FREE_DESTINATIONS", "AND leased_until <= {now}"),
                without("stepfast.outbox.destinations:TAKE_DESTINATION", "AND leased_until <= {now}"),
            ),
        ),
        test_relay.test_a_destination_that_somebody_serves_is_left_to_him,
    ),
    Mutation(
        "the youngest message goes first",
        without("stepfast.outbox.destinations:NEXT_MESSAGE", "ORDER BY seq", "ORDER BY seq DESC"),
        test_relay.test_messages_of_a_destination_arrive_in_the_order_of_their_staging,
    ),
    Mutation(
        "a head that has to wait is overtaken",
        without(
            "stepfast.outbox.destinations:NEXT_MESSAGE",
            "AND destination = :destination",
            "AND destination = :destination AND due_at <= {now}",
        ),
        test_relay.test_the_head_of_the_line_holds_up_those_behind_it_and_nobody_else,
    ),
    Mutation(
        "what failed is tried again at once",
        without(
            "stepfast.outbox.destinations:POSTPONE_MESSAGE",
            "due_at = {now} + :delay",
            "due_at = {now} + 0 * :delay",
        ),
        test_relay.test_a_message_that_is_not_due_is_left_alone,
    ),
    Mutation(
        "messages that were given up are forgotten",
        both(
            without("stepfast.outbox.destinations:OLD_MESSAGES", "state = 'sent' AND"),
            without("stepfast.outbox.destinations:FORGET_MESSAGES", "AND state = 'sent'"),
        ),
        test_outbox.test_what_was_sent_is_forgotten_in_bounded_batches_and_what_died_is_not,
    ),
    Mutation(
        "the same cause is staged for one destination only",
        without(
            "stepfast.outbox.messages:KEY_HOLDER",
            "destination = :destination AND",
            ":destination = :destination AND",
        ),
        test_outbox.test_the_same_cause_may_be_told_to_others,
    ),
    Mutation(
        "every address is public",
        replacing("stepfast.notifications.addresses:is_public", lambda _: True),
        test_relay.test_an_address_behind_the_wall_is_never_reached,
    ),
    Mutation(
        "a row writes any file and opens any broker",
        replacing("stepfast.worker.permissions:Permissions.refusal_of", lambda _permissions, _message: None),
        test_permissions.test_a_row_writes_no_file_that_no_feed_exports_to,
    ),
    Mutation(
        "a host gets all couriers",
        replacing("stepfast.outbox.hosts:OF_A_HOST", 100),
        test_hosts.test_a_host_gets_two_couriers_however_many_urls_it_has,
        only_on=("sqlite",),
    ),
    Mutation(
        "a redirect is as good as an answer",
        replacing("stepfast.notifications.webhook:ENOUGH", range(200, 400)),
        test_relay.test_a_redirect_ends_in_a_sentence,
    ),
    Mutation(
        "any signature will do",
        replacing("hmac:compare_digest", lambda _ours, _theirs: True),
        test_signature.test_one_secret_of_several_is_enough_on_either_side,
        only_on=("sqlite",),
    ),
    # An alert per cause and quiet time; every death is noticed, once.
    Mutation(
        "an alert is told however quiet it should be",
        without(
            "stepfast.outbox.alerts:ALERT_SENT",
            "quiet_until = {now} + :quiet",
            "quiet_until = {now} + 0 * :quiet",
        ),
        test_alerts.test_one_cause_is_told_once_in_its_quiet_time_and_counted_meanwhile,
    ),
    Mutation(
        "what was told is told again",
        without("stepfast.outbox.alerts:ALERT_SENT", "notify_at = NULL", "notify_at = {now}"),
        test_alerts.test_of_two_relays_that_tell_at_once_one_does,
    ),
    Mutation(
        "an old alert that nobody told keeps new ones from being told",
        without(
            "stepfast.outbox.alerts:RAISE_ALERT",
            "WHEN notify_at > {now} - :too_old",
            "WHEN notify_at > 0 * :too_old",
        ),
        test_alerts.test_what_nobody_could_tell_for_a_day_is_only_listed_until_it_is_raised_again,
    ),
    Mutation(
        "a death is noticed again and again",
        without(
            "stepfast.worker.relay:REMEMBER_DEAD_JOBS",
            "VALUES (:id, :finished_at)",
            "VALUES (:id, :finished_at + 1)",
        ),
        test_alerts.test_a_death_is_noticed_once_by_however_many,
    ),
    Mutation(
        "a death behind the bookmark is overlooked",
        replacing("stepfast.worker.relay:OVERLAP", timedelta(0)),
        test_alerts.test_a_death_that_is_committed_after_a_younger_one_is_noticed,
    ),
]
