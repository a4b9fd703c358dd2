"""`stepfast migrate` is killed before and after every statement; the next one brings the tables up.

Stepfast has one migration so far: a made-up component beside it has two.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from functools import partial
from typing import TYPE_CHECKING

from stepfast import Stepfast
from stepfast.database.drivers import open_database
from stepfast.database.migrate import migrate
from tests.crash.conftest import make_effect_table
from tests.crash.daily_sample import SEED, Sample
from tests.crash.kill_points import die_at, kill_points, recorded
from tests.crash.recovery import RecoveringWorker, check_promises, expected_ends
from tests.crash.setup import work
from tests.support.library_component import LIBRARY

if TYPE_CHECKING:
    from tests.support import rows

NewDatabase = Callable[[], AbstractContextManager[str]]

STRUCTURE = {
    "sqlite": "SELECT type, name, sql FROM sqlite_master ORDER BY type, name",
    "postgresql": "SELECT table_name AS a, column_name AS b FROM information_schema.columns WHERE table_schema = 'public'"
    " UNION ALL SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1, 2",
    "mariadb": "SELECT table_name AS a, column_name AS b FROM information_schema.columns WHERE table_schema = database()"
    " UNION ALL SELECT index_name, column_name FROM information_schema.statistics WHERE table_schema = database()"
    " ORDER BY 1, 2",
}


def test_a_migration_may_die_at_any_point(new_database: NewDatabase, sample: Sample) -> None:
    with new_database() as url:
        points = recorded(partial(_migrate, url), lambda: None)
        whole = _structure(url)
    # What follows depends on nothing but what is left: the same has been lived through once.
    lived_through: list[list[rows.Row]] = []

    for point in sample.of("migrate", kill_points(points), most=6):
        with new_database() as url:
            die_at(point, partial(_migrate, url))
            where = f"{point} of {len(points)} (STEPFAST_CRASH_SEED={SEED})"
            left = _structure(url)

            _migrate(url)

            assert _structure(url) == whole, where
            if left not in lived_through:
                lived_through.append(left)
                _live_through_a_job(url)


def _migrate(url: str) -> None:
    with closing(open_database(url)) as database:
        migrate(database)
        migrate(database, LIBRARY)


def _structure(url: str) -> list[rows.Row]:
    """Every table, column and index, and which migrations are written down."""
    with closing(open_database(url)) as database, database.reading() as tx:
        made = tx.query(STRUCTURE[database.dialect.name])
        begun = any("stepfast_schema" in it.values() for it in made)
        return [
            *made,
            *(
                tx.query("SELECT component, version, name FROM stepfast_schema ORDER BY 1, 2")
                if begun
                else ()
            ),
        ]


def _live_through_a_job(url: str) -> None:
    with closing(Stepfast(url)) as app:
        make_effect_table(app)
        app.job()(work).enqueue(n=1, steps=2)
        expected = expected_ends(app)
        RecoveringWorker(app).finish_everything()
        check_promises(app, expected)
