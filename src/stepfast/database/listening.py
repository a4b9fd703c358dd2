"""Whether what is notified on a database is heard where we listen.

A second URL may lead to another database, and a pooler swallows LISTEN without a word: hearing oneself is the proof.
"""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, Final

from stepfast.database.database import Database, persist
from stepfast.database.wakeup import CHANNEL, NOTIFY

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction

GREETING: Final = "!hello:"  # begins a payload that is no queue, and means nobody but its sender
GREETING_SECONDS: Final = 5.0


def greet(database: Database) -> str:
    """Notify everybody who listens of a word that only we wait for; returns the word."""
    word = GREETING + os.urandom(8).hex()

    def say(tx: Transaction) -> int:
        return tx.run(NOTIFY, queue=word)

    persist(database, say)
    return word


def hears_itself(database: Database, seconds: float = GREETING_SECONDS) -> bool:
    """Whether a worker on this database would be woken."""
    with closing(database.connect_to_listen()) as connection:
        connection.execute(f"LISTEN {CHANNEL}")
        word = greet(database)
        return any(notice.payload == word for notice in connection.raw.notifies(timeout=seconds))
