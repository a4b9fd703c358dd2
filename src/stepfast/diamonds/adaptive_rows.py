"""The pace in the database: one row per address, read by all, changed under its lock."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from stepfast.database.statement import sql
from stepfast.diamonds.adaptive import Pace
from stepfast.diamonds.schema import saying_so
from stepfast.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast import Stepfast, Transaction

_COLUMNS = "SELECT gap, changed_at, arrival, quiet_until, {now} FROM nivoda_pace WHERE id = :id"
READ = sql(_COLUMNS)
LOCK = sql(_COLUMNS + " {for_update}")
CLOCK = sql("SELECT {now}")
BEGIN = sql(
    "INSERT INTO nivoda_pace (id, gap, changed_at, arrival, quiet_until) VALUES (:id, 0, 0, 0, 0) {keep_existing}"
)
WRITE = sql("""
    UPDATE nivoda_pace SET gap = :gap, changed_at = :changed_at, arrival = :arrival, quiet_until = :quiet_until
     WHERE id = :id
""")


class PaceInDatabase:
    """For all processes that ask the same address."""

    def __init__(self, app: Stepfast, url: str) -> None:
        self._app = app
        self._id = hashlib.blake2b(url.encode(), digest_size=16).hexdigest()

    def read(self) -> tuple[Pace, int]:
        with self._app.reading() as tx:
            try:
                found = tx.rows(READ, id=self._id)
            except DatabaseError as error:
                raise saying_so(error) from error
            return _read(found[0]) if found else (Pace(), _clock(tx))

    def change(self, decide: Callable[[Pace, int], Pace]) -> None:
        with self._app.transaction() as tx:
            tx.run(BEGIN, id=self._id)
            pace, now = _read(tx.rows(LOCK, id=self._id)[0])
            new = decide(pace, now)
            tx.run(
                WRITE,
                id=self._id,
                gap=new.gap,
                changed_at=new.changed_at,
                arrival=new.arrival,
                quiet_until=new.quiet_until,
            )


def _read(row: Sequence[Any]) -> tuple[Pace, int]:
    gap, changed_at, arrival, quiet_until, now = (int(it) for it in row)
    return Pace(gap, changed_at, arrival, quiet_until), now


def _clock(tx: Transaction) -> int:
    return int(tx.first(CLOCK) or 0)
