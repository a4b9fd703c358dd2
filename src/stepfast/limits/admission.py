"""Let claimed steps start, as far as their limits allow; the others are held.

All of a claim asks at once, in a short transaction of its own: the rows of its limits are locked in the order
of their ids, so whoever asks next sees what was given. A step that finds no room is put aside in state `held`,
out of the way of the steps behind it, and comes back when its limit has room (see `release`). A crash between
asking and starting wastes what was given; nothing is ever given twice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from stepfast.clock import new_fence
from stepfast.database.lists import as_document
from stepfast.database.statement import sql
from stepfast.limits.limit import arrival_after, room_in_rate
from stepfast.limits.release import LOOK_SOON, let_go, renumbered
from stepfast.limits.rows import LimitRow, lock_limits, write_limits
from stepfast.limits.slots import count_slots, drop_stale_slots, take_slots

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.limits.limit import Limit

NOW = sql("SELECT {now}")

_HOLD = """
    UPDATE stepfast_job {given}
       SET state = 'held', held_by = {limit}, owner = NULL, leased_by = NULL, lease_until = NULL,
           fence = :new_fence, committed_fence = :fence, updated_at = {{now}}
"""
# Each job waits for a limit of its own: many rows, many values, one statement.
HOLD = sql(
    _HOLD.format(given="", limit="json_extract(given.value, '$[1]')")
    + """ FROM json_each(:rows) AS given
     WHERE stepfast_job.id = json_extract(given.value, '$[0]') AND fence = :fence AND cancel_at IS NULL
    """,
    # No join on PostgreSQL: it could be turned around (see steps.acknowledge).
    postgresql=_HOLD.format(given="", limit="CAST(:limits AS JSONB) ->> id")
    + " WHERE id = ANY(CAST(:ids AS TEXT[])) AND fence = :fence AND cancel_at IS NULL",
    mariadb="""
    UPDATE JSON_TABLE(:rows, '$[*]' COLUMNS (id VARCHAR(128) PATH '$[0]', held_by VARCHAR(200) PATH '$[1]')) AS given
           STRAIGHT_JOIN stepfast_job ON stepfast_job.id = given.id
       SET stepfast_job.state = 'held', stepfast_job.held_by = given.held_by, owner = NULL, leased_by = NULL,
           lease_until = NULL, fence = :new_fence, committed_fence = :fence, updated_at = {now}
     WHERE fence = :fence AND cancel_at IS NULL
    """,
)


class Wanted(NamedTuple):
    """A claimed step, and the limits it has to pass."""

    job_id: str
    limits: tuple[tuple[str, Limit], ...]


@dataclass
class Meter:
    """One limit while a claim asks: how much room is left, how much was given."""

    limit: Limit
    room: int
    given: int = 0
    refused: bool = False


@dataclass(frozen=True)
class Admission:
    """Who may start, and what the others wait for."""

    admitted: list[str] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)  # job → limit


def decide(wanted: Sequence[Wanted], meters: Mapping[str, Meter]) -> Admission:
    """In the order of the claim: who finds room in all of its limits takes it. Pure."""
    answer = Admission()
    for it in wanted:
        full = next((limit_id for limit_id, _ in it.limits if meters[limit_id].room <= 0), None)
        if full is not None:
            meters[full].refused = True
            answer.held[it.job_id] = full
            continue
        for limit_id, _ in it.limits:
            meters[limit_id].room -= 1
            meters[limit_id].given += 1
        answer.admitted.append(it.job_id)
    return answer


def admit(tx: Transaction, wanted: Sequence[Wanted], fence: int) -> Admission:
    """Ask for a claim whose jobs all carry `fence`; what finds no room is held when this commits."""
    limits = {limit_id: limit for it in wanted for limit_id, limit in it.limits}
    known = lock_limits(tx, sorted(limits))
    now = int(tx.first(NOW))
    counted = [limit_id for limit_id, limit in limits.items() if limit.slots]
    taken = _taken(tx, counted, limits) if counted else {}
    meters = {
        limit_id: Meter(
            limit,
            limit.slots - taken.get(limit_id, 0)
            if limit.slots
            else room_in_rate(
                now, renumbered(known[limit_id], limit, now).arrival_at, limit.gap, limit.tolerance
            ),
        )
        for limit_id, limit in limits.items()
    }
    answer = decide(wanted, meters)
    _write_limits(tx, known, meters, now)
    admitted = set(answer.admitted)
    take_slots(
        tx,
        [
            (it.job_id, limit_id)
            for it in wanted
            if it.job_id in admitted
            for limit_id, limit in it.limits
            if limit.slots
        ],
        fence,
    )
    if answer.held:
        _hold(tx, answer.held, fence)
    return answer


def _taken(tx: Transaction, counted: list[str], limits: Mapping[str, Limit]) -> dict[str, int]:
    taken = count_slots(tx, counted)
    full = [limit_id for limit_id in counted if taken.get(limit_id, 0) >= limits[limit_id].slots]
    if full and drop_stale_slots(tx, full):
        taken = count_slots(tx, counted)
    return taken


def _write_limits(
    tx: Transaction, known: Mapping[str, LimitRow], meters: Mapping[str, Meter], now: int
) -> None:
    changed = []
    for limit_id, meter in meters.items():
        before, limit = known[limit_id], meter.limit
        arrival, due = renumbered(before, limit, now).arrival_at, before.due_at
        if limit.gap:
            arrival = arrival_after(now, arrival, limit.gap, meter.given)
        if meter.refused:
            soon = arrival - limit.tolerance if limit.gap else now + LOOK_SOON
            due = soon if due is None else min(due, soon)
        elif due is not None and meter.room > 0:
            let_go(
                tx, limit_id, meter.room
            )  # there is more room than whoever was held knew: the limit was raised
        row = LimitRow(limit_id, arrival, limit.gap, limit.tolerance, limit.slots, due)
        if row != before:
            changed.append(row)
    write_limits(tx, changed)


def _hold(tx: Transaction, held: Mapping[str, str], fence: int) -> None:
    mine = {"fence": fence, "new_fence": new_fence()}
    if tx.takes_lists:
        tx.run(HOLD, **mine, ids=list(held), limits=as_document(dict(held)))
    else:
        tx.run(HOLD, **mine, rows=as_document(list(held.items())))
