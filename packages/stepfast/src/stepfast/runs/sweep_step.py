"""One step of a sweep: count a part of the feed, or strike a batch of rows. The last one completes the run.

Who is struck is looked for outside of any transaction, in stretches, so that no statement takes long on a large feed.
The commit looks again at the few that were found, and locks them: what was observed meanwhile is left alone. If the
feed can be asked whether the source still has them, it is, before anybody goes (see `confirming`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stepfast.clock import micros
from stepfast.database.tables import columns_of
from stepfast.errors import AnswerError, ConfigurationError
from stepfast.jobs.outcome import Continue, Done, Outcome, Snooze
from stepfast.runs import alerts
from stepfast.runs.calls import answer_of
from stepfast.runs.lifecycle import complete
from stepfast.runs.run import Run, RunState, find_run, lock_run
from stepfast.runs.sweep import (
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
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.step import Step
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.sweep import UnseenRow


# Before rows go, the source is asked whether it still has them.
#
# A full run may miss a row that is there: one that moves to a partition which has been read already. If that happens to
# it in several full runs in a row, it would go. A feed that can ask for rows by their identity (`still_there`) is asked
# about those that would go with this strike, and about no others. Whom the source still has is not struck.


def first_to_confirm(declared: Declaration, found: list[UnseenRow]) -> list[UnseenRow]:
    """As many of them, from the first on, as one question is about; all, if nobody is asked."""
    if not declared.confirms:
        return found
    going = 0
    for place, row in enumerate(found):
        going += row.goes
        if going == declared.confirm_lot:
            return found[: place + 1]
    return found


async def still_at_source(declared: Declaration, ids: Sequence[str]) -> frozenset[str]:
    """Which of them the source still has."""
    answer = await answer_of(declared.feed.still_there, list(ids))
    if isinstance(answer, str | bytes) or not isinstance(answer, Collection):
        raise _wrong(f"is {type(answer).__name__}; answer a list of those ids that the source still has")
    strangers = [it for it in answer if it not in ids]
    if strangers:
        raise _wrong(f"names {strangers[0]!r:.80}, which nobody asked about; ids are what identify() answers")
    return frozenset(answer)


def note_still_there(number: int) -> str:
    """For people who look at the sweep."""
    rows = "1 row that was not seen is" if number == 1 else f"{number:,} rows that were not seen are"
    return f"{rows} still at the source"


def _wrong(problem: str) -> AnswerError:
    return AnswerError("answer of still_there()", problem)


STRETCHES: Final = 20  # that one step walks over
LOOK_AGAIN: Final = timedelta(minutes=5)  # a held sweep; whoever approves it wakes it up


async def sweep_step(
    step: Step, database: Database, declared: Declaration, run_id: str, epoch: int
) -> Outcome | GoingRows:
    """Do the next part of a run's sweep, or say about whom the source must be asked first."""
    step.annotate(run_id=run_id)
    return await asyncio.to_thread(_step, database, declared, run_id, epoch)


async def settle(declared: Declaration, doubt: GoingRows) -> Outcome:
    """Ask the source, outside of any transaction, and strike who is really gone."""
    return doubt.settled(await still_at_source(declared, doubt.going))


def _step(database: Database, declared: Declaration, run_id: str, epoch: int) -> Outcome | GoingRows:
    with database.looking() as tx:
        run = find_run(tx, run_id)
        state = sweep_state(run)
        if run.at is not RunState.SWEEPING or run.epoch != epoch or state is None:
            return Done("this run is no longer swept by this job")
        match state.phase:
            case "counting":
                return _count(tx, declared, run, state)
            case "striking":
                return _strike(tx, declared, run, state)
            case "held":
                # It moves, so that nobody takes it for stalled: everybody knows what it waits for.
                pause = min(LOOK_AGAIN, declared.stall_after / 2)
                return Snooze(pause, effects=[KeepSweep(run, state, state)])
            case "declined" | "skipped" | "done":
                return Done({"sweep": state.phase, "note": state.note}, effects=[EndSweep(declared, run)])


def _count(tx: Transaction, declared: Declaration, run: Run, state: SweepState) -> Outcome:
    found, now = _unseen(run, state), state
    for _ in range(STRETCHES):
        part = count_stretch(tx, found, now.after)
        now = now.then(
            after=part.last or now.after,
            living=now.living + part.living,
            unseen=now.unseen + part.unseen,
            going=now.going + part.going,
        )
        if part.rows < STRETCH:
            now = _decided(declared, run, now)
            break
    return Continue(now.steps, effects=[KeepSweep(run, state, now)])


