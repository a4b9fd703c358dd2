"""The tests bite: with any guard taken out of the protocol, one of them fails, on every database that has the guard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests import (
    mutations,
    mutations_of_brokers,
    mutations_of_consolidation,
    mutations_of_dependencies,
    mutations_of_diamonds,
    mutations_of_isolation,
    mutations_of_joining,
    mutations_of_poolers,
    mutations_of_reading,
    mutations_of_runs,
    mutations_of_service_bus,
    mutations_of_tasks,
    mutations_of_transports,
    mutations_of_waiting,
)
from tests.mailbox import mailbox
from tests.receiver import receiving

if TYPE_CHECKING:
    from collections.abc import Callable

    from devtools.pgbouncer import PoolMode
    from devtools.server import Server
    from stepfast import Stepfast
    from tests.mutations import Mutation


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
