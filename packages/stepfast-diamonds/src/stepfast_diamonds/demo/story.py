"""The demo from the first process to the last comparison: a full sync with a crash, then an incremental one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stepfast import Stepfast
from stepfast.applications import counted
from stepfast.errors import StepfastError
from stepfast.reports import RunState
from stepfast.webhooks import NotificationSettings
from stepfast_diamonds.demo.comparison import compare, rows_of
from stepfast_diamonds.demo.crash import Crash, TakenOver, kill, noticed_after, taken_over
from stepfast_diamonds.demo.folder import DemoPlace, choose_place, leave_place, worker_environment
from stepfast_diamonds.demo.processes import Workers, running_broker, running_workers
from stepfast_diamonds.demo.screen import (
    DemoScreen,
    show_comparison,
    show_messages,
    show_next_commands,
    show_rates,
)
from stepfast_diamonds.demo.source import FEED_OPTIONS, DemoSource, running_source
from stepfast_diamonds.feed import NATURAL, nivoda
from stepfast_diamonds.schema import prepare

if TYPE_CHECKING:
    from stepfast.reports import RunProgress, RunReport
    from stepfast_diamonds.demo.comparison import Comparison


POLL: Final = 0.1
REFRESH: Final = 0.5
START_TRIES: Final = 8  # of a request that begins a run: the source has faults
HOUR_PASSED: Final = "1h"  # of the source's time, while stones change
QUIET_PASSED: Final = "10m"  # and while nothing does


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The options of `stepfast demo`."""

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


def run_demo(options: DemoOptions) -> bool:
    """Run the demo; True if the table and the source are the same in the end."""
    screen = DemoScreen()
    screen.title(
        f"Stepfast demo: {options.stones:,} diamonds, {_workers_text(options.workers)}{', one kill -9' if options.kill else ''}"
    )
    place = choose_place(options.directory, options.database)
    with ExitStack() as stack:
        stack.callback(leave_place, place, keep=options.keep)
        source = stack.enter_context(_source(screen, options))
        app = stack.enter_context(_database(screen, place, source))
        environment = worker_environment(place.url, source.account, os.environ)
        if options.transport is not None:
            environment |= stack.enter_context(_broker(screen, options.transport))
        workers = stack.enter_context(_started(screen, options, place, environment))
        full = _full(screen, options, app, source, workers)
        incremental = None if full is None else _incremental(screen, app, source, workers)
        if full is None or incremental is None:
            show_next_commands(screen, place, keep=options.keep)
            return False
        found = _comparison(screen, app, source)
        show_comparison(screen, found)
        show_rates(screen, (full, incremental), source.statistics())
        if options.transport is not None:
            show_messages(screen, app)
        show_next_commands(screen, place, keep=options.keep)
        return found.clean


@contextmanager
def _source(screen: DemoScreen, options: DemoOptions) -> Iterator[DemoSource]:
    screen.chapter("The source")
    with running_source(
        options.stones, port=options.port, seed=options.seed, faults=options.faults
    ) as source:
        screen.say(
            f"a simulator of Nivoda's API serves {options.stones:,} stones at {source.account.url} (pid {source.pid})"
        )
        screen.more(
            "it behaves like the real one on a bad day: pages come short, ties are shuffled, answers break off"
        )
        yield source


@contextmanager
def _database(screen: DemoScreen, place: DemoPlace, source: DemoSource) -> Iterator[Stepfast]:
    with closing(Stepfast(place.url, notifications=NotificationSettings(), transport="")) as app:
        app.migrate()
        prepare(app)
        nivoda(app, settings=source.account, natural=FEED_OPTIONS, labgrown=FEED_OPTIONS)
        screen.say(f"the tables are in {place.shown_url}")
        yield app


@contextmanager
def _broker(screen: DemoScreen, transport: str) -> Iterator[Mapping[str, str]]:
    with running_broker(transport) as found:
        screen.say(found.told)
        screen.more("the database stays the truth: a message that is lost or comes twice changes nothing")
        yield found.environment


@contextmanager
def _started(
    screen: DemoScreen, options: DemoOptions, place: DemoPlace, environment: dict[str, str]
) -> Iterator[Workers]:
    with running_workers(options.workers, place.folder, environment) as workers:
        pids = ", ".join(str(it.pid) for it in workers.all)
        screen.say(
            f"{_workers_text(options.workers)} started: their guardians have the pids {pids}; their logs are in {place.folder}"
        )
        yield workers


def _full(
    screen: DemoScreen, options: DemoOptions, app: Stepfast, source: DemoSource, workers: Workers
) -> RunReport | None:
    screen.chapter("A full sync, while the source goes on selling")
    source.live()
    watcher = CrashWatcher(screen, app) if options.kill else None
    done = _run_to_end(screen, app, source, workers, None if watcher is None else watcher.look)
    if watcher is not None:
        watcher.end()
    return done


def _incremental(screen: DemoScreen, app: Stepfast, source: DemoSource, workers: Workers) -> RunReport | None:
    screen.chapter("An hour later: an incremental sync of what has changed")
    before = source.statistics()["changes"]
    source.advance(HOUR_PASSED)
    source.rest()
    source.advance(QUIET_PASSED)
    changed = source.statistics()["changes"] - before
    screen.say(
        f"the clock of the source was moved by {HOUR_PASSED}, in which stones came, went or changed their price "
        f"{counted(changed, 'time')}, and by {QUIET_PASSED} more, in which nothing happened"
    )
    return _run_to_end(screen, app, source, workers)


