"""Async tests, and the fixture `broker`: a test that asks for it runs on each broker.

A broker and its links are opened once per module: opening a link to Service Bus takes half a second. Each test makes
queues of its own.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from tests.conftest import DATABASES
from tests.transports.brokers import BROKERS, Broker, Servers


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A coroutine function runs on the loop of its module, where the links are open."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    arguments = {
        name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.function).parameters
    }
    runner: asyncio.Runner = pyfuncitem._request.getfixturevalue("runner")
    runner.run(pyfuncitem.function(**arguments))
    return True


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    chosen_already = any("broker" in it.args[0] for it in metafunc.definition.iter_markers("parametrize"))
    if "broker" in metafunc.fixturenames and not chosen_already:
        chosen = metafunc.config.getoption("databases")
        names = [
            name
            for name, it in BROKERS.items()
            if it.offered() and (it.database is None or it.database in chosen)
        ]
        metafunc.parametrize("broker", names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as found:
        yield found


@pytest.fixture(scope="module")
def broker(
    request: pytest.FixtureRequest, runner: asyncio.Runner, pytestconfig: pytest.Config
) -> Iterator[Broker]:
    """A broker that runs, and a transport that is open."""
    stack = AsyncExitStack()
    made = BROKERS[request.param](
        Servers(pytestconfig.stash[DATABASES], lambda: request.getfixturevalue("azurite"))
    )

    async def begin() -> Broker:
        await stack.enter_async_context(made)
        return made

    try:
        yield runner.run(begin())
    finally:
        runner.run(stack.aclose())
