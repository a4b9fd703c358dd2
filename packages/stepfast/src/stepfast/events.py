"""`app.events`: tell the jobs that wait what happened outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepfast.database.lending import within
from stepfast.jobs.events import SendEvent

if TYPE_CHECKING:
    from stepfast.clock import Duration
    from stepfast.database.database import Database
    from stepfast.database.lending import Lent
    from stepfast.jobs.events import Sent


class Events:
    """Events by name. Each goes to one wait, the oldest; one that nobody waits for is kept."""

    def __init__(self, database: Database, *, encrypted: bool = False) -> None:
        self._database = database
        self._encrypted = encrypted

    def send(
        self,
        name: str,
        payload: Any = None,
        *,
        keep: Duration = "1d",
        id: str | None = None,  # noqa: A002 - the word users know
        encrypted: bool | None = None,
        tx: Lent = None,
    ) -> Sent:
        """Wake the job that has waited longest for `name`, or keep the event for the first that comes to wait.

        With `tx` it happens when that transaction commits. The same `id` again changes nothing. With `keep=0` the event
        is lost if nobody waits.
        """
        sealed = self._encrypted if encrypted is None else encrypted
        event = SendEvent.of(name, payload, keep, id, encrypted=sealed)
        return within(self._database, tx, event.send)

    async def send_async(self, name: str, payload: Any = None, *, tx: Any = None, **options: Any) -> Sent:
        """`send`, awaited: `tx` may be an async connection, and the event loop is not held up."""
        from stepfast.database.lending_async import within_async  # asyncio: not for programs without a loop

        return await within_async(
            self._database, tx, lambda inner: self.send(name, payload, tx=inner, **options)
        )
