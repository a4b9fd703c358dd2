"""Starts beside that of a step: of the other requests that it makes, and of a command that asks the same source.

Who asks ahead of time gets the places that are next in the stream, and begins each when its time has come: so a rate
holds in any window, though nobody claims a job for each request. Slots are looked at and not taken: what is under way
beside its step is bounded by the room that there was, and may exceed a concurrency for a moment by as much.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.clock import micros
from stepfast.database.statement import sql
from stepfast.limits.limit import limit_id
from stepfast.limits.release import renumbered
from stepfast.limits.rows import LimitRow, lock_limits, write_limits
from stepfast.limits.slots import count_slots

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from stepfast.database.connection import Transaction
    from stepfast.limits.limit import Limit

NOW = sql("SELECT {now}")


def reserve(
    tx: Transaction, limits: Sequence[Limit], scope: str, most: int, within: timedelta
) -> list[float]:
    """In how many seconds each of up to `most` may start; those that would wait longer than `within` get no place."""
    named = {limit_id(it, scope, None): it for it in limits}
    slots = [name for name, it in named.items() if it.slots]
    if slots:
        taken = count_slots(tx, slots)
        most = min(most, *(named[name].slots - taken.get(name, 0) for name in slots))
    rates = sorted(name for name, it in named.items() if it.gap)
    if most <= 0 or not rates:
        return [0.0] * max(0, most)
    known = lock_limits(tx, rates)
    now = int(tx.first(NOW))
    rows = [renumbered(known[name], named[name], now) for name in rates]
    rows, starts = places(rows, now, most, micros(within))
    write_limits(tx, rows)
    return [(it - now) / 1e6 for it in starts]


def places(rows: Sequence[LimitRow], now: int, most: int, within: int) -> tuple[list[LimitRow], list[int]]:
    """The next starts that all of these rates allow, and the rates after them. Pure."""
    after, at = list(rows), now
    starts: list[int] = []
    while len(starts) < most:
        at = max(at, *(it.arrival_at - it.tolerance for it in after))
        if at - now > within:
            break
        after = [it._replace(arrival_at=max(it.arrival_at, at) + it.gap) for it in after]
        starts.append(at)
    return after, starts