def _decided(declared: Declaration, run: Run, state: SweepState) -> SweepState:
    """All rows are counted: may those go that would?"""
    sweep = declared.sweep
    if sweep is None:
        return state.then(phase="skipped", note="the feed does not sweep any more")
    held = sweep.holds(state.going, state.living)
    if held is None and state.going and run.rejected:
        held = f"{state.going:,} rows would go, and {run.rejected:,} had no identity: they may be among them"
    if held is not None:
        return state.then(phase="held", note=held)
    return state.then(phase="striking", after="")


def _strike(tx: Transaction, declared: Declaration, run: Run, state: SweepState) -> Outcome | GoingRows:
    it, after = _unseen(run, state), state.after
    kept = None if declared.sweep is None or declared.sweep.keeps is None else micros(declared.sweep.keeps)
    found: list[UnseenRow] = []
    old: list[str] = []
    phase = state.phase
    for _ in range(STRETCHES):
        until, is_last = end_of_stretch(tx, run.feed, after)
        if until is not None:
            every = unseen_rows(tx, it, after, until)
            found = first_to_confirm(declared, every)
            if len(found) < len(every) or len(every) == BATCH:
                is_last, until = False, found[-1].item_id
            old = [] if kept is None else old_gone_rows(tx, run.feed, after, until, kept)
        after, phase = until or after, "done" if is_last else phase
        if found or old or is_last:
            break
    if state.struck + state.still_there + len(found) > state.unseen:
        return Continue(state.steps, effects=[KeepSweep(run, state, _counted_anew(state))])
    ids = [row.item_id for row in found]
    going = [row.item_id for row in found if row.goes]
    strikes = StrikeBatch(
        run,
        state,
        state.then(after=after, phase=phase),
        ids,
        old,
        kept or 0,
        _column_type(tx, state),
        may_go=frozenset() if declared.confirms else None,
    )
    return GoingRows(strikes, going) if declared.confirms and going else strikes.outcome


def _counted_anew(state: SweepState) -> SweepState:
    """There are more than were counted, for an earlier sweep was undone meanwhile: nobody has allowed these to go."""
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


def _unseen(run: Run, state: SweepState) -> UnseenBy:
    return UnseenBy(run.feed, run.id, state.before, state.strikes)


@dataclass(frozen=True)
class KeepSweep:
    """From one state to the next, in the step's commit; whoever has to decide is told."""

    run: Run
    was: SweepState
    now: SweepState

    def apply(self, tx: Transaction, /) -> None:
        keep_sweep(tx, self.run, self.was, self.now)
        if self.now.phase == "held" and self.was.phase != "held":
            alerts.sweep_held(tx, self.run, self.now.note or "")
            happened("sweep.held", feed=self.run.feed, run_id=self.run.id, note=self.now.note)


@dataclass(frozen=True)
class StrikeBatch:
    """A batch of strikes, with the target rows of those who are gone, and the run's counters."""

    run: Run
    was: SweepState
    now: SweepState
    ids: Sequence[str]
    old: Sequence[str]  # gone for long enough to be forgotten
    kept: int
    column_type: str
    may_go: frozenset[str] | None  # None: everybody, for nobody can be asked

    @property
    def outcome(self) -> Outcome:
        return Continue(self.now.steps, effects=[self])

    def apply(self, tx: Transaction, /) -> None:
        struck, gone = 0, 0
        if self.ids:
            it = _unseen(self.run, self.was)
            struck, gone = strike_rows(tx, it, self.ids, self.was.target, self.column_type, self.may_go)
        if self.old:
            forget_gone(tx, self.run.feed, self.old, self.kept)
        keep_sweep(tx, self.run, self.was, self.now.then(struck=self.was.struck + struck), gone=gone)


@dataclass(frozen=True)
class GoingRows:
    """A batch of strikes that would let rows go: does the source still have them?"""

    strikes: StrikeBatch
    going: Sequence[str]

    def settled(self, there: frozenset[str]) -> Outcome:
        """Whom the source still has is not struck, and a candidate again in the next sweep that misses it."""
        now = self.strikes.now
        if there:
            number = now.still_there + len(there)
            now = now.then(still_there=number, note=note_still_there(number))
        return replace(self.strikes, now=now, may_go=frozenset(self.going) - there).outcome


@dataclass(frozen=True)
class EndSweep:
    """The run is complete, whoever is gone."""

    declared: Declaration
    run: Run

    def apply(self, tx: Transaction, /) -> None:
        run = lock_run(tx, self.run.id)
        if run.at is RunState.SWEEPING and run.epoch == self.run.epoch:
            complete(tx, self.declared, run)