def _run_to_end(
    screen: DemoScreen,
    app: Stepfast,
    source: DemoSource,
    workers: Workers,
    look: Callable[[RunProgress], None] | None = None,
) -> RunReport | None:
    """Start a run and show it to its end; None if it failed."""
    before = source.counts()
    run = _start_run(app)
    screen.say(f"run {run.id} is started: {run.kind}")
    observer = app.runs.observe(run.id)
    with screen.run(observer, lambda: source.counts() - before) as show:
        for progress in observer.watch(poll=POLL, every=REFRESH):
            show(progress)
            if look is not None:
                look(progress)
            workers.require_one()
    done = app.runs.show(run.id).run
    if done.state is not RunState.COMPLETED:
        screen.say(f"the run is {done.state}: {done.reason or 'nobody says why'}", "bold red")
        return None
    screen.say(
        f"{done.state}: {done.seen:,} rows read in {counted(done.partitions, 'partition')}, {done.applied:,} written",
        "green",
    )
    moved = "" if done.watermark_before is None else f" from {done.watermark_before:%H:%M:%S}"
    screen.say(
        f"the watermark has moved{moved} to {done.watermark_after:%Y-%m-%d %H:%M:%S} of the source's clock"
    )
    if done.unverified:
        screen.more(
            f"{counted(done.unverified, 'partition')} could not be verified: a debt each, which the next run reads"
        )
    return done


def _start_run(app: Stepfast) -> RunReport:
    """Start a run, and again if the source failed: workers retry by themselves, but a command does not."""
    for _ in range(START_TRIES - 1):
        with suppress(StepfastError):
            return app.runs.start(NATURAL)
        time.sleep(POLL)
    return app.runs.start(NATURAL)


def _comparison(screen: DemoScreen, app: Stepfast, source: DemoSource) -> Comparison:
    screen.chapter("The table against the oracle, which knows every stone of the source")
    changed = {it.id for it in source.changes()}
    return compare(source.stones(), rows_of(app), changed)


def _workers_text(count: int) -> str:
    return "one worker" if count == 1 else f"{count} workers"


KILL_AT: Final = 0.35  # of the rows
PARTITIONS_SHOWN: Final = 3  # of the partitions that were held


class CrashWatcher:
    """Kills a worker in the middle of the full sync, and reports what happens to its partitions."""

    def __init__(self, screen: DemoScreen, app: Stepfast) -> None:
        self._screen = screen
        self._app = app
        self._crash: Crash | None = None
        self._noticed = False
        self._left: set[str] = set()  # partitions that no other worker has taken over yet

    def look(self, progress: RunProgress) -> None:
        """Called with every progress of the run."""
        if self._crash is None:
            if progress.state is RunState.FETCHING and progress.rows >= KILL_AT * (progress.expected or 1):
                self._kill()
        elif self._left:
            self._follow(self._crash)

    def end(self) -> None:
        """Called when the run has ended."""
        if self._crash is None:
            self._screen.say("nobody was killed: the sync was over too soon; use more --stones", "yellow")
        elif self._left:
            self._screen.say(
                f"{partitions_text(len(self._left))} had been read to the end in that very moment"
            )

    def _kill(self) -> None:
        crash = self._crash = kill(self._app)
        if crash is None:
            return
        self._left = {it.row_id for it in crash.held}
        self._screen.say(f"kill -9 {crash.pid}: {crash.worker} is dead, in the middle of a page", "bold red")
        self._screen.more(
            f"it held the leases of {partitions_text(len(crash.held))}, whose next pages were not committed:"
        )
        for it in crash.held[:PARTITIONS_SHOWN]:
            self._screen.more(f"  partition-{it.number} ({it.name}), read up to row {it.offset:,}")
        if len(crash.held) > PARTITIONS_SHOWN:
            self._screen.more(f"  and {len(crash.held) - PARTITIONS_SHOWN} more")

    def _follow(self, crash: Crash) -> None:
        with self._app.reading() as tx:
            noticed = noticed_after(tx, crash)
            taken = taken_over(tx, crash)
        if noticed is not None and not self._noticed:
            self._noticed = True
            self._screen.say(
                f"{noticed:.1f} s after the kill its guardian has told the others that {crash.worker} is dead",
                "yellow",
            )
            self._screen.more(
                "pages that had begun go on in a disposable process: one of them may have killed it; the others go on anywhere"
            )
        for it in taken:
            self._tell(crash, it)

    def _tell(self, crash: Crash, taken: TakenOver) -> None:
        held = taken.held
        if held.row_id not in self._left:
            return
        self._left.remove(held.row_id)
        if len(crash.held) - len(self._left) <= PARTITIONS_SHOWN:
            self._screen.say(
                f"{taken.after:.1f} s after the kill {taken.by} has read partition-{held.number} on from row {held.offset:,}",
                "yellow",
            )
        if not self._left:
            self._screen.say(
                f"{taken.after:.1f} s after the kill all {partitions_text(len(crash.held))} go on where they were",
                "green",
            )


def partitions_text(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
