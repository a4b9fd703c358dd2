"""Destinations and their messages: take a destination, read its next message, record what became of it.

A relay serves one destination at a time under a fence: a lease that runs out by itself when the process dies. Nothing is
sent inside a transaction. What became of a message is recorded only under the fence, so that a relay that was replaced
records nothing; what it may have sent is sent again by its successor, under the same id. So messages arrive in order, if
repetitions are left out. The head of a line that failed holds up the others until it is sent or dead: `decide` says which,
and when it is tried again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import micros, new_fence
from stepfast.database.statement import sql
from stepfast.database.stored import stored_fields
from stepfast.errors import DestinationLostError
from stepfast.notifications.webhook import Failed, Patience
from stepfast.outbox.hosts import OF_A_HOST, DueDestination
from stepfast.outbox.messages import BROKER, as_shown
from stepfast.telemetry import trace_id_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.notifications.settings import NotificationSettings
    from stepfast.telemetry import Fact


LEASE: Final = timedelta(seconds=10)  # renewed while a try lasts longer
NO_FENCE: Final = 0  # the fence of a destination that no relay serves
LONGEST_ERROR: Final = 1_000
FIRST: Final = timedelta(seconds=5)  # of the delays between tries
FACTOR: Final = 3.0
LONGEST: Final = timedelta(hours=6)
WAITS: Final = timedelta(seconds=30)  # for a worker whose settings can send it
FEW: Final = 5  # tries where the receiver says no
WAITS_FOR_HOST: Final = "waits for its host:"  # how the error of a message begins that was not tried itself

# Destinations whose head is due and that no relay serves: of each host the first ones, and so many whose head failed
# before and so many others, so that neither many URLs of one host nor many that fail hide the rest. A host is the
# destination without its hash, for webhooks. A loose index scan, one probe per line; MariaDB has none that depends on a
# value: it walks along the index (5 ms for 20,000 messages, where the same recursion takes 250).
_UNSERVED = """
    NOT EXISTS (SELECT 1 FROM stepfast_destination d WHERE d.id = head.destination AND d.leased_until > {now})
"""
_HOST = """
    CASE WHEN substr(head.destination, 1, 8) = 'webhook:' AND length(head.destination) > 33
         THEN substr(head.destination, 1, length(head.destination) - 25) ELSE head.destination END
"""
_FIRST_OF_EACH_SHARE = """
    SELECT destination, failed
      FROM (SELECT destination, due_at, failed, row_number() OVER (PARTITION BY failed ORDER BY due_at) AS share_place
              FROM {ranked} WHERE host_place <= :of_a_host) shares
     WHERE share_place <= :limit ORDER BY due_at
"""
DUE_DESTINATIONS = sql(
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
    ), ranked (destination, due_at, failed, host_place) AS (
        SELECT head.destination, head.due_at,
               CASE WHEN (SELECT o.last_error FROM stepfast_outbox o
                           WHERE o.state = 'waiting' AND o.destination = head.destination ORDER BY o.seq LIMIT 1)
                         IS NULL THEN 0 ELSE 1 END,
               row_number() OVER (PARTITION BY {_HOST} ORDER BY head.due_at)
          FROM head WHERE head.due_at <= {{now}} AND {_UNSERVED}
    )
    {_FIRST_OF_EACH_SHARE.format(ranked="ranked")}
    """,
    mariadb=_FIRST_OF_EACH_SHARE.format(
        ranked=f"""(
            SELECT head.destination, o.due_at, CASE WHEN o.last_error IS NULL THEN 0 ELSE 1 END AS failed,
                   row_number() OVER (PARTITION BY {_HOST} ORDER BY o.due_at) AS host_place
              FROM (SELECT destination, min(seq) AS seq FROM stepfast_outbox FORCE INDEX (stepfast_outbox_waiting)
                     WHERE state = 'waiting' GROUP BY destination) head
              JOIN stepfast_outbox o ON o.seq = head.seq
             WHERE o.due_at <= {{now}} AND {_UNSERVED}) ranked
        """
    ),
)

