"""The application under test, on one database, and a table of the user's own beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import pytest

from devtools.pgbouncer import PgBouncer, PoolMode
from devtools.server import Server
from stepfast import Stepfast
from tests.support.databases import memory


@pytest.fixture
def app(database_url: str) -> Iterator[Stepfast]:
    with closing(Stepfast(database_url)) as app:
        yield app


@pytest.fixture
def another_app(database_url: str) -> Iterator[Callable[[], Stepfast]]:
    """More applications on the same database, as other processes would have them."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Stepfast(database_url)))


@pytest.fixture
def ledger(database_url: str) -> Iterator[None]:
    """A table of the user's own, for effects."""
    with closing(Stepfast(database_url)) as app:
        connection = app.database.connect()
        connection.execute(
            "CREATE TABLE ledger (id VARCHAR(50) NOT NULL PRIMARY KEY, amount INTEGER NOT NULL)"
        )
        connection.close()
        yield


@pytest.fixture
def in_mode(server: Server, database_url: str) -> Iterator[Callable[[PoolMode], str]]:
    """`in_mode("session")`: the URL of the same database behind a pooler in that mode."""
    with ExitStack() as stack:

        def start(mode: PoolMode) -> str:
            pooler = stack.enter_context(Server(PgBouncer(server, mode), memory()))
            return pooler.url(urlsplit(database_url).path.removeprefix("/"))

        yield start
