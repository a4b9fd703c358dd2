"""The application under test, on one database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest

from stepfast import Stepfast
from tests.support.command_line import cli

__all__ = ["another_app", "app", "cli"]


@pytest.fixture
def app(database_url: str) -> Iterator[Stepfast]:
    with closing(Stepfast(database_url)) as app:
        yield app


@pytest.fixture
def another_app(database_url: str) -> Iterator[Callable[[], Stepfast]]:
    """More applications on the same database, as other processes would have them."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(closing(Stepfast(database_url)))
