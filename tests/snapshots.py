"""All rows of some tables, to be brought back as often as a test needs the same beginning."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests import rows

if TYPE_CHECKING:
    from stepfast import Stepfast

ENGINE = (
    "job",
    "archive",
    "worker",
    "queue",
    "key",
    "log",
    "limit",
    "slot",
    "audit",
    "outbox",
    "alert",
    "death",
)
RUNS = ("feed", "run", "partition", "page", "seen", "raw", "quarantine", "debt")
OF_RUNS = (*(f"stepfast_{it}" for it in (*ENGINE, *RUNS)), "item")
GENERATED = {"result_kind"}  # columns that MariaDB works out itself


@dataclass(frozen=True)
class Snapshot:
    tables: dict[str, list[rows.Row]]

    @classmethod
    def taken(cls, app: Stepfast, tables: Iterable[str] = OF_RUNS) -> Snapshot:
        return cls({it: [_own(row) for row in rows.query(app, f"SELECT * FROM {it}")] for it in tables})

    def restore(self, app: Stepfast) -> None:
        own = (
            "OVERRIDING SYSTEM VALUE " if app.database.dialect.name == "postgresql" else ""
        )  # ids it gave out
        with app.transaction() as tx:
            for table, kept in self.tables.items():
                tx.execute(f"DELETE FROM {table}")
                if kept:
                    names = list(kept[0])
                    values = ", ".join(f":{it}" for it in names)
                    tx.execute_many(f"INSERT INTO {table} ({', '.join(names)}) {own}VALUES ({values})", kept)


def _own(row: rows.Row) -> rows.Row:
    return {name: value for name, value in row.items() if name not in GENERATED}
