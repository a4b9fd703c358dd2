"""The rows of limits, many at a time: a claim of a thousand jobs may ask for a thousand of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepfast.database.lists import as_document
from stepfast.database.statement import sql

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction

_TABLE = "JSON_TABLE(:rows, '$[*]' COLUMNS ({columns})) AS given"

ENSURE = sql(
    "INSERT INTO stepfast_limit (id) SELECT value FROM json_each(:rows) WHERE true ON CONFLICT DO NOTHING",
    postgresql="INSERT INTO stepfast_limit (id) SELECT unnest(CAST(:ids AS TEXT[])) ON CONFLICT DO NOTHING",
    mariadb="INSERT INTO stepfast_limit (id) SELECT given.id FROM "
    + _TABLE.format(columns="id VARCHAR(200) PATH '$'")
    + " ON DUPLICATE KEY UPDATE id = stepfast_limit.id",
)

LOCK = sql(
    "SELECT id, arrival_at, gap, tolerance, slots, due_at FROM stepfast_limit WHERE id {any_of:ids} ORDER BY id {for_update}"
)

_COLUMNS = ("id", "arrival_at", "gap", "tolerance", "slots", "due_at")
_EXTRACTED = [f"json_extract(value, '$[{n}]')" for n in range(len(_COLUMNS))]
_NEW = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[1:])
_INSERT = f"INSERT INTO stepfast_limit ({', '.join(_COLUMNS)})"
WRITE = sql(
    f"{_INSERT} SELECT {', '.join(_EXTRACTED)} "
    f"FROM json_each(:rows) WHERE true ON CONFLICT (id) DO UPDATE SET {_NEW}",
    postgresql=f"{_INSERT} SELECT * FROM unnest(CAST(:ids AS TEXT[]), CAST(:arrival_at AS BIGINT[]), CAST(:gap AS BIGINT[]), "
    f"CAST(:tolerance AS BIGINT[]), CAST(:slots AS INTEGER[]), CAST(:due_at AS BIGINT[])) ON CONFLICT (id) DO UPDATE SET {_NEW}",
    mariadb=f"{_INSERT} SELECT * FROM "
    + _TABLE.format(
        columns=", ".join(
            f"{name} {'VARCHAR(200)' if name == 'id' else 'BIGINT'} PATH '$[{n}]'"
            for n, name in enumerate(_COLUMNS)
        )
    )
    + " ON DUPLICATE KEY UPDATE "
    + ", ".join(f"{name} = VALUES({name})" for name in _COLUMNS[1:]),
)


class LimitRow(NamedTuple):
    id: str
    arrival_at: int
    gap: int
    tolerance: int
    slots: int
    due_at: int | None


def lock_limits(tx: Transaction, ids: list[str]) -> dict[str, LimitRow]:
    """The rows of these limits, ours until the commit; made first where they are missing."""
    known = _locked(tx, ids)
    if missing := [limit_id for limit_id in ids if limit_id not in known]:
        if tx.takes_lists:
            tx.run(ENSURE, ids=missing)
        else:
            tx.run(ENSURE, rows=as_document(missing))
        if tx.dialect.name == "sqlite":  # one writer: nobody else can have made them
            known |= {limit_id: LimitRow(limit_id, 0, 0, 0, 0, None) for limit_id in missing}
        else:
            known |= _locked(tx, missing)
    return known


def _locked(tx: Transaction, ids: list[str]) -> dict[str, LimitRow]:
    return {row[0]: LimitRow(*row) for row in tx.rows(LOCK, ids=ids)}


def write_limits(tx: Transaction, rows: Sequence[LimitRow]) -> None:
    """What has changed; the rows are locked."""
    if not rows:
        return
    if tx.takes_lists:
        ids, *columns = (list(column) for column in zip(*rows, strict=True))
        tx.run(WRITE, ids=ids, **dict(zip(_COLUMNS[1:], columns, strict=True)))
    else:
        tx.run(WRITE, rows=as_document(rows))
