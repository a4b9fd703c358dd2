"""Statistics: how jobs of each kind ended lately, how full the queues are now, and which limits hold jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from stepfast.admin.rows import now, reader
from stepfast.admin.workers import DEAD_BY_QUEUE, LIVE_BY_QUEUE
from stepfast.clock import micros, moment
from stepfast.database.statement import sql
from stepfast.limits.limit import room_in_rate

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from stepfast.database.connection import Transaction


MOST_PATTERNS: Final = 10  # of one kind


@dataclass(frozen=True)
class FailurePattern:
    """Failures of one kind of job with one cause."""

    error_group: str
    dead: int  # jobs that died of it
    retrying: int  # unfinished jobs whose last try failed of it
    recovered: int  # jobs that failed of it, and were done by a later try
    last_at: datetime
    newest_id: str

    def __add__(self, other: FailurePattern) -> FailurePattern:
        newer = max(self, other, key=lambda pattern: pattern.last_at)
        return replace(
            newer,
            dead=self.dead + other.dead,
            retrying=self.retrying + other.retrying,
            recovered=self.recovered + other.recovered,
        )


@dataclass(frozen=True)
class KindStatistics:
    """How the jobs of one kind ended in a span of time."""

    kind: str
    done: int
    dead: int
    cancelled: int
    success_rate: float | None  # done of done and dead
    average_seconds: float | None  # of the last step of jobs that are done, from its lease to its end
    median_seconds: float | None
    p95_seconds: float | None
    longest_seconds: float | None
    average_wait_seconds: float | None  # from ready to leased, of that step
    failures: tuple[FailurePattern, ...]  # the most frequent first


_WHICH = "(:any_kind = 1 OR kind = :kind)"

ENDED_BY_KIND = sql(f"""
    SELECT kind, state, count(*) FROM stepfast_archive
     WHERE state IN ('done', 'dead', 'cancelled') AND finished_at >= {{now}} - :span AND {_WHICH}
     GROUP BY kind, state
""")

# The smallest time that is not below half (or 95 %) of them. The three databases have no common word for it.
TIMES_BY_KIND = sql(f"""
    SELECT kind, avg(took), max(CASE WHEN place >= many * 0.5 AND place < many * 0.5 + 1 THEN took END),
           max(CASE WHEN place >= many * 0.95 AND place < many * 0.95 + 1 THEN took END), max(took), avg(waited)
      FROM (SELECT kind, finished_at - leased_at AS took, leased_at - ready_at AS waited,
                   row_number() OVER (PARTITION BY kind ORDER BY finished_at - leased_at) AS place,
                   count(*) OVER (PARTITION BY kind) AS many
              FROM stepfast_archive
             WHERE state = 'done' AND finished_at >= {{now}} - :span AND leased_at BETWEEN 0 AND finished_at
                   AND {_WHICH}) AS timed
     GROUP BY kind
""")

FAILED_BY_KIND = sql(f"""
    SELECT kind, error_group, sum(CASE state WHEN 'dead' THEN 1 ELSE 0 END), 0,
           sum(CASE state WHEN 'done' THEN 1 ELSE 0 END), max(finished_at), max(id)
      FROM stepfast_archive
     WHERE state IN ('done', 'dead') AND finished_at >= {{now}} - :span AND error_group IS NOT NULL AND {_WHICH}
     GROUP BY kind, error_group
""")
RETRYING_BY_KIND = sql(f"""
    SELECT kind, error_group, 0, count(*), 0, max(updated_at), max(id)
      FROM stepfast_job
     WHERE updated_at >= {{now}} - :span AND error_group IS NOT NULL AND {_WHICH}
     GROUP BY kind, error_group
