"""Guards of queues in the database, each taken away once."""

from __future__ import annotations

from tests.contract.database import test_messages
from tests.mutations.mutation import Mutation, without

_ENDS = {
    "renew": "RENEW_MESSAGE",
    "release": "RELEASE_MESSAGE",
    "put_aside": "PUT_ASIDE_MESSAGE",
    "complete": "COMPLETE_MESSAGE",
}

MUTATIONS = [
    *(
        Mutation(
            f"a late holder may {name} a message",
            without(f"stepfast.transports.database:{statement}", "AND fence = :fence", "AND :fence = :fence"),
            test_messages.test_a_late_holder_changes_nothing,
            {"ending": name},
        )
        for name, statement in _ENDS.items()
    ),
    *(
        Mutation(
            f"who held a message for too long may {name} it",
            without(f"stepfast.transports.database:{statement}", "AND visible_at > {now}"),
            test_messages.test_who_held_it_for_too_long_changes_nothing_even_before_another_takes_it,
            {"ending": name},
        )
        for name, statement in _ENDS.items()
    ),
    Mutation(
        "an id is forgotten at once",
        without("stepfast.transports.database:FORGET_IDS", "AND sent_at <= {now} - :remembered", "AND :remembered > 0"),
        test_messages.test_an_id_is_swallowed_for_ten_minutes_whatever_became_of_the_message,
    ),
    Mutation(
        "an id is never forgotten",
        without("stepfast.transports.database:FORGET_IDS", "state IN ('done', 'dead')", "1 = 0"),
        test_messages.test_an_id_is_forgotten_after_ten_minutes_but_not_while_its_message_waits,
        or_with=(ValueError,),
    ),
    Mutation(
        "what nobody got counts as a delivery",
        without("stepfast.transports.database:GIVE_BACK_MESSAGE", ", attempts = attempts - 1"),
        test_messages.test_what_was_taken_and_never_handed_out_counts_as_no_delivery,
    ),
    Mutation(
        "a message whose life is over is delivered",
        without("stepfast.transports.database:PICK_MESSAGES", "AND (until_at IS NULL OR until_at > {now})"),
        test_messages.test_a_message_whose_life_is_over_is_neither_delivered_nor_counted,
    ),
    Mutation(
        "a dead letter vanishes after its life",
        without("stepfast.transports.database:PUT_ASIDE_MESSAGE", "until_at = NULL,"),
        test_messages.test_a_dead_letter_stays_however_short_its_life_was_to_be,
    ),
    Mutation(
        "what is held is taken for ready",
        without("stepfast.transports.database:QUEUE_DEPTH", "AND visible_at <= {now} THEN"  , "THEN"),
        test_messages.test_depth_tells_what_is_ready_held_scheduled_and_dead,
    ),
]  # fmt: skip
