"""Guards of connections: poolers, lent connections, the number of them; each taken away once."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

from stepfast.database.database import ConnectionSlots, SlotHolder
from stepfast.errors import ContentionError, DatabaseError
from tests.contract.database import test_async_connections, test_lent_connections, test_poolers, test_views
from tests.contract.worker import test_connections
from tests.mutations.mutation import SERVERS, Mutation, both, replacing, replacing_item, without
from tests.unit.database import test_tls

BEHIND = ("pgbouncer",)


def _sets_and_says_nothing(raw: Any, said: object, place: str) -> bool:
    del said, place
    raw.execute("SET plan_cache_mode = force_custom_plan")
    return True


def _slot_for_everybody(_: ConnectionSlots) -> SlotHolder:
    holder = SlotHolder()
    holder.held = 2  # nothing is waited for, and nothing given back
    return holder


MUTATIONS = [
    Mutation(
        "an option of a MariaDB URL that nothing reads is dropped",
        replacing("stepfast.database.tls:_named", lambda query: dict(parse_qsl(query))),
        test_tls.test_an_option_that_nothing_reads_is_refused_when_the_database_is_opened,
        {"query": "tls=true", "sentence": "which MariaDB URLs do not have"},
        only_on=("sqlite",),
    ),
    Mutation(
        "whatever has the name of one of our views is ours",
        replacing("stepfast.database.views:_is_marked", lambda _: True),
        test_views.test_a_view_that_the_user_put_in_the_place_of_ours_is_left_alone,
        or_with=(IndexError,),
    ),
    Mutation(
        "a lent transaction asks the past who holds its key",
        without("stepfast.jobs.enqueue:KEY_HOLDERS_NOW", "{for_update}"),
        test_lent_connections.test_a_lent_transaction_that_looks_at_the_past_finds_who_holds_its_key,
        {"options": {"key": "k"}},
        only_on=("mariadb",),
        or_with=(ContentionError,),
    ),
    Mutation(
        "an enqueue that fails half way leaves its first half",
        replacing("stepfast.database.lending:_set_savepoint", lambda _: None),
        test_lent_connections.test_an_enqueue_that_fails_half_way_leaves_a_lent_transaction_as_it_was,
        only_on=("mariadb",),
    ),
    Mutation(
        "a database is as good as another",
        replacing("stepfast.database.lending:require_same_database", lambda *_: None),
        test_async_connections.test_connections_of_aiosqlite_that_cannot_keep_the_promise_are_refused,
        only_on=("sqlite",),
        or_with=(DatabaseError,),
    ),
    Mutation(
        "a pipeline is lent",
        replacing_item("stepfast.database.lending:CHECKS", "psycopg", lambda _: None),
        test_lent_connections.test_a_pipeline_of_psycopg_is_refused_in_words,
        only_on=("postgresql",),
        or_with=(DatabaseError,),
    ),
    Mutation(
        "servers are taken for one if their databases have the same name",
        replacing("stepfast.database.lending:_installation", lambda *_: "the same"),
        test_lent_connections.test_a_database_of_the_same_name_on_another_server_is_refused_in_words,
        only_on=SERVERS,
    ),
    Mutation(
        "a look at the installation fixes the moment that a lender sees",
        without("stepfast.database.lending:READ_LENT_INSTALLATION", "LOCK IN SHARE MODE"),
        test_lent_connections.test_an_enqueue_does_not_fix_the_moment_that_a_lent_transaction_sees,
        only_on=("mariadb",),
    ),
    Mutation(
        "a pooler is taken for the server",
        replacing("stepfast.database.drivers:stands_between", lambda _: False),
        test_poolers.test_a_connection_knows_that_its_session_is_not_its_own,
        only_on=BEHIND,
    ),
    Mutation(
        "a setting is left in a session that others get next",
        replacing("stepfast.database.drivers:begin_session", _sets_and_says_nothing),
        test_poolers.test_nothing_is_left_behind_in_the_sessions_of_the_server,
        only_on=BEHIND,
    ),
    Mutation(
        "who listens elsewhere is believed without proof",
        both(
            replacing("stepfast.worker.wakeups:greet", lambda _: None),
            replacing("tests.contract.database.test_poolers:PATIENCE", 1.0),
        ),
        test_poolers.test_listening_to_another_database_is_not_believed,
        only_on=BEHIND,
    ),
    Mutation(
        "a pooler that works by statement passes",
        replacing("stepfast.database.drivers:refuse_statements", lambda *_: None),
        test_poolers.test_a_pooler_that_works_by_statement_is_refused,
        only_on=BEHIND,
    ),
    Mutation(
        "nobody waits for a connection",
        replacing("stepfast.database.database:ConnectionSlots.take", _slot_for_everybody),
        test_connections.test_a_worker_opens_no_more_connections_than_the_documentation_says,
        {"concurrency": 100},
        only_on=("postgresql", "mariadb"),
    ),
]
