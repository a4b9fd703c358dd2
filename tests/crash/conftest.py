"""Fixtures of the crash tests: the sample of crash points, and worker processes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stepfast import Stepfast
from tests.crash.daily_sample import Sample
from tests.crash.workers import Fleet


@pytest.fixture
def sample(database_kind: str, pytestconfig: pytest.Config) -> Sample:
    """Which crash points to try."""
    return Sample(database_kind, everything=pytestconfig.getoption("chaos"))


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """Worker processes on one database."""
    with closing(Stepfast(database_url)) as app:
        yield from fleet_on(app, tmp_path, database_url)


def fleet_on(app: Stepfast, folder: Path, url: str) -> Iterator[Fleet]:
    """A fleet until the test ends; the logs of its workers are shown if the test failed."""
    make_effect_table(app)
    fleet = Fleet(app, folder, url)
    try:
        yield fleet
    finally:
        fleet.close()
        for worker in fleet.workers:
            sys.stdout.write(f"--- {worker.log.name}\n{worker.words()}")


def make_effect_table(app: Stepfast) -> None:
    connection = app.database.connect()
    connection.execute("CREATE TABLE effect (job_id VARCHAR(128) NOT NULL, step INTEGER NOT NULL)")
    connection.close()
