"""The story of the demo, from the first process to the last comparison."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stepfast import Stepfast
from stepfast.applications import NotificationSettings, RunState, counted, watch_run
from stepfast.errors import StepfastError
from stepfast_diamonds.demo.comparison import compare, rows_of
from stepfast_diamonds.demo.crash import Crash, TakenOver, kill, noticed_after, taken_over
from stepfast_diamonds.demo.folder import Place, choose, leave, surroundings
from stepfast_diamonds.demo.processes import Workers, broker, running
from stepfast_diamonds.demo.screen import Telling, after_all, show_comparison, show_messages, show_rates
from stepfast_diamonds.demo.source import MOVED, Source, serving
from stepfast_diamonds.feed import NATURAL, nivoda
from stepfast_diamonds.schema import prepare

if TYPE_CHECKING:
    from stepfast.applications import RunProgress, RunReport
    from stepfast_diamonds.demo.comparison import Comparison


# The crash of the demo, told as it happens: who dies, what it held, who notices, who takes over and when.

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


POLL: Final = 0.1
REFRESH: Final = 0.5
TRIES: Final = 8  # of a request that begins a run: the source has faults
PASSED: Final = "1h"  # of the source's time, while stones change
SETTLED: Final = "10m"  # and while nothing does


@dataclass(frozen=True, kw_only=True)
class Story:
    """What was asked for."""

    stones: int
    workers: int
    kill: bool
    database: str | None
    directory: Path | None
    keep: bool
    port: int
    seed: int
    faults: str
    transport: str | None = None


def tell(story: Story) -> bool:
    """Tell it; True if the table and the source are the same in the end."""
    telling = Telling()
    telling.title(
        f"Stepfast demo: {story.stones:,} diamonds, {_workers(story.workers)}{', one kill -9' if story.kill else ''}"
    )
    place = choose(story.directory, story.database)
    with ExitStack() as stack:
        stack.callback(leave, place, keep=story.keep)
        source = stack.enter_context(_source(telling, story))
        app = stack.enter_context(_database(telling, place, source))
        environment = surroundings(place.url, source.account, os.environ)
        if story.transport is not None:
            environment |= stack.enter_context(_broker(telling, story.transport))
        workers = stack.enter_context(_started(telling, story, place, environment))
        full = _full(telling, story, app, source, workers)
        incremental = None if full is None else _incremental(telling, app, source, workers)
        if full is None or incremental is None:
            after_all(telling, place, keep=story.keep)
            return False
        found = _compared(telling, app, source)
        show_comparison(telling, found)
        show_rates(telling, (full, incremental), source.statistics())
        if story.transport is not None:
            show_messages(telling, app)
        after_all(telling, place, keep=story.keep)
        return found.clean


@contextmanager
def _source(telling: Telling, story: Story) -> Iterator[Source]:
    telling.chapter("The source")
    with serving(story.stones, port=story.port, seed=story.seed, faults=story.faults) as source:
        telling.say(
            f"a simulator of Nivoda's API serves {story.stones:,} stones at {source.account.url} (pid {source.pid})"
        )
        telling.more(
            "it behaves like the real one on a bad day: pages come short, ties are shuffled, answers break off"
        )
        yield source


@contextmanager
def _database(telling: Telling, place: Place, source: Source) -> Iterator[Stepfast]:
    with closing(Stepfast(place.url, notifications=NotificationSettings(), transport="")) as app:
        app.migrate()
        prepare(app)
        nivoda(app, settings=source.account, natural=MOVED, labgrown=MOVED)
        telling.say(f"the tables are in {place.shown_url}")
        yield app


@contextmanager
def _broker(telling: Telling, transport: str) -> Iterator[Mapping[str, str]]:
    with broker(transport) as found:
        telling.say(found.told)
        telling.more("the database stays the truth: a message that is lost or comes twice changes nothing")
        yield found.environment


@contextmanager
def _started(telling: Telling, story: Story, place: Place, environment: dict[str, str]) -> Iterator[Workers]:
    with running(story.workers, place.folder, environment) as workers:
        pids = ", ".join(str(it.pid) for it in workers.all)
        telling.say(f"{_workers(story.workers)} started: pids {pids}; their logs are in {place.folder}")
        yield workers


def _full(
    telling: Telling, story: Story, app: Stepfast, source: Source, workers: Workers
) -> RunReport | None:
    telling.chapter("A full sync, while the source goes on selling")
    source.live()
    watcher = CrashWatcher(telling, app, workers) if story.kill else None
    done = _watched(telling, app, source, workers, None if watcher is None else watcher.look)
    if watcher is not None:
        watcher.end()
    return done


def _incremental(telling: Telling, app: Stepfast, source: Source, workers: Workers) -> RunReport | None:
    telling.chapter("An hour later: an incremental sync of what has changed")
    before = source.statistics()["changes"]
    source.advance(PASSED)
    source.rest()
    source.advance(SETTLED)
    changed = source.statistics()["changes"] - before
    telling.say(
        f"the clock of the source was moved by {PASSED}, in which stones came, went or changed their price "
        f"{counted(changed, 'time')}, and by {SETTLED} more, in which nothing happened"
    )
    return _watched(telling, app, source, workers)


def _watched(
    telling: Telling,
    app: Stepfast,
    source: Source,
    workers: Workers,
    look: Callable[[RunProgress], None] | None = None,
) -> RunReport | None:
    """Begin a run and show it to its end; None if it has failed."""
    before = source.counts()
    run = _begun(app)
    telling.say(f"run {run.id} is started: {run.kind}")
    with telling.run(app, run.id, lambda: source.counts() - before) as show:
        for progress, observer in watch_run(app, run.id, poll=POLL, every=REFRESH):
            show(progress, observer)
            if look is not None:
                look(progress)
            workers.require_one()
    done = app.runs.show(run.id).run
    if done.state is not RunState.COMPLETED:
        telling.say(f"the run is {done.state}: {done.reason or 'nobody says why'}", "bold red")
        return None
    telling.say(
        f"{done.state}: {done.seen:,} rows read in {counted(done.partitions, 'partition')}, {done.applied:,} written",
        "green",
    )
    moved = "" if done.watermark_before is None else f" from {done.watermark_before:%H:%M:%S}"
    telling.say(
        f"the watermark has moved{moved} to {done.watermark_after:%Y-%m-%d %H:%M:%S} of the source's clock"
    )
    if done.unverified:
        telling.more(
            f"{counted(done.unverified, 'partition')} could not be verified: a debt each, which the next run reads"
        )
    return done


def _begun(app: Stepfast) -> RunReport:
    """A request to a source with faults may fail. Workers try again by themselves; whoever types a command does it."""
    for _ in range(TRIES - 1):
        with suppress(StepfastError):
            return app.runs.start(NATURAL)
        time.sleep(POLL)
    return app.runs.start(NATURAL)


def _compared(telling: Telling, app: Stepfast, source: Source) -> Comparison:
    telling.chapter("The table against the oracle, which knows every stone of the source")
    changed = {it.id for it in source.changes()}
    return compare(source.stones(), rows_of(app), changed)


def _workers(count: int) -> str:
    return "one worker" if count == 1 else f"{count} workers"
