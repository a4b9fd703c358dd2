"""The crash of the demo, told as it happens: who dies, what it held, who notices, who takes over and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepfast.demo.crash import Crash, TakenOver, kill, noticed_after, taken_over
from stepfast.runs.states import RunState

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.admin.reports.run_progress import RunProgress
    from stepfast.cli.demo_telling import Telling
    from stepfast.demo.workers import Workers

KILL_AT: Final = 0.35  # of the rows
SHOWN: Final = 3  # of the partitions that were held


class CrashWatcher:
    """Kills a worker when the time has come, and tells what becomes of its work."""

    def __init__(self, telling: Telling, app: Stepfast, workers: Workers) -> None:
        self._telling = telling
        self._app = app
        self._workers = workers
        self._crash: Crash | None = None
        self._noticed = False
        self._left: set[str] = set()  # partitions that nobody has taken over yet

    def look(self, progress: RunProgress) -> None:
        """Called whenever the run has come along."""
        if self._crash is None:
            if progress.state is RunState.FETCHING and progress.rows >= KILL_AT * (progress.expected or 1):
                self._kill()
        elif self._left:
            self._follow(self._crash)

    def end(self) -> None:
        """The run is over."""
        if self._crash is None:
            self._telling.say("nobody was killed: the sync was over too soon; use more --stones", "yellow")
        elif self._left:
            self._telling.say(f"{partitions(len(self._left))} had been read to the end in that very moment")

    def _kill(self) -> None:
        crash = self._crash = kill(self._app, self._workers)
        if crash is None:
            return
        self._left = {it.partition_id for it in crash.held}
        self._telling.say(f"kill -9 {crash.pid}: {crash.worker} is dead, in the middle of a page", "bold red")
        self._telling.more(
            f"it held the leases of {partitions(len(crash.held))}, whose next pages were not committed:"
        )
        for it in crash.held[:SHOWN]:
            self._telling.more(f"  partition-{it.number} ({it.name}), read up to row {it.offset:,}")
        if len(crash.held) > SHOWN:
            self._telling.more(f"  and {len(crash.held) - SHOWN} more")

    def _follow(self, crash: Crash) -> None:
        with self._app.reading() as tx:
            noticed = noticed_after(tx, crash)
            taken = taken_over(tx, crash)
        if noticed is not None and not self._noticed:
            self._noticed = True
            self._telling.say(
                f"{noticed:.1f} s after the kill the others know that {crash.worker} is dead", "yellow"
            )
            self._telling.more(
                "what it held runs alone now, in processes of its own: one of them may have killed it"
            )
        for it in taken:
            self._tell(crash, it)

    def _tell(self, crash: Crash, taken: TakenOver) -> None:
        held = taken.held
        if held.partition_id not in self._left:
            return
        self._left.remove(held.partition_id)
        if len(crash.held) - len(self._left) <= SHOWN:
            self._telling.say(
                f"{taken.after:.1f} s after the kill {taken.by} has read partition-{held.number} on from row {held.offset:,}",
                "yellow",
            )
        if not self._left:
            self._telling.say(
                f"{taken.after:.1f} s after the kill all {partitions(len(crash.held))} go on where they were",
                "green",
            )


def partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
