"""The pytest plugin. It stands outside the package, so that pytest loads nothing of Stepfast before a test asks for it.

    stepfast_app            an application on a database of its own, which is empty when the test begins
    stepfast_drain          run its jobs until nothing is ready
    stepfast_clock          move its time
    stepfast_inline         jobs run where they are enqueued
    stepfast_database_url   the URL of that database

The setting `stepfast_app = shop.jobs:app` names your application: it then works on the test's database in every test.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from stepfast import Stepfast
    from stepfast.testing import Clock, Report
    from stepfast.testing.databases import ScratchSchema


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("stepfast_app", "the application under test, as module:app", default="")


def pytest_configure(config: pytest.Config) -> None:
    if config.getini("stepfast_app"):
        config.pluginmanager.register(EveryTest(), "stepfast-every-test")


class EveryTest:
    """In a suite that names its application, no test may reach the database that the application was made for."""

    @pytest.fixture(autouse=True)
    def _stepfast_on_test_database(self, stepfast_app: Stepfast) -> None:
        pass


@pytest.fixture
def stepfast_database_url(request: pytest.FixtureRequest) -> str:
    """A database with Stepfast's tables and no rows: a new SQLite file, or a schema on the server of STEPFAST_TEST_DATABASE_URL."""
    if os.environ.get("STEPFAST_TEST_DATABASE_URL", "sqlite:").startswith("sqlite:"):
        from stepfast.testing.databases import sqlite_copy

        template: Path = request.getfixturevalue("_stepfast_template")
        folder: Path = request.getfixturevalue("tmp_path")
        return sqlite_copy(template, folder)
    scratch_schema: ScratchSchema = request.getfixturevalue("_stepfast_scratch_schema")
    scratch_schema.empty()
    return scratch_schema.url


@pytest.fixture(scope="session")
def _stepfast_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from stepfast.testing.databases import sqlite_template

    return sqlite_template(tmp_path_factory.mktemp("stepfast"))


@pytest.fixture(scope="session")
def _stepfast_scratch_schema() -> Iterator[ScratchSchema]:
    from stepfast.testing.databases import scratch_schema

    with scratch_schema(os.environ["STEPFAST_TEST_DATABASE_URL"]) as made:
        yield made


@pytest.fixture
def stepfast_app(stepfast_database_url: str, pytestconfig: pytest.Config) -> Iterator[Stepfast]:
    """The application of the setting `stepfast_app`, or a new one; on the test's database until the test ends."""
    from stepfast.testing.databases import named_app, on_database

    target: str = pytestconfig.getini("stepfast_app")
    with on_database(named_app(target) if target else None, stepfast_database_url) as app:
        yield app


@pytest.fixture
def stepfast_drain(stepfast_app: Stepfast) -> Callable[..., Report]:
    """`stepfast_drain()`: what `stepfast.testing.drain` does, for `stepfast_app`."""
    from stepfast.testing import drain

    return partial(drain, stepfast_app)


@pytest.fixture
def stepfast_clock(stepfast_app: Stepfast) -> Iterator[Clock]:
    """The time of `stepfast_app`: advance it, travel, freeze."""
    from stepfast.testing import clock

    with clock(stepfast_app) as time:
        yield time


@pytest.fixture
def stepfast_inline(stepfast_app: Stepfast) -> Iterator[None]:
    """Jobs of `stepfast_app` run where they are enqueued."""
    from stepfast.testing import inline

    with inline(stepfast_app):
        yield
