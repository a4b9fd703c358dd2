"""One step of a sweep: count a part of the feed, or strike a batch of rows. The last one completes the run.

    counting ──► striking ──► done ──► complete
        └──► held, if too many rows would go: a person approves or declines (`admin/sweeps.py`, which also undoes a sweep)

`lifecycle.py` decides whether a run is swept, and begins it; the statements are in `sweep_rows.py`, the limits of a sweep in
`feed.Sweep`.

A strike: one full run did not see the row. After as many of them as the feed's `Sweep` says, the row is gone. A row that is
seen again loses its strikes, and comes back (`raw_rows.py`).

The rows to strike are looked for outside of any transaction, in stretches, so that no statement takes long on a large
feed. The commit looks again at the few that were found, and locks them: a row that was observed meanwhile is left alone.

Before rows go, the source is asked whether it still has them, if the feed can (`still_there`). A full run may miss a row
that is there: one that moves to a partition which has been read already. If that happens in several full runs in a row,
the row would go. The source is asked about those that would go with this strike, and about no others. A row that the
source still has is not struck.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stepfast.clock import micros
from stepfast.coroutines import answer_of
from stepfast.database.tables import columns_of
from stepfast.errors import AnswerError, ConfigurationError
from stepfast.jobs.outcome import Continue, Done, Outcome, Snooze
from stepfast.jobs.step import Step  # noqa: TC001 - a handler's hints are read at run time
from stepfast.runs import alerts
from stepfast.runs.breaker import Waiter
from stepfast.runs.lifecycle import complete
from stepfast.runs.run import Run, RunState, find_run, lock_run
from stepfast.runs.sweep_rows import (
    BATCH,
    STRETCH,
    SweepState,
    UnseenBy,
    count_stretch,
    end_of_stretch,
    forget_gone,
    keep_sweep,
    old_gone_rows,
    strike_rows,
    sweep_state,
    unseen_rows,
)
from stepfast.telemetry import when_committed

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.breaker import Breaker
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.sweep_rows import UnseenRow


STRETCHES: Final = 20  # that one step walks over
LOOK_AGAIN: Final = timedelta(minutes=5)  # at a held sweep; approving it wakes its job up


class SweepJob:
    """The job that sweeps for one run."""

    def __init__(self, declared: Declaration, database: Callable[[], Database], breaker: Breaker) -> None:
        self._declared = declared
        self._database = database
        self._breaker = breaker

    async def sweep(self, step: Step, run_id: str, epoch: int) -> Outcome:
        """One step. If rows would go that the source may still have, it is asked first, outside of any transaction."""
        step.annotate(run_id=run_id)
        found = await asyncio.to_thread(self._next, run_id, epoch)
        if not isinstance(found, GoingRows):
            return found
        return await self._breaker.guard(step, Waiter("run", run_id), self._confirm(found))

    def _next(self, run_id: str, epoch: int) -> Outcome | GoingRows:
        """What this step does, or the rows about which the source must be asked first."""
        declared = self._declared
        with self._database().looking() as tx:
            run = find_run(tx, run_id)
            state = sweep_state(run)
            if run.phase is not RunState.SWEEPING or run.epoch != epoch or state is None:
                return Done("this run is no longer swept by this job")
            match state.phase:
                case "counting":
                    return _count(tx, declared, run, state)
                case "striking":
                    return _strike(tx, declared, run, state)
                case "held":
                    # The commit moves the run, so that it does not pass for stalled: it waits for a person.
                    pause = min(LOOK_AGAIN, declared.stall_after / 2)
                    return Snooze(pause, effects=[KeepSweep(run, state, state)])
                case "declined" | "skipped" | "done":
                    return Done({"sweep": state.phase, "note": state.note}, effects=[EndSweep(declared, run)])

    async def _confirm(self, going: GoingRows) -> Outcome:
        """Ask the source, and strike the rows that are really gone."""
        return going.confirmed(await still_at_source(self._declared, going.ids))


# Counting: how many rows would go, and whether a person must decide about it.


def _count(tx: Transaction, declared: Declaration, run: Run, state: SweepState) -> Outcome:
    by, now = _unseen_by(run, state), state
    for _ in range(STRETCHES):
        stretch = count_stretch(tx, by, now.after)
        now = now.then(
            after=stretch.last or now.after,
            living=now.living + stretch.living,
            unseen=now.unseen + stretch.unseen,
            going=now.going + stretch.going,
        )
        if stretch.rows < STRETCH:
            now = _decided(declared, run, now)
            break
    return Continue(now.steps, effects=[KeepSweep(run, state, now)])


def _decided(declared: Declaration, run: Run, state: SweepState) -> SweepState:
    """All rows are counted: strike them, or hold the sweep if too many would go."""
    sweep = declared.sweep
    if sweep is None:
        return state.then(phase="skipped", note="the feed does not sweep any more")
    held = sweep.holds(state.going, state.living)
    if held is None and state.going and run.rejected:
        held = f"{state.going:,} rows would go, and {run.rejected:,} had no identity: they may be among them"
    if held is not None:
        return state.then(phase="held", note=held)
    return state.then(phase="striking", after="")


def _unseen_by(run: Run, state: SweepState) -> UnseenBy:
    return UnseenBy(run.feed, run.id, state.before, state.strikes)


@dataclass(frozen=True)
class KeepSweep:
    """Moves the sweep from one state to the next; a sweep that is held raises an alert."""

    run: Run
    was: SweepState
    now: SweepState

    def apply(self, tx: Transaction, /) -> None:
        keep_sweep(tx, self.run, self.was, self.now)
        if self.now.phase == "held" and self.was.phase != "held":
            alerts.sweep_held(tx, self.run, self.now.note or "")
            when_committed(tx, "sweep.held", self.run, note=self.now.note)


# Striking: a batch of rows gets its strikes, and those that have enough go.


def _strike(tx: Transaction, declared: Declaration, run: Run, state: SweepState) -> Outcome | GoingRows:
    by, after = _unseen_by(run, state), state.after
    kept = None if declared.sweep is None or declared.sweep.keeps is None else micros(declared.sweep.keeps)
    found: list[UnseenRow] = []
    old: list[str] = []
    phase = state.phase
    for _ in range(STRETCHES):
        until, is_last = end_of_stretch(tx, run.feed, after)
        if until is not None:
            every = unseen_rows(tx, by, after, until)
            found = first_to_confirm(declared, every)
            if len(found) < len(every) or len(every) == BATCH:
                is_last, until = False, found[-1].item_id
            old = [] if kept is None else old_gone_rows(tx, run.feed, after, until, kept)
        after, phase = until or after, "done" if is_last else phase
        if found or old or is_last:
            break
    if state.struck + state.still_there + len(found) > state.unseen:
        return Continue(state.steps, effects=[KeepSweep(run, state, _counting_anew(state))])
    going = [row.item_id for row in found if row.goes]
    batch = StrikeBatch(
        run,
        state,
        state.then(after=after, phase=phase),
        [row.item_id for row in found],
        old,
        kept or 0,
        _column_type(tx, state),
        may_go=frozenset() if declared.confirms else None,
    )
    return GoingRows(batch, going) if declared.confirms and going else batch.outcome


def first_to_confirm(declared: Declaration, found: list[UnseenRow]) -> list[UnseenRow]:
    """As many of the rows, from the first on, as the source is asked about at once; all, if it is not asked."""
    if not declared.confirms:
        return found
    going = 0
    for index, row in enumerate(found):
        going += row.goes
        if going == declared.confirm_lot:
            return found[: index + 1]
    return found


def _counting_anew(state: SweepState) -> SweepState:
    """There are more rows than were counted, for an earlier sweep was undone meanwhile: these were not allowed to go."""
    return state.then(
        phase="counting", after="", living=0, unseen=0, going=0, struck=0, still_there=0, note=None
    )


def _column_type(tx: Transaction, state: SweepState) -> str:
    table, column = state.target.table, state.target.column
    found = columns_of(tx, table)
    if column not in found:
        raise ConfigurationError(
            f"table {table} has no column {column}; add one that may be NULL, or set Sweep(column=…)"
        )
    return found[column]


@dataclass(frozen=True)
class StrikeBatch:
    """A batch of strikes, with the target rows of those that are gone, and the run's counters."""

    run: Run
    was: SweepState
    now: SweepState
    ids: Sequence[str]
    old: Sequence[str]  # gone for long enough to be forgotten
    kept: int
    column_type: str
    may_go: frozenset[str] | None  # None: all of them, for the source cannot be asked

    @property
    def outcome(self) -> Outcome:
        return Continue(self.now.steps, effects=[self])

    def apply(self, tx: Transaction, /) -> None:
        struck, gone = 0, 0
        if self.ids:
            by = _unseen_by(self.run, self.was)
            struck, gone = strike_rows(tx, by, self.ids, self.was.target, self.column_type, self.may_go)
        if self.old:
            forget_gone(tx, self.run.feed, self.old, self.kept)
        keep_sweep(tx, self.run, self.was, self.now.then(struck=self.was.struck + struck), gone=gone)


