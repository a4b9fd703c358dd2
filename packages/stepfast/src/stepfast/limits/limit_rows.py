"""Limits in the database: admit claimed steps, hold the others, and release them when there is room.

All steps of a claim ask at once, in a short transaction of its own: the rows of its limits are locked in the order of
their ids, so the next claim sees what was given. A step that finds no room is put aside in state `held`, out of the way of
the steps behind it. It is released when a slot is freed, or when the time of a rate has come (`Promotion` in `worker/maintenance.py`), and asks again when it is
claimed: nothing is reserved for a job that is cancelled meanwhile. A crash between asking and starting wastes what was
given; nothing is ever given twice.

A concurrency limit has one row, a slot, for each step that runs. A slot belongs to a step's fence. When the fence has
moved on (the step ended, its worker died and the job was rescued, its payload was replaced), the slot is free, also where
its row was not deleted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from stepfast.clock import micros, new_fence
from stepfast.database.connection import as_document
from stepfast.database.statement import sql
from stepfast.limits.limit import Limit, arrival_after, is_of, room_in_rate
from stepfast.limits.limit import limit_id as id_of
from stepfast.suspects import READY_STATE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import timedelta

    from stepfast.database.connection import Transaction


class LimitRow(NamedTuple):
    """The row of a limit, or of one value of the argument that it is taken by."""

    id: str
    arrival_at: int
    gap: int
    tolerance: int
    slots: int
    due_at: int | None


class LimitedStep(NamedTuple):
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
class AdmittedSteps:
    """Which steps may start, and the limits that the others wait for."""

    admitted: list[str] = field(default_factory=list)
    held: dict[str, str] = field(default_factory=dict)  # job → limit


# --- Admit the steps of a claim.

# Microseconds after which a full limit is looked at, even if no slot was freed.
LOOK_AGAIN: Final = 30_000_000

# Microseconds after a job was held: a step that freed its slot in that very moment has not seen it.
LOOK_SOON: Final = 1_000_000

ADMISSION_TIME = sql("SELECT {now}")

_HOLD = """
    UPDATE stepfast_job {given}
       SET state = 'held', held_by = {limit}, owner = NULL, leased_by = NULL, lease_until = NULL,
           fence = :new_fence, committed_fence = :fence, updated_at = {{now}}
"""

# Each job waits for a limit of its own: many rows, many values, one statement.
HOLD_JOBS = sql(
    _HOLD.format(given="", limit="json_extract(given.value, '$[1]')")
    + """ FROM json_each(:rows) AS given
     WHERE stepfast_job.id = json_extract(given.value, '$[0]') AND fence = :fence AND cancel_at IS NULL
    """,
    # No join on PostgreSQL: it could be turned around (see MOVE_DONE_JOBS).
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


def admit(tx: Transaction, wanted: Sequence[LimitedStep], fence: int) -> AdmittedSteps:
    """Admit steps of a claim, which all carry `fence`; a step that finds no room is held when this commits."""
    limits = {limit_id: limit for step in wanted for limit_id, limit in step.limits}
    known = lock_limits(tx, sorted(limits))
    now = int(tx.first(ADMISSION_TIME))
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
    answer = decide_admission(wanted, meters)
    _write_limits(tx, known, meters, now)
    admitted = set(answer.admitted)
    take_slots(
        tx,
        [
            (step.job_id, limit_id)
            for step in wanted
            if step.job_id in admitted
            for limit_id, limit in step.limits
            if limit.slots
        ],
        fence,
    )
    if answer.held:
        _hold(tx, answer.held, fence)
    return answer


def decide_admission(wanted: Sequence[LimitedStep], meters: Mapping[str, Meter]) -> AdmittedSteps:
    """In the order of the claim: a step that finds room in all of its limits takes it. Pure."""
    answer = AdmittedSteps()
    for step in wanted:
        full = next((limit_id for limit_id, _ in step.limits if meters[limit_id].room <= 0), None)
        if full is not None:
            meters[full].refused = True
            answer.held[step.job_id] = full
            continue
        for limit_id, _ in step.limits:
            meters[limit_id].room -= 1
            meters[limit_id].given += 1
        answer.admitted.append(step.job_id)
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
            release_held(tx, limit_id, meter.room)  # the limit was raised since they were held
        row = LimitRow(limit_id, arrival, limit.gap, limit.tolerance, limit.slots, due)
        if row != before:
            changed.append(row)
    write_limits(tx, changed)


def _hold(tx: Transaction, held: Mapping[str, str], fence: int) -> None:
    mine = {"fence": fence, "new_fence": new_fence()}
    if tx.takes_columns:
        tx.run(HOLD_JOBS, **mine, ids=list(held), limits=as_document(dict(held)))
    else:
        tx.run(HOLD_JOBS, **mine, rows=as_document(list(held.items())))


def renumbered(row: LimitRow, limit: Limit, now: int) -> LimitRow:
    """The row with the numbers that its limit has now. A wider one need not wait for what a narrower one promised."""
    if (row.gap, row.tolerance, row.slots) == (limit.gap, limit.tolerance, limit.slots):
        return row
    arrival = min(row.arrival_at, now + limit.tolerance + limit.gap) if limit.gap else 0
    return LimitRow(row.id, arrival, limit.gap, limit.tolerance, limit.slots, row.due_at)


# --- Release held jobs: when a slot is freed, and when a limit is due.

# The limits of a kind of job in a queue; None: the kind is not known here.
Declared = Callable[[str, str], list[tuple[str, Limit]] | None]

BATCH: Final = 200  # limits of one look

MOST_AT_ONCE: Final = 1_000  # jobs of one limit in one sweep

LIMITS_WAITED_FOR = sql(
    "SELECT DISTINCT held_by FROM stepfast_job WHERE held_by {any_of:limits} AND state = 'held'"
)

ANY_HELD_JOB = sql(
    "SELECT kind, queue FROM stepfast_job WHERE held_by = :limit_id AND state = 'held' LIMIT 1"
)

HELD_JOBS = sql("""
    SELECT id, queue FROM stepfast_job
     WHERE held_by = :limit_id AND state = 'held'
     ORDER BY priority DESC, ready_at, id
     LIMIT :most
    {skip_locked}
