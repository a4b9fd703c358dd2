"""Messages whose tasks are at work, until their ends are committed and whoever asked has been told."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stepfast.database.statement import sql
from stepfast.errors import DatabaseError
from stepfast.steps.threads import in_own_thread
from stepfast.tasks.ends import End, ends
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from stepfast.database.database import Database
    from stepfast.tasks.holding import Held, Holding
    from stepfast.tasks.storing import Stored

LOOK: Final = 0.1  # seconds
AWAY: Final = 1.0  # while the database does not answer
GONE_AFTER: Final = 3  # looks; a job on its way from one table to the other is seen by the next one

LIVE = sql("SELECT id, state FROM stepfast_job WHERE id {any_of:ids}")
AT_WORK: Final = frozenset({"ready", "suspect", "leased"})  # others wait for a later moment


@dataclass(eq=False)
class Followed:
    stored: Stored
    held: Held
    missing: int = 0
    let_go: bool = False  # by us, because the task has ended
    at_work: bool = True  # it has a slot, or wants one

    @property
    def lost(self) -> bool:
        """Its message is another's: nobody here can say that the task ended well."""
        return self.held.over and not self.let_go


class Following:
    """Looks at all of them together. Runs on the intake's event loop."""

    def __init__(self, database: Database, holding: Holding, queue: str) -> None:
        self._database = database
        self._holding = holding
        self._queue = queue
        self._followed: list[Followed] = []
        self.patience = timedelta(0)  # for webhooks under way when the worker has stopped
        self._failed = 0

    @property
    def failed(self) -> int:
        """Tasks that did not end well, as far as we know."""
        return self._failed + sum(it.lost for it in self._followed)

    @property
    def at_work(self) -> int:
        """How many were being worked on when we last looked."""
        return sum(it.at_work and not it.held.over for it in self._followed)

    def add(self, stored: Stored, held: Held) -> None:
        self._followed.append(Followed(stored, held))

    async def until_left(self, left: asyncio.Event) -> None:
        """End what can be ended; when we leave, once more, and what only waits for its webhook gets a moment."""
        while not left.is_set():
            await self._look()
            await _wait(left, LOOK)
        until = asyncio.get_running_loop().time() + self.patience.total_seconds()
        while await self._look() and asyncio.get_running_loop().time() < until:
            await _wait(asyncio.Event(), LOOK)

    async def until_empty(self, left: asyncio.Event) -> None:
        """Wait until all that was taken is over."""
        while self._followed and not left.is_set():
            self._drop()
            await _wait(left, LOOK)

    async def _look(self) -> bool:
        """End what has ended; whether there are others that only wait to be told of."""
        self._drop()
        if not self._followed:
            return False
        try:
            ended, live = await in_own_thread(self._states)
        except DatabaseError:
            await asyncio.sleep(AWAY)  # nothing is known, nothing is let go
            return True
        over: list[tuple[Followed, End | None]] = []
        for it in self._followed:
            end = ended.get(it.stored.job_id)
            it.at_work = live.get(it.stored.job_id) in AT_WORK
            it.missing = 0 if end is not None or it.stored.job_id in live else it.missing + 1
            if (end is not None and end.settled) or it.missing >= GONE_AFTER:
                over.append((it, end))
        await asyncio.gather(*(self._let_go(it, end) for it, end in over))
        return any(not it.held.over and it.stored.job_id in ended for it in self._followed)

    def _drop(self) -> None:
        """Forget what is over."""
        self._failed = self.failed
        self._followed = [it for it in self._followed if not it.held.over]

    def _states(self) -> tuple[dict[str, End], dict[str, str]]:
        ids = [it.stored.job_id for it in self._followed]
        with self._database.reading() as tx:
            ended = ends(tx, ids)
            rows = tx.rows(LIVE, ids=[it for it in ids if it not in ended])
        live = {str(row[0]): str(row[1]) for row in rows}
        return ended, live

    async def _let_go(self, it: Followed, end: End | None) -> None:
        """A dead task's message goes where the broker keeps such; one that an operator ended just goes."""
        it.let_go = True
        self._failed += end is None or end.state != "done"
        if end is not None and end.state == "dead":
            refused = it.stored.refused
            reason = "refused" if refused is not None else end.error.partition(":")[0] or "failed"
            ended = await self._holding.put_aside(it.held, reason, refused.reason if refused else end.error)
        else:
            ended = await self._holding.complete(it.held)
        if ended:
            state = "gone" if end is None else end.state
            happened(
                "task.ended",
                queue=self._queue,
                task_id=it.stored.task_id,
                job_id=it.stored.job_id,
                state=state,
            )


async def _wait(event: asyncio.Event, seconds: float) -> None:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
