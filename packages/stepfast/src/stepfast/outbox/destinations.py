"""After a failed try: again, when, or never. Pure; the dice come in as an argument."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import micros, new_fence
from stepfast.database.statement import sql
from stepfast.errors import DestinationLostError
from stepfast.notifications.webhook import Failed, Patience
from stepfast.outbox.messages import BROKER, as_shown
from stepfast.telemetry import trace_id_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.notifications.settings import NotificationSettings
    from stepfast.telemetry import Fact


# Take messages out of the outbox, one destination at a time and its oldest message first.
#
# Whoever sends holds the destination under a fence: a lease that runs out by itself when the process dies. Nothing is
# sent inside a transaction. What became of a message is written only under the fence, so that a relay that was replaced
# records nothing; what it may have sent is sent again by its successor, under the same id. So messages arrive in order,
# if repetitions are left out. The head of a line that failed holds up the others until it is sent or dead.

LEASE: Final = timedelta(seconds=10)  # renewed while a try lasts longer
NOBODY: Final = 0  # the fence of a destination that nobody serves
LONGEST_ERROR: Final = 1_000

# Destinations whose head is due and that nobody serves. A loose index scan, one probe per line; MariaDB has none that
# depends on a value: it walks along the index (5 ms for 20,000 messages, where the same recursion takes 250).
_NOBODY_SERVES = """
    NOT EXISTS (SELECT 1 FROM stepfast_destination d WHERE d.id = head.destination AND d.leased_until > {now})
"""
HEADS = sql(
    f"""
    WITH RECURSIVE named (destination) AS (
        SELECT min(destination) FROM stepfast_outbox WHERE state = 'waiting'
        UNION ALL
        SELECT (SELECT min(o.destination) FROM stepfast_outbox o
                 WHERE o.state = 'waiting' AND o.destination > named.destination)
          FROM named WHERE named.destination IS NOT NULL
    ), head (destination, due_at) AS (
        SELECT named.destination,
               (SELECT o.due_at FROM stepfast_outbox o
                 WHERE o.state = 'waiting' AND o.destination = named.destination ORDER BY o.seq LIMIT 1)
          FROM named WHERE named.destination IS NOT NULL
    )
    SELECT destination FROM head WHERE due_at <= {{now}} AND {_NOBODY_SERVES} ORDER BY due_at LIMIT :limit
    """,
    mariadb=f"""
    SELECT head.destination
      FROM (SELECT destination, min(seq) AS seq FROM stepfast_outbox FORCE INDEX (stepfast_outbox_waiting)
             WHERE state = 'waiting' GROUP BY destination) head
      JOIN stepfast_outbox o ON o.seq = head.seq
     WHERE o.due_at <= {{now}} AND {_NOBODY_SERVES} ORDER BY o.due_at LIMIT :limit
    """,
)

MEET = sql("INSERT INTO stepfast_destination (id) VALUES (:id) {keep_existing}")
KNOWN = sql("SELECT id FROM stepfast_destination WHERE id {any_of:ids}")
FREE = sql("""
    SELECT id FROM stepfast_destination WHERE id {any_of:ids} AND leased_until <= {now} ORDER BY id {skip_locked}
""")
TAKE = sql("""
    UPDATE stepfast_destination SET fence = :fence, leased_until = {now} + :lease
     WHERE id = :id AND leased_until <= {now}
""")
RENEW = sql("""
    UPDATE stepfast_destination SET leased_until = {now} + :lease WHERE id = :id AND fence = :fence
""")
RELEASE = sql("""
    UPDATE stepfast_destination SET fence = :nobody, leased_until = {now} WHERE id = :id AND fence = :fence
""")

_HEAD = """
    SELECT id, channel, destination, address, body, headers, trace, job_id, attempts, {{now}} - since_at, {{now}} - due_at
      FROM stepfast_outbox {index} WHERE state = 'waiting' AND destination = :destination
     ORDER BY seq LIMIT {most}
"""
# MariaDB might look for it along the primary key, over everything that was sent before.
_FORCED = "FORCE INDEX (stepfast_outbox_waiting)"
HEAD = sql(_HEAD.format(index="", most=1), mariadb=_HEAD.format(index=_FORCED, most=1))
LINE = sql(_HEAD.format(index="", most=":limit"), mariadb=_HEAD.format(index=_FORCED, most=":limit"))

SENT_TOGETHER = sql("""
    UPDATE stepfast_outbox SET state = 'sent', attempts = attempts + 1, ended_at = {now}, last_error = NULL
     WHERE id {any_of:ids} AND state = 'waiting'