ADD_DESTINATION = sql("INSERT INTO stepfast_destination (id) VALUES (:id) {keep_existing}")
KNOWN_DESTINATIONS = sql("SELECT id FROM stepfast_destination WHERE id {any_of:ids}")
FREE_DESTINATIONS = sql("""
    SELECT id FROM stepfast_destination WHERE id {any_of:ids} AND leased_until <= {now} ORDER BY id {skip_locked}
""")
TAKE_DESTINATION = sql("""
    UPDATE stepfast_destination SET fence = :fence, leased_until = {now} + :lease
     WHERE id = :id AND leased_until <= {now}
""")
RENEW_DESTINATION = sql("""
    UPDATE stepfast_destination SET leased_until = {now} + :lease WHERE id = :id AND fence = :fence
""")
RELEASE_DESTINATION = sql("""
    UPDATE stepfast_destination SET fence = :nobody, leased_until = {now} WHERE id = :id AND fence = :fence
""")

_NEXT_MESSAGES = """
    SELECT id, channel, destination, address, body, headers, trace, job_id, attempts, {{now}} - since_at, {{now}} - due_at
      FROM stepfast_outbox {index} WHERE state = 'waiting' AND destination = :destination
     ORDER BY seq LIMIT {most}
"""
# MariaDB might look for it along the primary key, over everything that was sent before.
_FORCED = "FORCE INDEX (stepfast_outbox_waiting)"
NEXT_MESSAGE = sql(
    _NEXT_MESSAGES.format(index="", most=1), mariadb=_NEXT_MESSAGES.format(index=_FORCED, most=1)
)
NEXT_MESSAGES = sql(
    _NEXT_MESSAGES.format(index="", most=":limit"),
    mariadb=_NEXT_MESSAGES.format(index=_FORCED, most=":limit"),
)

MARK_ALL_SENT = sql("""
    UPDATE stepfast_outbox SET state = 'sent', attempts = attempts + 1, ended_at = {now}, last_error = NULL
     WHERE id {any_of:ids} AND state = 'waiting'
""")
# A run stages a hint for each of its pages: kept for a week, hints would outnumber everything else here.
FORGET_HINTS = sql("""
    DELETE FROM stepfast_outbox
     WHERE id {any_of:ids} AND state = 'waiting' AND channel = 'broker' AND job_id IS NOT NULL
""")
MARK_SENT = sql("""
    UPDATE stepfast_outbox SET state = 'sent', attempts = attempts + 1, ended_at = {now}, last_error = NULL
     WHERE id = :id AND state = 'waiting'
""")
POSTPONE_MESSAGE = sql("""
    UPDATE stepfast_outbox SET attempts = attempts + :charge, due_at = {now} + :delay, last_error = :error
     WHERE id = :id AND state = 'waiting'
""")
BURY_MESSAGE = sql("""
    UPDATE stepfast_outbox SET state = 'dead', attempts = attempts + 1, ended_at = {now}, last_error = :error
     WHERE id = :id AND state = 'waiting'
""")


# The messages to one host, which lie beside each other in the index; those to its other ports may be among them.
HOST_MESSAGES = sql("""
    SELECT id FROM stepfast_outbox
     WHERE state = 'waiting' AND destination >= :first AND destination < :behind AND due_at < {now} + :soon
     ORDER BY destination, seq LIMIT :limit {skip_locked}
""")
# A message that failed itself keeps its error.
POSTPONE_MESSAGES = sql("""
    UPDATE stepfast_outbox SET due_at = {now} + :delay, last_error = COALESCE(last_error, :error)
     WHERE id {any_of:ids} AND state = 'waiting'
""")


@dataclass(frozen=True)
class ServedDestination:
    """A destination that a relay has leased."""

    id: str
    fence: int


@dataclass(frozen=True)
class DueMessage:
    """A message at the head of its line, as a courier sends it."""

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
    late: timedelta = timedelta(0)  # for how long it has been due

    @property
    def is_hint(self) -> bool:
        """Whether the message only tells workers of a job, whose own row is the truth: useless once it is sent."""
        return self.channel == BROKER and self.job_id is not None

    def facts(self) -> dict[str, Fact]:
        """The fields of events about this message."""
        return {
            "message_id": self.id,
            "channel": self.channel,
            "address": as_shown(self.channel, self.address),
            "job_id": self.job_id,
            "trace_id": trace_id_of(self.job_id or self.id, self.trace),
            "attempt": self.attempts + 1,
        }


def due_destinations(tx: Transaction, limit: int, of_a_host: int = OF_A_HOST) -> list[DueDestination]:
    """Destinations with a message that is due, and without a relay: `limit` whose first message failed, and `limit` others."""
    rows = tx.rows(DUE_DESTINATIONS, limit=limit, of_a_host=of_a_host)
    return [DueDestination(str(destination), bool(failed)) for destination, failed in rows]