""")

RELEASE_HELD_JOBS = sql(f"""
    UPDATE stepfast_job
       SET state = {READY_STATE}, held_by = NULL, updated_at = {{now}}
     WHERE id {{any_of:ids}} AND state = 'held'
""")

DUE_LIMITS = sql("""
    SELECT id, arrival_at, gap, tolerance, slots, due_at, {now} FROM stepfast_limit
     WHERE due_at IS NOT NULL AND due_at <= {now}
     ORDER BY due_at LIMIT :limit {skip_locked}
""")

RECORD_LOOK = sql("""
    UPDATE stepfast_limit
       SET due_at = :due_at, arrival_at = :arrival_at, gap = :gap, tolerance = :tolerance, slots = :slots
     WHERE id = :id
""")

LOOK_AT_ALL_LIMITS = sql("UPDATE stepfast_limit SET due_at = {now} WHERE due_at > {now}")

# The slots of these jobs are free without any step having freed them: their worker is dead.
LOOK_AT_LIMITS_OF_JOBS = sql("""
    UPDATE stepfast_limit SET due_at = {now}
     WHERE due_at IS NOT NULL AND id IN (SELECT limit_id FROM stepfast_slot WHERE job_id {any_of:ids})
""")


def pass_on_slots(tx: Transaction, job_ids: list[str], fence: int, freed: Mapping[str, int]) -> None:
    """Free the slots of steps that end in this transaction, and release as many held jobs (`freed`, of each limit)."""
    free_slots(tx, job_ids, fence)
    waited_for = {row[0] for row in tx.rows(LIMITS_WAITED_FOR, limits=list(freed))}
    for limit_id in sorted(waited_for):
        release_held(tx, limit_id, freed[limit_id])


def release_held(tx: Transaction, limit_id: str, most: int) -> int:
    """Make up to `most` of the jobs that this limit holds ready, the most urgent first; returns how many."""
    rows = tx.rows(HELD_JOBS, limit_id=limit_id, most=most)
    if rows:
        tx.run(RELEASE_HELD_JOBS, ids=[row[0] for row in rows])
        tx.wakes.update(row[1] for row in rows)
    return len(rows)


def release_due(tx: Transaction, declared: Declared | None = None, limit: int = BATCH) -> int:
    """Release the jobs that due limits have room for; returns how many limits were looked at.

    `declared` finds the limits of a kind of job as they are now: a job that was held by other numbers, or by a limit that
    is gone, does not wait for them any longer.
    """
    due = [(LimitRow(*row[:6]), int(row[6])) for row in tx.rows(DUE_LIMITS, limit=limit)]
    counted = [row.id for row, _ in due if row.slots]
    if counted:
        drop_stale_slots(tx, counted)
    taken = count_slots(tx, counted) if counted else {}
    for row, now in due:
        _look_at(tx, row, now, taken.get(row.id, 0), declared)
    return len(due)


def _look_at(tx: Transaction, row: LimitRow, now: int, taken: int, declared: Declared | None) -> None:
    held = tx.rows(ANY_HELD_JOB, limit_id=row.id)
    if not held:
        _looked_at(tx, row, None)
        return
    known = None if declared is None else declared(*held[0])
    if known is not None:
        new = next((limit for family, limit in known if is_of(row.id, family)), None)
        if new is None:  # the limit is gone
            gone = release_held(tx, row.id, MOST_AT_ONCE)
            _looked_at(tx, row, now if gone == MOST_AT_ONCE else None)
            return
        row = renumbered(row, new, now)
    room = row.slots - taken if row.slots else room_in_rate(now, row.arrival_at, row.gap, row.tolerance)
    wanted = max(0, min(room, MOST_AT_ONCE))
    gone = release_held(tx, row.id, wanted) if wanted else 0
    if wanted and gone < wanted:
        _looked_at(tx, row, None)  # no job is held any more
    elif row.slots:
        _looked_at(tx, row, now + LOOK_AGAIN)
    else:
        _looked_at(tx, row, max(row.arrival_at, now) + gone * row.gap - row.tolerance)


def _looked_at(tx: Transaction, row: LimitRow, due_at: int | None) -> None:
    tx.run(RECORD_LOOK, **row._replace(due_at=due_at)._asdict())


def look_at_limits_of_jobs(tx: Transaction, job_ids: list[str]) -> None:
    """Look soon at the limits of these jobs, whose worker died: jobs held by them need not wait for the next look."""
    tx.run(LOOK_AT_LIMITS_OF_JOBS, ids=job_ids)


def look_at_all_limits(tx: Transaction) -> None:
    """Look soon at all limits that hold jobs: their numbers may have changed."""
    tx.run(LOOK_AT_ALL_LIMITS)


# --- Reserve starts beside that of a step: of the other requests that it makes, and of a command that asks the same source.
#
# A caller that asks ahead of time gets the next places in the stream, and begins each when its time has come: so a rate
# holds in any window, though no job is claimed for each request. Slots are looked at and not taken: what is under way
# beside its step is bounded by the room that there was, and may exceed a concurrency for a moment by as much.

RESERVATION_TIME = sql("SELECT {now}")


def reserve_starts(
    tx: Transaction, limits: Sequence[Limit], scope: str, most: int, within: timedelta
) -> list[float]:
    """In how many seconds each of up to `most` requests may start; one that would wait longer than `within` gets no place."""
    named = {id_of(it, scope, None): it for it in limits}
    slots = [name for name, it in named.items() if it.slots]
    if slots:
        taken = count_slots(tx, slots)
        most = min(most, *(named[name].slots - taken.get(name, 0) for name in slots))
    rates = sorted(name for name, it in named.items() if it.gap)
    if most <= 0 or not rates:
        return [0.0] * max(0, most)
    known = lock_limits(tx, rates)
    now = int(tx.first(RESERVATION_TIME))
    rows = [renumbered(known[name], named[name], now) for name in rates]
    rows, starts = next_starts(rows, now, most, micros(within))
    write_limits(tx, rows)
    return [(it - now) / 1e6 for it in starts]


def next_starts(
    rows: Sequence[LimitRow], now: int, most: int, within: int
) -> tuple[list[LimitRow], list[int]]:
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


# --- The rows of limits, many at a time: a claim of a thousand jobs may ask for a thousand of them.

_TABLE = "JSON_TABLE(:rows, '$[*]' COLUMNS ({columns})) AS given"

ENSURE_LIMITS = sql(
    "INSERT INTO stepfast_limit (id) SELECT value FROM json_each(:rows) WHERE true ON CONFLICT DO NOTHING",
    postgresql="INSERT INTO stepfast_limit (id) SELECT unnest(CAST(:ids AS TEXT[])) ON CONFLICT DO NOTHING",
    mariadb="INSERT INTO stepfast_limit (id) SELECT given.id FROM "
    + _TABLE.format(columns="id VARCHAR(200) PATH '$'")
    + " ON DUPLICATE KEY UPDATE id = stepfast_limit.id",
)

LOCK_LIMITS = sql(
    "SELECT id, arrival_at, gap, tolerance, slots, due_at FROM stepfast_limit WHERE id {any_of:ids} ORDER BY id {for_update}"
)

_COLUMNS = ("id", "arrival_at", "gap", "tolerance", "slots", "due_at")

_EXTRACTED = [f"json_extract(value, '$[{n}]')" for n in range(len(_COLUMNS))]

_NEW = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS[1:])

_INSERT = f"INSERT INTO stepfast_limit ({', '.join(_COLUMNS)})"

WRITE_LIMITS = sql(
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

# A rate whose arrival has passed, or slots of which none is taken: a new row would say the same.
IDLE_LIMITS = sql("""
    SELECT id FROM stepfast_limit
     WHERE due_at IS NULL AND arrival_at < {now} - :age
       AND NOT EXISTS (SELECT 1 FROM stepfast_slot WHERE limit_id = stepfast_limit.id)
     LIMIT :limit {skip_locked}