""")


def kind_statistics(tx: Transaction, span: timedelta, kind: str | None = None) -> list[KindStatistics]:
    """Jobs that ended or failed in the last `span`, by kind; jobs that retention has deleted do not count."""
    filters = {"span": micros(span), "kind": kind, "any_kind": int(kind is None)}
    ended = {(kind, state): int(count) for kind, state, count in tx.rows(ENDED_BY_KIND, **filters)}
    times = {kind: [_seconds(value) for value in rest] for kind, *rest in tx.rows(TIMES_BY_KIND, **filters)}
    failures: dict[str, dict[str, FailurePattern]] = {}
    for row in (*tx.rows(FAILED_BY_KIND, **filters), *tx.rows(RETRYING_BY_KIND, **filters)):
        found, patterns = _pattern(row), failures.setdefault(row[0], {})
        known = patterns.get(found.error_group)
        patterns[found.error_group] = found if known is None else known + found
    return [
        _statistics(name, ended, times.get(name, [None] * 5), failures.get(name, {}))
        for name in sorted({name for name, _ in ended} | set(failures))
    ]


def _pattern(row: Any) -> FailurePattern:
    _, group, dead, retrying, recovered, last_at, newest = row
    return FailurePattern(group, int(dead), int(retrying), int(recovered), moment(int(last_at)), newest)


def _statistics(
    kind: str,
    ended: dict[tuple[str, str], int],
    times: list[float | None],
    failures: dict[str, FailurePattern],
) -> KindStatistics:
    done, dead = ended.get((kind, "done"), 0), ended.get((kind, "dead"), 0)
    rate = done / (done + dead) if done + dead else None
    average, median, p95, longest, wait = times
    return KindStatistics(
        kind=kind,
        done=done,
        dead=dead,
        cancelled=ended.get((kind, "cancelled"), 0),
        success_rate=rate,
        average_seconds=average,
        median_seconds=median,
        p95_seconds=p95,
        longest_seconds=longest,
        average_wait_seconds=wait,
        failures=tuple(sorted(failures.values(), key=_weight)[:MOST_PATTERNS]),
    )


def _weight(pattern: FailurePattern) -> tuple[int, str]:
    return (-pattern.dead - pattern.retrying - pattern.recovered, pattern.error_group)


def _seconds(span: Any) -> float | None:
    return None if span is None else float(span) / 1e6


# Gauges


@dataclass(frozen=True)
class Gauges:
    """How full the queues and the outbox are now: the part of the metrics that comes from the database."""

    depth: dict[tuple[str, str], int]  # unfinished jobs by queue and state
    oldest_ready_seconds: dict[str, float]  # by queue
    dead_letters: dict[str, int]  # by queue
    dead_messages: dict[tuple[str, str], int]  # of brokers, taken over by us: by transport and queue
    paused: frozenset[str]  # queues
    workers: int  # alive, with a heartbeat within their lease
    outbox: dict[str, int]  # messages that are not sent, by state
    oldest_message_seconds: float | None  # of those that wait


PAUSED_QUEUES = sql("SELECT id FROM stepfast_queue WHERE paused_at IS NOT NULL")
COUNT_WORKERS = sql("SELECT count(*) FROM stepfast_worker WHERE state = 'alive' AND alive_until >= {now}")
DEAD_MESSAGES_BY_QUEUE = sql(
    "SELECT transport, queue, count(*) FROM stepfast_dead_message GROUP BY transport, queue"
)
UNSENT_MESSAGES = sql("""
    SELECT state, count(*), min(created_at) FROM stepfast_outbox
     WHERE state IN ('waiting', 'dead') GROUP BY state
""")


def read_gauges(tx: Transaction) -> Gauges:
    """The gauges now. Counts every unfinished job: 1,000,000 of them take a second, so ask less often the longer it takes."""
    live = tx.rows(LIVE_BY_QUEUE)
    instant = now(tx)
    outbox = {state: (int(count), int(oldest)) for state, count, oldest in tx.rows(UNSENT_MESSAGES)}
    return Gauges(
        depth={(queue, state): int(count) for queue, state, count, _ in live},
        oldest_ready_seconds={
            queue: max(0.0, (instant - int(ready_at)) / 1e6)
            for queue, state, _, ready_at in live
            if state == "ready"
        },
        dead_letters={queue: int(count) for queue, _, count, _ in tx.rows(DEAD_BY_QUEUE)},
        dead_messages={
            (transport, queue): int(count) for transport, queue, count in tx.rows(DEAD_MESSAGES_BY_QUEUE)
        },
        paused=frozenset(row[0] for row in tx.rows(PAUSED_QUEUES)),
        workers=int(tx.first(COUNT_WORKERS)),
        outbox={state: outbox.get(state, (0, 0))[0] for state in ("waiting", "dead")},
        oldest_message_seconds=max(0.0, (instant - outbox["waiting"][1]) / 1e6)
        if "waiting" in outbox
        else None,
    )


# Limits


@dataclass(frozen=True)
class LimitReport:
    """A limit: its slots, its room now, and the jobs that it holds."""

    limit: str
    slots: int | None  # how many may run at once; None for a rate
    taken: int | None
    room: int  # how many may start now
    held: int  # jobs that wait for it
    next_look_at: datetime | None  # when held jobs are looked at again, if no slot gets free before


# Limits that hold jobs first, then those in use; 100,000 keys are not a list to read.
LIST_LIMITS = sql("""
    SELECT l.id, l.slots, l.arrival_at, l.gap, l.tolerance, l.due_at, {now},
           (SELECT count(*) FROM stepfast_slot s WHERE s.limit_id = l.id),
           (SELECT count(*) FROM stepfast_job j WHERE j.held_by = l.id AND j.state = 'held')
      FROM stepfast_limit l
     WHERE :everything = 1 OR l.due_at IS NOT NULL OR EXISTS (SELECT 1 FROM stepfast_slot s WHERE s.limit_id = l.id)
     ORDER BY CASE WHEN l.due_at IS NULL THEN 1 ELSE 0 END, l.id
     LIMIT :limit
""")


def list_limits(tx: Transaction, *, everything: bool = False, limit: int = 100) -> list[LimitReport]:
    """Limits that hold jobs or are in use; with `everything`, also those that were asked lately."""
    read = reader(LimitReport)
    found = []
    for name, slots, arrival, gap, tolerance, due, at, taken, held in tx.rows(
        LIST_LIMITS, everything=int(everything), limit=limit
    ):
        if slots or not gap:
            found.append(read(name, slots or None, int(taken), max(0, slots - int(taken)), int(held), due))
        else:
            room = room_in_rate(at, arrival, gap, tolerance)
            found.append(read(name, None, None, room, int(held), due))
    return found