""")
# A run stages a hint for each of its pages: kept for a week, they would outnumber everything else here.
FORGET_HINTS = sql("""
    DELETE FROM stepfast_outbox
     WHERE id {any_of:ids} AND state = 'waiting' AND channel = 'broker' AND job_id IS NOT NULL
""")
SENT = sql("""
    UPDATE stepfast_outbox SET state = 'sent', attempts = attempts + 1, ended_at = {now}, last_error = NULL
     WHERE id = :id AND state = 'waiting'
""")
AGAIN = sql("""
    UPDATE stepfast_outbox SET attempts = attempts + :charge, due_at = {now} + :delay, last_error = :error
     WHERE id = :id AND state = 'waiting'
""")
DIE = sql("""
    UPDATE stepfast_outbox SET state = 'dead', attempts = attempts + 1, ended_at = {now}, last_error = :error
     WHERE id = :id AND state = 'waiting'
""")


@dataclass(frozen=True)
class Served:
    """A destination that somebody sends to."""

    id: str
    fence: int


@dataclass(frozen=True)
class Outgoing:
    """The head of a line, as whoever sends it needs it."""

    id: str
    channel: str
    destination: str
    address: str
    body: str
    headers: Mapping[str, str]
    trace: str | None
    job_id: str | None
    attempts: int  # tries before this one
    age: timedelta  # of its current life

    @property
    def is_hint(self) -> bool:
        """Whether it only tells workers of a job, whose own row is the truth: of no use once it is sent."""
        return self.channel == BROKER and self.job_id is not None

    def facts(self) -> dict[str, Fact]:
        """What events say of it."""
        return {
            "message_id": self.id,
            "channel": self.channel,
            "address": as_shown(self.channel, self.address),
            "job_id": self.job_id,
            "trace_id": trace_id_of(self.job_id or self.id, self.trace),
            "attempt": self.attempts + 1,
        }


def due(tx: Transaction, limit: int) -> list[str]:
    """Destinations that wait to be served."""
    return [str(row[0]) for row in tx.rows(HEADS, limit=limit)]


def take(tx: Transaction, destinations: Sequence[str]) -> list[Served]:
    """Lease those of them that are still free, under one new fence."""
    wanted = sorted(destinations)
    known = {row[0] for row in tx.rows(KNOWN, ids=wanted)}
    for destination in wanted:
        if destination not in known:
            tx.run(MEET, id=destination)
    fence, lease = new_fence(), micros(LEASE)
    return [
        Served(row[0], fence)
        for row in tx.rows(FREE, ids=wanted)
        if tx.run(TAKE, id=row[0], fence=fence, lease=lease) == 1
    ]


def renew(tx: Transaction, served: Sequence[Served]) -> None:
    """Go on holding them; those that we lost are not ours to renew."""
    for it in sorted(served, key=lambda it: it.id):
        tx.run(RENEW, id=it.id, fence=it.fence, lease=micros(LEASE))


def head(tx: Transaction, served: Served) -> Outgoing | None:
    """The next message of a destination that the caller holds in this transaction; None if none is due."""
    found = _due(tx.rows(HEAD, destination=served.id))
    return found[0] if found else None


def heads(tx: Transaction, served: Served, limit: int) -> list[Outgoing]:
    """The first messages of its line that are due, in their order: one that waits holds up those behind it."""
    return _due(tx.rows(LINE, destination=served.id, limit=limit))


def _due(line: Sequence[Sequence[Any]]) -> list[Outgoing]:
    found: list[Outgoing] = []
    for *facts, late in line:
        if late < 0:
            break
        found.append(_outgoing(*facts))
    return found


def _outgoing(*row: Any) -> Outgoing:
    message_id, channel, destination, address, body, headers, trace, job_id, attempts, age = row
    return Outgoing(
        message_id,
        channel,
        destination,
        address,
        body,
        {} if headers is None else json.loads(headers),
        trace,
        job_id,
        attempts,
        timedelta(microseconds=int(age)),
    )


def sent(tx: Transaction, served: Served, message_id: str) -> None:
    """The receiver has it. (If it is not waiting any more, an answer of ours was lost, or an operator was quicker.)"""
    _hold(tx, served)
    tx.run(SENT, id=message_id)


def sent_together(tx: Transaction, served: Served, messages: Sequence[Outgoing]) -> None:
    """The receiver has all of them. Hints are forgotten at once, the others are kept for a while."""
    _hold(tx, served)
    if hints := [it.id for it in messages if it.is_hint]:
        tx.run(FORGET_HINTS, ids=hints)
    if others := [it.id for it in messages if not it.is_hint]:
        tx.run(SENT_TOGETHER, ids=others)


def again(
    tx: Transaction, served: Served, message_id: str, delay: timedelta, error: str, *, charged: bool = True
) -> None:
    """It has to be tried again later, and those behind it wait."""
    _hold(tx, served)
    tx.run(AGAIN, id=message_id, delay=micros(delay), error=error[:LONGEST_ERROR], charge=int(charged))


def die(tx: Transaction, served: Served, message_id: str, error: str) -> None:
    """Nobody will try again by himself. Those behind it go on."""
    _hold(tx, served)
    tx.run(DIE, id=message_id, error=error[:LONGEST_ERROR])


def release(tx: Transaction, served: Served) -> None:
    """Let others serve it."""
    tx.run(RELEASE, id=served.id, fence=served.fence, nobody=NOBODY)


def _hold(tx: Transaction, served: Served) -> None:
    """The guard of everything below it: the fence is ours, and stays so until this transaction ends."""
    if tx.run(RENEW, id=served.id, fence=served.fence, lease=micros(LEASE)) != 1:
        raise DestinationLostError(served.id, served.fence)


# Messages that were sent are kept for a while, then forgotten in bounded batches. Dead ones wait for an operator.
#
# Hints about jobs never come here: the relay forgets them in the transaction that would record that they were sent.

OLD = sql("""
    SELECT id FROM stepfast_outbox WHERE state = 'sent' AND ended_at < {now} - :age
     ORDER BY ended_at LIMIT :limit {skip_locked}