""")

FORGET_LIMITS = sql("DELETE FROM stepfast_limit WHERE id {any_of:ids}")


def lock_limits(tx: Transaction, ids: list[str]) -> dict[str, LimitRow]:
    """The rows of these limits, locked; made first where they are missing."""
    known = _locked(tx, ids)
    if missing := [limit_id for limit_id in ids if limit_id not in known]:
        if tx.takes_columns:
            tx.run(ENSURE_LIMITS, ids=missing)
        else:
            tx.run(ENSURE_LIMITS, rows=as_document(missing))
        if tx.dialect.name == "sqlite":  # one writer: no other transaction can have made them
            known |= {limit_id: LimitRow(limit_id, 0, 0, 0, 0, None) for limit_id in missing}
        else:
            known |= _locked(tx, missing)
    return known


def _locked(tx: Transaction, ids: list[str]) -> dict[str, LimitRow]:
    return {row[0]: LimitRow(*row) for row in tx.rows(LOCK_LIMITS, ids=ids)}


def write_limits(tx: Transaction, rows: Sequence[LimitRow]) -> None:
    """Write rows that have changed, and are locked."""
    if not rows:
        return
    if tx.takes_columns:
        ids, *columns = (list(column) for column in zip(*rows, strict=True))
        tx.run(WRITE_LIMITS, ids=ids, **dict(zip(_COLUMNS[1:], columns, strict=True)))
    else:
        tx.run(WRITE_LIMITS, rows=as_document(rows))


def forget_idle_limits(tx: Transaction, age: int, limit: int) -> int:
    """Forget a batch of limits that were not asked for in `age`; the next claim makes them anew."""
    ids = [row[0] for row in tx.rows(IDLE_LIMITS, age=age, limit=limit)]
    if ids:
        tx.run(FORGET_LIMITS, ids=ids)
    return len(ids)


# --- Slots.

COUNT_SLOTS = sql(
    "SELECT limit_id, count(*) FROM stepfast_slot WHERE limit_id {any_of:limits} GROUP BY limit_id"
)

# A slot that the job's last owner left behind is its own again.
_TAKE = "INSERT INTO stepfast_slot (job_id, limit_id, fence)"

TAKE_SLOTS = sql(
    f"{_TAKE} SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), :fence FROM json_each(:rows) WHERE true "
    "ON CONFLICT (job_id, limit_id) DO UPDATE SET fence = excluded.fence",
    postgresql=f"{_TAKE} SELECT job_id, limit_id, CAST(:fence AS BIGINT) "
    "FROM unnest(CAST(:jobs AS TEXT[]), CAST(:limits AS TEXT[])) AS taken (job_id, limit_id) "
    "ON CONFLICT (job_id, limit_id) DO UPDATE SET fence = excluded.fence",
    mariadb=f"{_TAKE} SELECT taken.job_id, taken.limit_id, :fence FROM JSON_TABLE(:rows, '$[*]' "
    "COLUMNS (job_id VARCHAR(128) PATH '$[0]', limit_id VARCHAR(200) PATH '$[1]')) AS taken "
    "ON DUPLICATE KEY UPDATE fence = VALUES(fence)",
)

FREE_SLOTS = sql("DELETE FROM stepfast_slot WHERE job_id {any_of:ids} AND fence = :fence")

DROP_STALE_SLOTS = sql("""
    DELETE FROM stepfast_slot
     WHERE limit_id {any_of:limits}
       AND NOT EXISTS (SELECT 1 FROM stepfast_job
                        WHERE stepfast_job.id = stepfast_slot.job_id AND stepfast_job.fence = stepfast_slot.fence)
""")


def count_slots(tx: Transaction, limits: list[str]) -> dict[str, int]:
    """How many slots of each limit are taken."""
    return {row[0]: int(row[1]) for row in tx.rows(COUNT_SLOTS, limits=limits)}


def take_slots(tx: Transaction, slots: Sequence[tuple[str, str]], fence: int) -> None:
    """Take a slot for each (job, limit)."""
    if not slots:
        return
    if tx.takes_columns:
        tx.run(TAKE_SLOTS, jobs=[job for job, _ in slots], limits=[limit for _, limit in slots], fence=fence)
    else:
        tx.run(TAKE_SLOTS, rows=as_document(slots), fence=fence)


def drop_stale_slots(tx: Transaction, limits: list[str]) -> int:
    """Delete slots of steps that died or were replaced; returns how many."""
    return tx.run(DROP_STALE_SLOTS, limits=limits)


def free_slots(tx: Transaction, job_ids: list[str], fence: int) -> None:
    """Delete the slots of steps that end in this transaction."""
    tx.run(FREE_SLOTS, ids=job_ids, fence=fence)
