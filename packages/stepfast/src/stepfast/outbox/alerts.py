"""Alerts: one per cause, sent once and then not again for a while, however often it is raised.

Raising is an effect: it counts in the row of its cause, in the caller's transaction. A relay that knows where alerts go
turns alerts that are due into messages of the outbox, one per place, in one transaction with the row. Alerts that were
raised in the quiet time are sent when it is over, as a number.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from stepfast.clock import micros, moment, new_id
from stepfast.database.statement import sql
from stepfast.database.wakeup import OUTBOX
from stepfast.errors import ArgumentsError
from stepfast.notifications.alert import SEVERITIES, AlertText
from stepfast.outbox.messages import ALERT, Message, destination_of, stage
from stepfast.telemetry import current_trace
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from stepfast.database.connection import Transaction


LONGEST_CAUSE: Final = 200
LONGEST_TITLE: Final = 200
LONGEST_BODY: Final = 8_000
TOO_OLD: Final = timedelta(days=1)  # an alert that could not be sent in this time is only listed
BATCH: Final = 20

ADD_ALERT = sql("""
    INSERT INTO stepfast_alert (id, severity, title, body, first_at, last_at)
    VALUES (:id, :severity, :title, :body, {now}, {now})
    {keep_existing}
""")
RAISE_ALERT = sql("""
    UPDATE stepfast_alert
       SET severity = :severity, title = :title, body = :body, raised = raised + :times, untold = untold + :times,
           last_at = {now}, quiet_for = :quiet_for,
           notify_at = CASE WHEN notify_at > {now} - :too_old THEN notify_at
                            WHEN quiet_until > {now} THEN quiet_until ELSE {now} END
     WHERE id = :id
""")

DUE_ALERTS = sql("""
    SELECT id, severity, title, body, raised, untold, first_at, notified_at, quiet_for FROM stepfast_alert
     WHERE notify_at <= {now} AND notify_at > {now} - :too_old
     ORDER BY notify_at LIMIT :limit {skip_locked}
""")
ALERT_SENT = sql("""
    UPDATE stepfast_alert
       SET notify_at = NULL, untold = 0, notified_at = {now}, quiet_until = {now} + :quiet, message_ids = :message_ids
     WHERE id = :id AND notify_at IS NOT NULL
""")


@dataclass(frozen=True, kw_only=True)
class Alert:
    """Something a person should know. An effect: it is raised with the step's commit or not at all."""

    cause: str  # what makes two of them the same
    title: str
    body: str
    severity: str
    cooldown: timedelta | None = None  # None: the setting of the worker that sends it
    times: int = 1

    @property
    def turn(self) -> tuple[int, str]:
        """Last of all effects, and by their causes: two steps that raise several lock them in one order."""
        return (2, self.cause)

    def apply(self, tx: Transaction, /) -> None:
        raise_alert(tx, self)


def alert(
    cause: str,
    title: str,
    body: str = "",
    *,
    severity: str = "failure",
    cooldown: timedelta | None = None,
    times: int = 1,
) -> Alert:
    """An alert, checked, and without what looks like a secret."""
    if severity not in SEVERITIES:
        raise ArgumentsError("alert", f"severity={severity!r}: use {', '.join(map(repr, SEVERITIES))}")
    for name, value in {"cause": cause, "title": title}.items():
        _check_words(name, value)
    return Alert(
        cause=shortened(without_secrets(cause.strip())),
        title=" ".join(without_secrets(title).split())[:LONGEST_TITLE],
        body=without_secrets(str(body))[:LONGEST_BODY],
        severity=severity,
        cooldown=cooldown,
        times=times,
    )


def _check_words(name: str, value: object) -> None:
    if not isinstance(value, str) or not value.strip():
        raise ArgumentsError("alert", f"{name}={value!r:.80}: say it in words")


def shortened(cause: str) -> str:
    """A cause that fits its column, and still differs from other causes that begin alike."""
    if len(cause) <= LONGEST_CAUSE:
        return cause
    return f"{cause[: LONGEST_CAUSE - 18].rstrip()}…{hashlib.sha256(cause.encode()).hexdigest()[:16]}"


def raise_alert(tx: Transaction, alert: Alert) -> None:
    """Count an alert, and have it sent: now, or when the quiet time of its cause is over."""
    row = {"id": alert.cause, "severity": alert.severity, "title": alert.title, "body": alert.body}
    tx.run(ADD_ALERT, **row)
    quiet_for = None if alert.cooldown is None else micros(alert.cooldown)
    tx.run(RAISE_ALERT, **row, times=alert.times, quiet_for=quiet_for, too_old=micros(TOO_OLD))
    tx.wakes.add(OUTBOX)


def stage_alerts(tx: Transaction, places: Sequence[str], cooldown: timedelta) -> list[str]:
    """Stage alerts that are due, a message for each place; returns their causes."""
    causes: list[str] = []
    for row in tx.rows(DUE_ALERTS, limit=BATCH, too_old=micros(TOO_OLD)):
        cause, severity, title, body, raised, untold, first_at, notified_at, quiet_for = row
        since = moment(first_at if notified_at is None else notified_at)
        messages = [
            _message(place, cause, AlertText(title, body, severity), _count(untold, raised, since))
            for place in places
        ]
        ids = ",".join(message.id for message in messages)
        quiet = micros(cooldown) if quiet_for is None else quiet_for
        if tx.run(ALERT_SENT, id=cause, quiet=quiet, message_ids=ids) == 1:
            for message in messages:
                stage(tx, message)
            causes.append(cause)
    return causes


def text_of(body: str) -> AlertText:
    """The text of an alert, from the body of its message."""
    return msgspec.json.decode(body, type=AlertText)


def _message(place: str, cause: str, said: AlertText, count: str) -> Message:
    message_id = new_id()
    footer = f"{count}Cause: {cause}\nAlert: {message_id} (the same one may come twice)"
    text = AlertText(said.title, f"{said.body}\n\n{footer}".strip(), said.severity)
    return Message(
        id=message_id,
        channel=ALERT,
        destination=destination_of(ALERT, place.partition(":")[0], place),
        address=place,
        body=msgspec.json.encode(text).decode(),
        trace=current_trace(),
    )


def _count(untold: int, raised: int, since: datetime) -> str:
    if untold <= 1:
        return ""
    return f"Raised {untold:,} times since {since:%Y-%m-%d %H:%M:%S} UTC, {raised:,} times in all.\n"
