"""Does what should leave the database leave it? Says something only if it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepfast.admin.doctor.finding import Finding, warn
from stepfast.database.statement import sql
from stepfast.wording import counted

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

OVERDUE: Final = 60 * 1_000_000  # microseconds; a relay looks every second

DEAD = sql("SELECT count(*) FROM stepfast_outbox WHERE state = 'dead' AND ended_at IS NOT NULL")
STUCK = sql("""
    SELECT count(DISTINCT o.destination) FROM stepfast_outbox o
     WHERE o.state = 'waiting' AND o.due_at < {now} - :overdue
       AND NOT EXISTS (SELECT 1 FROM stepfast_outbox h
                        WHERE h.state = 'waiting' AND h.destination = o.destination AND h.seq < o.seq)
       AND NOT EXISTS (SELECT 1 FROM stepfast_destination d WHERE d.id = o.destination AND d.leased_until > {now})
""")
WAITING_FOR_SETTINGS = sql("""
    SELECT count(*), max(last_error) FROM stepfast_outbox
     WHERE state = 'waiting' AND attempts = 0 AND last_error IS NOT NULL
""")
UNTOLD = sql("SELECT count(*) FROM stepfast_alert WHERE notify_at < {now} - :overdue")


def look(tx: Transaction) -> list[Finding]:
    """Messages that nobody sends, messages that were given up, alerts that nobody can tell."""
    found: list[Finding] = []
    if stuck := int(tx.first(STUCK, overdue=OVERDUE)):
        said = f"{counted(stuck, 'destination')} should have been served by now, and nobody does"
        found.append(warn("outbox", said, "start a worker; is STEPFAST_OUTBOX_RELAY off for all of them?"))
    waiting, why = tx.rows(WAITING_FOR_SETTINGS)[0]
    if waiting:
        said = f"{counted(int(waiting), 'message')} cannot be sent by the workers as they are set up: {why}"
        found.append(
            warn("outbox", said, "set up a worker so that it can; the messages wait, and lose no try")
        )
    if dead := int(tx.first(DEAD)):
        cure = "stepfast outbox list --state dead; then stepfast outbox retry, or purge"
        found.append(warn("dead messages", f"{counted(dead, 'message')} given up", cure))
    if untold := int(tx.first(UNTOLD, overdue=OVERDUE)):
        said = f"{counted(untold, 'alert')} that nobody was told"
        found.append(
            warn("alerts", said, "set STEPFAST_ALERT_URLS for a worker; read them: stepfast alerts list")
        )
    return found