def take_destinations(tx: Transaction, destinations: Sequence[str]) -> list[ServedDestination]:
    """Lease destinations under one new fence, without those that were taken meanwhile."""
    wanted = sorted(destinations)
    known = {row[0] for row in tx.rows(KNOWN_DESTINATIONS, ids=wanted)}
    for destination in wanted:
        if destination not in known:
            tx.run(ADD_DESTINATION, id=destination)
    fence, lease = new_fence(), micros(LEASE)
    return [
        ServedDestination(row[0], fence)
        for row in tx.rows(FREE_DESTINATIONS, ids=wanted)
        if tx.run(TAKE_DESTINATION, id=row[0], fence=fence, lease=lease) == 1
    ]


def renew_destinations(tx: Transaction, served: Sequence[ServedDestination]) -> None:
    """Hold destinations for longer; one that was lost stays lost."""
    for destination in sorted(served, key=lambda it: it.id):
        tx.run(RENEW_DESTINATION, id=destination.id, fence=destination.fence, lease=micros(LEASE))


def next_message(tx: Transaction, served: ServedDestination) -> DueMessage | None:
    """The next message of a destination that the caller holds in this transaction; None if none is due."""
    found = _due(tx.rows(NEXT_MESSAGE, destination=served.id))
    return found[0] if found else None


def next_messages(tx: Transaction, served: ServedDestination, limit: int) -> list[DueMessage]:
    """The first messages of a line that are due, in their order: one that waits holds up those behind it."""
    return _due(tx.rows(NEXT_MESSAGES, destination=served.id, limit=limit))


def _due(line: Sequence[Sequence[Any]]) -> list[DueMessage]:
    found: list[DueMessage] = []
    for *facts, late in line:
        if late < 0:
            break
        found.append(_outgoing(*facts, late))
    return found


def _outgoing(*row: Any) -> DueMessage:
    message_id, channel, destination, address, body, headers, trace, job_id, attempts, age, late = row
    return DueMessage(
        message_id,
        channel,
        destination,
        address,
        body,
        {} if headers is None else stored_fields(headers),
        trace,
        job_id,
        attempts,
        timedelta(microseconds=int(age)),
        timedelta(microseconds=int(late)),
    )


def record_sent(tx: Transaction, served: ServedDestination, message_id: str) -> None:
    """Record that the receiver has a message. (It is not waiting any more if a COMMIT's answer was lost, or an operator was quicker.)"""
    _hold(tx, served)
    tx.run(MARK_SENT, id=message_id)


def record_all_sent(tx: Transaction, served: ServedDestination, messages: Sequence[DueMessage]) -> None:
    """Record that the receiver has all these messages. Hints are deleted at once, the others are kept for a while."""
    _hold(tx, served)
    if hints := [message.id for message in messages if message.is_hint]:
        tx.run(FORGET_HINTS, ids=hints)
    if others := [message.id for message in messages if not message.is_hint]:
        tx.run(MARK_ALL_SENT, ids=others)


def record_retry(
    tx: Transaction,
    served: ServedDestination,
    message_id: str,
    delay: timedelta,
    error: str,
    *,
    charged: bool = True,
) -> None:
    """Record that a message failed and is tried again later; those behind it wait."""
    _hold(tx, served)
    tx.run(
        POSTPONE_MESSAGE, id=message_id, delay=micros(delay), error=error[:LONGEST_ERROR], charge=int(charged)
    )


def record_death(tx: Transaction, served: ServedDestination, message_id: str, error: str) -> None:
    """Record that a message was given up until an operator retries it; those behind it go on."""
    _hold(tx, served)
    tx.run(BURY_MESSAGE, id=message_id, error=error[:LONGEST_ERROR])