# Asking the source.


@dataclass(frozen=True)
class GoingRows:
    """A batch of strikes that would let rows go: the source is asked whether it still has them."""

    batch: StrikeBatch
    ids: Sequence[str]

    def confirmed(self, still_there: frozenset[str]) -> Outcome:
        """A row that the source still has is not struck; the next sweep that misses it may strike it."""
        now = self.batch.now
        if still_there:
            number = now.still_there + len(still_there)
            now = now.then(still_there=number, note=note_still_there(number))
        return replace(self.batch, now=now, may_go=frozenset(self.ids) - still_there).outcome


async def still_at_source(declared: Declaration, ids: Sequence[str]) -> frozenset[str]:
    """Which of these rows the source still has."""
    answer = await answer_of(declared.feed.still_there, list(ids))
    if isinstance(answer, str | bytes) or not isinstance(answer, Collection):
        raise _wrong_answer(
            f"is {type(answer).__name__}; answer a list of those ids that the source still has"
        )
    unasked = [item_id for item_id in answer if item_id not in ids]
    if unasked:
        raise _wrong_answer(
            f"names {unasked[0]!r:.80}, which nobody asked about; ids are what identify() answers"
        )
    return frozenset(answer)


def _wrong_answer(problem: str) -> AnswerError:
    return AnswerError("answer of still_there()", problem)


def note_still_there(number: int) -> str:
    """What operators read about rows that the source still has."""
    rows = "1 row that was not seen is" if number == 1 else f"{number:,} rows that were not seen are"
    return f"{rows} still at the source"


# The end of the sweep.


@dataclass(frozen=True)
class EndSweep:
    """Completes the run, whether rows are gone or not."""

    declared: Declaration
    run: Run

    def apply(self, tx: Transaction, /) -> None:
        run = lock_run(tx, self.run.id)
        if run.phase is RunState.SWEEPING and run.epoch == self.run.epoch:
            complete(tx, self.declared, run)
