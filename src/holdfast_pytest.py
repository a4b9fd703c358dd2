"""The pytest plugin. It stands outside the package, so that pytest loads nothing of Holdfast before a test asks for it.

    holdfast_app            an application on a database of its own, which is empty when the test begins
    holdfast_drain          run its jobs until nothing is ready
    holdfast_clock          its time, to be moved
    holdfast_inline         jobs run where they are enqueued
    holdfast_database_url   where all of that happens

The setting `holdfast_app = shop.jobs:app` names your application: it then works on the test's database in every test.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from holdfast import Holdfast
    from holdfast.testing import Clock, Report
    from holdfast.testing.databases import Corner


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("holdfast_app", "the application under test, as module:app", default="")


def pytest_configure(config: pytest.Config) -> None:
    if config.getini("holdfast_app"):
        config.pluginmanager.register(EveryTest(), "holdfast-every-test")


class EveryTest:
    """No test of a suite that names its application may reach the database that the application was made for."""

    @pytest.fixture(autouse=True)
    def _holdfast_on_test_database(self, holdfast_app: Holdfast) -> None:
        pass


@pytest.fixture
def holdfast_database_url(request: pytest.FixtureRequest) -> str:
    """A database with Holdfast's tables and no rows: a new SQLite file, or what HOLDFAST_TEST_DATABASE_URL leads to."""
    if os.environ.get("HOLDFAST_TEST_DATABASE_URL", "sqlite:").startswith("sqlite:"):
        from holdfast.testing.databases import sqlite_copy

        template: Path = request.getfixturevalue("_holdfast_template")
        folder: Path = request.getfixturevalue("tmp_path")
        return sqlite_copy(template, folder)
    corner: Corner = request.getfixturevalue("_holdfast_corner")
    corner.empty()
    return corner.url


@pytest.fixture(scope="session")
def _holdfast_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from holdfast.testing.databases import sqlite_template

    return sqlite_template(tmp_path_factory.mktemp("holdfast"))


@pytest.fixture(scope="session")
def _holdfast_corner() -> Iterator[Corner]:
    from holdfast.testing.databases import corner

    with corner(os.environ["HOLDFAST_TEST_DATABASE_URL"]) as made:
        yield made


@pytest.fixture
def holdfast_app(holdfast_database_url: str, pytestconfig: pytest.Config) -> Iterator[Holdfast]:
    """The application of the setting `holdfast_app`, or a new one; on the test's database until the test ends."""
    from holdfast.testing.databases import named_app, on_database

    target: str = pytestconfig.getini("holdfast_app")
    with on_database(named_app(target) if target else None, holdfast_database_url) as app:
        yield app


@pytest.fixture
def holdfast_drain(holdfast_app: Holdfast) -> Callable[..., Report]:
    """`holdfast_drain()`: what `holdfast.testing.drain` does, for `holdfast_app`."""
    from holdfast.testing import drain

    return partial(drain, holdfast_app)


@pytest.fixture
def holdfast_clock(holdfast_app: Holdfast) -> Iterator[Clock]:
    """The time of `holdfast_app`: advance it, travel, freeze."""
    from holdfast.testing import clock

    with clock(holdfast_app) as time:
        yield time


@pytest.fixture
def holdfast_inline(holdfast_app: Holdfast) -> Iterator[None]:
    """Jobs of `holdfast_app` run where they are enqueued."""
    from holdfast.testing import inline

    with inline(holdfast_app):
        yield
