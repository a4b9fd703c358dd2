"""The tests bite: with any guard taken out of the protocol, one of them fails, on every database that has the guard."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import (
    mutations,
    mutations_of_brokers,
    mutations_of_consolidation,
    mutations_of_diamonds,
    mutations_of_reading,
    mutations_of_runs,
    mutations_of_service_bus,
    mutations_of_tasks,
    mutations_of_transports,
)
from tests.mailbox import mailbox
from tests.receiver import receiving

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Holdfast
    from tests.mutations import Mutation


MUTATIONS = [
    *mutations.MUTATIONS,
    *mutations_of_reading.MUTATIONS,
    *mutations_of_consolidation.MUTATIONS,
    *mutations_of_diamonds.MUTATIONS,
    *mutations_of_runs.MUTATIONS,
    *mutations_of_brokers.MUTATIONS,
    *mutations_of_transports.MUTATIONS,
    *mutations_of_service_bus.MUTATIONS,
    *mutations_of_tasks.MUTATIONS,
]


def cases(database: str) -> list[Mutation]:
    return [it for it in MUTATIONS if database in it.only_on]


def notice(
    mutation: Mutation, app: Holdfast, another_app: Callable[[], Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation.break_it(monkeypatch, app.database.dialect)

    with (
        receiving() as receiver,
        mailbox() as box,
        pytest.raises((AssertionError, pytest.fail.Exception, *mutation.or_with)),
    ):
        mutation.run(app=app, another_app=another_app, monkeypatch=monkeypatch, receiver=receiver, box=box)


@pytest.mark.usefixtures("ledger")
@pytest.mark.only_on("sqlite")
@pytest.mark.parametrize("mutation", cases("sqlite"), ids=lambda it: it.name)
def test_a_broken_guard_is_noticed_on_sqlite(
    mutation: Mutation, app: Holdfast, another_app: Callable[[], Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    notice(mutation, app, another_app, monkeypatch)


@pytest.mark.usefixtures("ledger")
@pytest.mark.sampled
@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("mutation", cases("postgresql"), ids=lambda it: it.name)
def test_a_broken_guard_is_noticed_on_postgresql(
    mutation: Mutation, app: Holdfast, another_app: Callable[[], Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    notice(mutation, app, another_app, monkeypatch)


@pytest.mark.usefixtures("ledger")
@pytest.mark.sampled
@pytest.mark.only_on("mariadb")
@pytest.mark.parametrize("mutation", cases("mariadb"), ids=lambda it: it.name)
def test_a_broken_guard_is_noticed_on_mariadb(
    mutation: Mutation, app: Holdfast, another_app: Callable[[], Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    notice(mutation, app, another_app, monkeypatch)
