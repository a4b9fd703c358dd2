"""The tests bite: with any guard taken out of the protocol, one of them fails, on every database that has the guard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.mutations import consolidation as mutations_of_consolidation
from tests.mutations import debounce as mutations_of_joining
from tests.mutations import dependencies as mutations_of_dependencies
from tests.mutations import diamonds as mutations_of_diamonds
from tests.mutations import events as mutations_of_waiting
from tests.mutations import isolation as mutations_of_isolation
from tests.mutations import jobs as mutations
from tests.mutations import pages as mutations_of_reading
from tests.mutations import poolers as mutations_of_poolers
from tests.mutations import runs as mutations_of_runs
from tests.mutations import runs_over_a_broker as mutations_of_brokers
from tests.mutations import service_bus as mutations_of_service_bus
from tests.mutations import tasks as mutations_of_tasks
from tests.mutations import transports as mutations_of_transports
from tests.support.http_receiver import receiving
from tests.support.mail_receiver import mailbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from devtools.pgbouncer import PoolMode
    from devtools.server import Server
    from stepfast import Stepfast
    from tests.mutations.jobs import Mutation


MUTATIONS = [
    *mutations.MUTATIONS,
    *mutations_of_reading.MUTATIONS,
    *mutations_of_consolidation.MUTATIONS,
    *mutations_of_isolation.MUTATIONS,
    *mutations_of_joining.MUTATIONS,
    *mutations_of_diamonds.MUTATIONS,
    *mutations_of_runs.MUTATIONS,
    *mutations_of_brokers.MUTATIONS,
    *mutations_of_transports.MUTATIONS,
    *mutations_of_service_bus.MUTATIONS,
    *mutations_of_tasks.MUTATIONS,
    *mutations_of_poolers.MUTATIONS,
    *mutations_of_dependencies.MUTATIONS,
    *mutations_of_waiting.MUTATIONS,
]


def cases(database: str) -> list[Mutation]:
    return [it for it in MUTATIONS if database in it.only_on]


def notice(
    mutation: Mutation,
    app: Stepfast,
    another_app: Callable[[], Stepfast],
    monkeypatch: pytest.MonkeyPatch,
    **others: Any,
) -> None:
    mutation.break_it(monkeypatch, app.database.dialect)

    with (
        receiving() as receiver,
        mailbox() as box,
        pytest.raises((AssertionError, pytest.fail.Exception, *mutation.or_with)),
    ):
        mutation.run(
            app=app, another_app=another_app, monkeypatch=monkeypatch, receiver=receiver, box=box, **others
        )


@pytest.mark.usefixtures("ledger")
@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("mutation", cases("sqlite"), ids=lambda it: it.name)
def test_a_broken_guard_is_noticed_on_sqlite(
    mutation: Mutation, app: Stepfast, another_app: Callable[[], Stepfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    notice(mutation, app, another_app, monkeypatch)


@pytest.mark.usefixtures("ledger")
@pytest.mark.sampled
@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("mutation", cases("postgresql"), ids=lambda it: it.name)
def test_a_broken_guard_is_noticed_on_postgresql(
    mutation: Mutation, app: Stepfast, another_app: Callable[[], Stepfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    notice(mutation, app, another_app, monkeypatch)


@pytest.mark.usefixtures("ledger")
@pytest.mark.sampled
@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("mutation", cases("mariadb"), ids=lambda it: it.name)
def test_a_broken_guard_is_noticed_on_mariadb(
    mutation: Mutation, app: Stepfast, another_app: Callable[[], Stepfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    notice(mutation, app, another_app, monkeypatch)


@pytest.mark.usefixtures("ledger")
@pytest.mark.only_on("pgbouncer")
@pytest.mark.parametrize("mutation", cases("pgbouncer"), ids=lambda it: it.name)
def test_a_broken_guard_is_noticed_behind_a_pooler(  # noqa: PLR0917 - fixtures
    mutation: Mutation,
    app: Stepfast,
    another_app: Callable[[], Stepfast],
    monkeypatch: pytest.MonkeyPatch,
    server: Server,
    database_url: str,
    in_mode: Callable[[PoolMode], str],
) -> None:
    others = {"server": server, "database_url": database_url, "in_mode": in_mode}
    notice(mutation, app, another_app, monkeypatch, **others)
