"""An event that is sent with the commit of a step, or in somebody's own transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import Duration, duration, micros
from stepfast.errors import ConfigurationError
from stepfast.sealing import keyring
from stepfast.steps.events import Sent, send
from stepfast.steps.payload import encode
from stepfast.steps.waiting import checked_event

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

LONGEST_ID: Final = 180
REMEMBERED: Final = micros(duration("15d"))  # ids of events, as those of jobs
FOREVER: Final = micros(duration("3650d"))


@dataclass(frozen=True)
class SendEvent:
    """Gives an event to the oldest wait for it, or keeps it for the next."""

    name: str
    payload: str
    keep: int
    event_id: str | None
    remembered: int = REMEMBERED  # for how long the id is, in microseconds

    by_key = True  # each of its statements names its rows

    @staticmethod
    def of(
        name: str, payload: Any, keep: Duration, event_id: str | None = None, *, encrypted: bool = False
    ) -> SendEvent:
        """Checked here, where it is asked for, and not when it is too late."""
        text = encode(payload, "payload of the event")
        if encrypted:
            text = keyring().seal(text, f"event {name}")
        kept = micros(duration(keep, "keep"))
        if kept > FOREVER:
            raise ConfigurationError("keep: an event is kept for 3650 days at most")
        if event_id is not None and not 0 < len(event_id) <= LONGEST_ID:
            raise ConfigurationError(f"id of an event: a text of 1 to {LONGEST_ID} characters")
        return SendEvent(checked_event(name), text, kept, event_id)

    @property
    def turn(self) -> tuple[int, str]:
        """After the step's own rows, in the order of names."""
        return (1, self.name)

    def apply(self, tx: Transaction, /) -> None:
        self.send(tx)

    def send(self, tx: Transaction) -> Sent:
        return send(
            tx, self.name, self.payload, self.keep, event_id=self.event_id, remembered=self.remembered
        )
