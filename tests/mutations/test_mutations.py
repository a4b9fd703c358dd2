"""Tests notice broken guards: with any guard taken out of the code, the test that a mutation names fails.

Each mutation runs on every database that has the guard; every day a fifth of them, with --chaos all.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.transports.contract import TransportError
from tests.mutations import conformance, simulator
from tests.mutations.mutation import Mutation, TargetGoneError, replacing
from tests.support.http_receiver import receiving_http
from tests.support.mail_receiver import receiving_mail
from tests.transports import test_conformance

if TYPE_CHECKING:
    from collections.abc import Callable

    from devtools.pgbouncer import PoolMode
    from devtools.server import Server
    from stepfast import Stepfast
    from tests.transports.brokers import Broker

SUBJECTS = (
    "jobs",
    "limits",
    "debounce",
    "dependencies",
    "events",
    "encryption",
    "results",
    "worker",
    "isolation",
    "runs",
    "partitioning",
    "pages",
    "paging",
    "consolidation",
    "watermark",
    "sweep",
    "breaker",
    "watchdog",
    "repair",
    "runs_over_a_broker",
    "tasks",
    "transports",
    "service_bus",
    "outbox",
    "schedules",
    "admin",
    "telemetry",
    "testing",
    "database",
    "diamonds",
)

MUTATIONS: list[Mutation] = [
    mutation for subject in SUBJECTS for mutation in import_module(f"tests.mutations.{subject}").MUTATIONS
]
OF_ADAPTERS = [(broker, mutation) for broker, found in conformance.MUTATIONS.items() for mutation in found]
ALL = [*MUTATIONS, *(mutation for _, mutation in OF_ADAPTERS), *simulator.MUTATIONS]


def on(database: str) -> pytest.MarkDecorator:
    """Parametrize a test with the mutations that this database must notice."""
    chosen = [mutation for mutation in MUTATIONS if database in mutation.only_on]
    return pytest.mark.parametrize("mutation", chosen, ids=lambda mutation: mutation.name)


def notice(
    mutation: Mutation,
    app: Stepfast,
    another_app: Callable[[], Stepfast],
    monkeypatch: pytest.MonkeyPatch,
    **others: Any,
) -> None:
    mutation.apply(monkeypatch, app.database.dialect)

    with (
        receiving_http() as receiver,
        receiving_mail() as box,
        pytest.raises((AssertionError, pytest.fail.Exception, *mutation.or_with)),
    ):
        mutation.run(
            app=app, another_app=another_app, monkeypatch=monkeypatch, receiver=receiver, box=box, **others
        )


@pytest.mark.usefixtures("ledger")
@pytest.mark.only_on("sqlite")
@on("sqlite")
def test_a_broken_guard_is_noticed_on_sqlite(
    mutation: Mutation, app: Stepfast, another_app: Callable[[], Stepfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    notice(mutation, app, another_app, monkeypatch)


@pytest.mark.usefixtures("ledger")
@pytest.mark.sampled
@pytest.mark.only_on("postgresql")
@on("postgresql")
def test_a_broken_guard_is_noticed_on_postgresql(
    mutation: Mutation, app: Stepfast, another_app: Callable[[], Stepfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    notice(mutation, app, another_app, monkeypatch)


@pytest.mark.usefixtures("ledger")
@pytest.mark.sampled
@pytest.mark.only_on("mariadb")
@on("mariadb")
def test_a_broken_guard_is_noticed_on_mariadb(
    mutation: Mutation, app: Stepfast, another_app: Callable[[], Stepfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    notice(mutation, app, another_app, monkeypatch)


@pytest.mark.usefixtures("ledger")
@pytest.mark.only_on("pgbouncer")
@on("pgbouncer")
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


@pytest.mark.parametrize(
    ("broker", "mutation"),
    OF_ADAPTERS,
    indirect=["broker"],
    ids=[mutation.name for _, mutation in OF_ADAPTERS],
)
def test_a_broken_guard_is_noticed(
    mutation: Mutation, broker: Broker, runner: asyncio.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutation.apply(monkeypatch)
    monkeypatch.setattr(test_conformance, "PATIENCE", timedelta(seconds=3))

    with pytest.raises((AssertionError, pytest.fail.Exception, TransportError, LookupError, TimeoutError)):
        runner.run(asyncio.wait_for(mutation.run(broker=broker), 10))


@pytest.mark.parametrize("mutation", simulator.MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_rule_that_is_taken_out_is_missed(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    mutation.apply(monkeypatch)

    with pytest.raises((AssertionError, KeyError, pytest.fail.Exception, ExceptionGroup)):
        mutation.run()


def test_every_target_exists() -> None:
    gone = []
    for mutation in ALL:
        try:
            mutation.check_targets()
        except TargetGoneError as error:
            gone.append(str(error))

    assert not gone, "\n".join(gone)


def test_every_mutation_has_a_name_of_its_own() -> None:
    names = [mutation.name for mutation in ALL]

    assert len(names) == len(set(names))


def test_a_target_that_is_gone_is_told_with_its_mutation() -> None:
    mutation = Mutation("a commit forgets", replacing("stepfast.jobs.commit:FORGOTTEN", None), print)

    with pytest.raises(TargetGoneError, match=r"^mutation 'a commit forgets': .*FORGOTTEN does not exist"):
        mutation.check_targets()
