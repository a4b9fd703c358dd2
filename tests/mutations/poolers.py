"""Ways to rely on a session that is not ours, or on more connections than we may have, each with the test that must notice."""

from __future__ import annotations

from typing import Any

from stepfast.database import drivers
from stepfast.database import drivers as poolers
from stepfast.database.database import Holder, Places
from stepfast.worker import wakeups
from tests.contract.database import test_poolers
from tests.contract.worker import test_connections
from tests.mutations.jobs import Mutation, both, replacing

BEHIND = ("pgbouncer",)


def _sets_and_says_nothing(raw: Any, said: object, place: str) -> bool:
    del said, place
    raw.execute("SET plan_cache_mode = force_custom_plan")
    return True


def _place_for_everybody(_: Places) -> Holder:
    holder = Holder()
    holder.held = 2  # nothing is waited for, and nothing given back
    return holder


MUTATIONS = [
    Mutation(
        "a pooler is taken for the server",
        replacing(poolers, "stands_between", lambda _: False),
        test_poolers.test_a_connection_knows_that_its_session_is_not_its_own,
        only_on=BEHIND,
    ),
    Mutation(
        "a setting is left in a session that others get next",
        replacing(drivers, "begin_session", _sets_and_says_nothing),
        test_poolers.test_nothing_is_left_behind_in_the_sessions_of_the_server,
        only_on=BEHIND,
    ),
    Mutation(
        "who listens elsewhere is believed without proof",
        both(replacing(wakeups, "greet", lambda _: None), replacing(test_poolers, "PATIENCE", 1.0)),
        test_poolers.test_listening_to_another_database_is_not_believed,
        only_on=BEHIND,
    ),
    Mutation(
        "a pooler that works by statement passes",
        replacing(poolers, "refuse_statements", lambda *_: None),
        test_poolers.test_a_pooler_that_works_by_statement_is_refused,
        only_on=BEHIND,
    ),
    Mutation(
        "nobody waits for a connection",
        replacing(Places, "take", _place_for_everybody),
        test_connections.test_a_worker_opens_no_more_connections_than_the_documentation_says,
        {"concurrency": 100},
        only_on=("postgresql", "mariadb"),
    ),
]