""")
FORGET = sql("DELETE FROM stepfast_outbox WHERE id {any_of:ids} AND state = 'sent'")

# The relay makes the row of a destination anew when it meets it again.
IDLE = sql("""
    SELECT id FROM stepfast_destination WHERE leased_until < {now} - :age
     ORDER BY leased_until LIMIT :limit {skip_locked}
""")
FORGET_IDLE = sql("DELETE FROM stepfast_destination WHERE id {any_of:ids} AND leased_until < {now} - :age")

# Causes that came to rest, also those that nobody could tell: they were listed for long enough.
_AT_REST = (
    "last_at < {now} - :age AND quiet_until < {now} AND (notify_at IS NULL OR notify_at < {now} - :age)"
)
QUIET = sql(f"SELECT id FROM stepfast_alert WHERE {_AT_REST} ORDER BY last_at LIMIT :limit {{skip_locked}}")
FORGET_QUIET = sql(f"DELETE FROM stepfast_alert WHERE id {{any_of:ids}} AND {_AT_REST}")


def prune(tx: Transaction, age: int, limit: int) -> int:
    """Forget one batch of what was sent longer than `age` ago; returns how many messages."""
    ids = [row[0] for row in tx.rows(OLD, age=age, limit=limit)]
    removed = tx.run(FORGET, ids=ids) if ids else 0
    if idle := [row[0] for row in tx.rows(IDLE, age=age, limit=limit)]:
        tx.run(FORGET_IDLE, ids=idle, age=age)
    if quiet := [row[0] for row in tx.rows(QUIET, age=age, limit=limit)]:
        tx.run(FORGET_QUIET, ids=quiet, age=age)
    return removed


FIRST: Final = timedelta(seconds=5)
FACTOR: Final = 3.0
LONGEST: Final = timedelta(hours=6)
WAITS: Final = timedelta(seconds=30)  # for a worker whose settings can send it
FEW: Final = 5  # tries where the receiver says no


@dataclass(frozen=True)
class Again:
    delay: timedelta
    charged: bool = True  # whether it counts as a try


@dataclass(frozen=True)
class GiveUp:
    reason: str


Verdict = Again | GiveUp


def decide(
    failed: Failed, attempts: int, age: timedelta, settings: NotificationSettings, dice: float
) -> Verdict:
    """Judge the `attempts`-th failed try (from 1) of a message so old; `dice` is uniform in [0, 1)."""
    if failed.patience is Patience.FREE:
        return Again(WAITS, charged=False)
    most = {Patience.FULL: settings.outbox_attempts, Patience.LITTLE: FEW, Patience.NONE: 1}[failed.patience]
    most = min(most, settings.outbox_attempts)
    if attempts >= most:
        return GiveUp(f"gave up after {attempts} {'try' if attempts == 1 else 'tries'}")
    if age >= settings.outbox_age:
        return GiveUp(f"gave up at an age of {age.total_seconds() / 3600:.0f} h, after {attempts} tries")
    wait = backoff(attempts, dice)
    return Again(wait if failed.not_before is None else min(max(wait, failed.not_before), LONGEST))


def backoff(attempts: int, dice: float) -> timedelta:
    """Between half and all of 5 s, 15 s, 45 s … 6 h."""
    ceiling = min(FIRST.total_seconds() * FACTOR ** min(attempts - 1, 20), LONGEST.total_seconds())
    return timedelta(seconds=ceiling * (0.5 + 0.5 * dice))