def postpone_host(tx: Transaction, host: str, delay: timedelta, limit: int) -> int:
    """Let one batch of a host's messages wait for so long; returns how many. No try is counted, and their order stays.

    No fence is needed: it changes when a message is tried next, and a relay that is trying one records that as before.
    """
    wait = micros(delay)
    # Those that were postponed a moment ago are not found again.
    found = tx.rows(HOST_MESSAGES, first=f"{host}:", behind=f"{host};", soon=wait // 2, limit=limit)
    error = f"{WAITS_FOR_HOST} {host.partition(':')[2]} did not answer in time, so all messages to it wait for a while"
    if ids := [row[0] for row in found]:
        tx.run(POSTPONE_MESSAGES, ids=ids, delay=wait, error=error)
    return len(found)


def release_destination(tx: Transaction, served: ServedDestination) -> None:
    """Let other relays serve a destination."""
    tx.run(RELEASE_DESTINATION, id=served.id, fence=served.fence, nobody=NO_FENCE)


def _hold(tx: Transaction, served: ServedDestination) -> None:
    """Check that the fence is still ours, and keep it until this transaction ends; raises if it is not."""
    if tx.run(RENEW_DESTINATION, id=served.id, fence=served.fence, lease=micros(LEASE)) != 1:
        raise DestinationLostError(served.id, served.fence)


# Retry or give up.


@dataclass(frozen=True)
class TryAgain:
    """A failed message is tried again after a delay."""

    delay: timedelta
    charged: bool = True  # whether it counts as a try


@dataclass(frozen=True)
class GiveUp:
    """A failed message becomes dead."""

    reason: str


Verdict = TryAgain | GiveUp


def decide(
    failed: Failed, attempts: int, age: timedelta, settings: NotificationSettings, dice: float
) -> Verdict:
    """Judge the `attempts`-th failed try (from 1) of a message of this age. Pure; `dice` is uniform in [0, 1)."""
    if failed.patience is Patience.FREE:
        return TryAgain(WAITS, charged=False)
    most = {Patience.FULL: settings.outbox_attempts, Patience.LITTLE: FEW, Patience.NONE: 1}[failed.patience]
    most = min(most, settings.outbox_attempts)
    if attempts >= most:
        return GiveUp(f"gave up after {attempts} {'try' if attempts == 1 else 'tries'}")
    if age >= settings.outbox_age:
        return GiveUp(f"gave up at an age of {age.total_seconds() / 3600:.0f} h, after {attempts} tries")
    wait = retry_delay(attempts, dice)
    return TryAgain(wait if failed.not_before is None else min(max(wait, failed.not_before), LONGEST))


def retry_delay(attempts: int, dice: float) -> timedelta:
    """The delay after a failed try: between half and all of 5 s, 15 s, 45 s … 6 h."""
    ceiling = min(FIRST.total_seconds() * FACTOR ** min(attempts - 1, 20), LONGEST.total_seconds())
    return timedelta(seconds=ceiling * (0.5 + 0.5 * dice))


# Prune. Dead messages wait for an operator; hints about jobs never come here: they are deleted when they were sent.

OLD_MESSAGES = sql("""
    SELECT id FROM stepfast_outbox WHERE state = 'sent' AND ended_at < {now} - :age
     ORDER BY ended_at LIMIT :limit {skip_locked}
""")
FORGET_MESSAGES = sql("DELETE FROM stepfast_outbox WHERE id {any_of:ids} AND state = 'sent'")

# The relay makes the row of a destination anew when it meets it again.
IDLE_DESTINATIONS = sql("""
    SELECT id FROM stepfast_destination WHERE leased_until < {now} - :age
     ORDER BY leased_until LIMIT :limit {skip_locked}
""")
FORGET_DESTINATIONS = sql(
    "DELETE FROM stepfast_destination WHERE id {any_of:ids} AND leased_until < {now} - :age"
)

# Alerts whose cause came to rest, also those that could not be sent: they were listed for long enough.
_AT_REST = (
    "last_at < {now} - :age AND quiet_until < {now} AND (notify_at IS NULL OR notify_at < {now} - :age)"
)
QUIET_ALERTS = sql(
    f"SELECT id FROM stepfast_alert WHERE {_AT_REST} ORDER BY last_at LIMIT :limit {{skip_locked}}"
)
FORGET_ALERTS = sql(f"DELETE FROM stepfast_alert WHERE id {{any_of:ids}} AND {_AT_REST}")


def prune_outbox(tx: Transaction, age: int, limit: int) -> int:
    """Delete one batch of messages sent longer than `age` ago, and of idle destinations and quiet alerts; returns how many messages."""
    ids = [row[0] for row in tx.rows(OLD_MESSAGES, age=age, limit=limit)]
    removed = tx.run(FORGET_MESSAGES, ids=ids) if ids else 0
    if idle := [row[0] for row in tx.rows(IDLE_DESTINATIONS, age=age, limit=limit)]:
        tx.run(FORGET_DESTINATIONS, ids=idle, age=age)
    if quiet := [row[0] for row in tx.rows(QUIET_ALERTS, age=age, limit=limit)]:
        tx.run(FORGET_ALERTS, ids=quiet, age=age)
    return removed
