"""How each kind of job has fared lately: how many, how long, how often in vain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.clock import micros
from holdfast.database.statement import sql

if TYPE_CHECKING:
    from datetime import timedelta

    from holdfast.database.connection import Transaction


@dataclass(frozen=True)
class KindStatistics:
    kind: str
    done: int
    dead: int
    cancelled: int
    success_rate: float | None  # done of done and dead
    average_seconds: float | None  # of the last step of jobs that are done
    longest_seconds: float | None
    average_wait_seconds: float | None  # from ready to leased, of that step


ENDED = sql("""
    SELECT kind, state, count(*), avg(finished_at - leased_at), max(finished_at - leased_at), avg(leased_at - ready_at)
      FROM holdfast_archive
     WHERE state IN ('done', 'dead', 'cancelled') AND finished_at >= {now} - :span
     GROUP BY kind, state ORDER BY kind
""")


def kind_statistics(tx: Transaction, span: timedelta) -> list[KindStatistics]:
    """Jobs that ended in the last `span`, by kind; those that retention has forgotten do not count."""
    rows = tx.rows(ENDED, span=micros(span))
    ended = {(kind, state): int(count) for kind, state, count, *_ in rows}
    spans = {
        kind: [None if it is None else float(it) / 1e6 for it in rest]
        for kind, state, _, *rest in rows
        if state == "done"
    }
    return [
        _statistics(kind, ended, spans.get(kind, [None, None, None]))
        for kind in dict.fromkeys(row[0] for row in rows)
    ]


def _statistics(kind: str, ended: dict[tuple[str, str], int], spans: list[float | None]) -> KindStatistics:
    done, dead = ended.get((kind, "done"), 0), ended.get((kind, "dead"), 0)
    rate = done / (done + dead) if done + dead else None
    return KindStatistics(kind, done, dead, ended.get((kind, "cancelled"), 0), rate, *spans)
