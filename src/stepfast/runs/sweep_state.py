"""Where a sweep stands. It is kept with its run, so that anybody can go on with it, approve it, or undo it later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import msgspec

from stepfast.database.statement import sql
from stepfast.errors import TransientError
from stepfast.runs.states import RunState
from stepfast.runs.target import TargetColumn  # noqa: TC001 - msgspec reads the annotation

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.runs.run import Run

# counting: how many would go. held: more than the fuse allows, a person decides. striking: they are struck. declined: a
# person let nobody go. skipped: the run may not judge who is gone. done: nobody is left to strike.
Phase = Literal["counting", "held", "striking", "declined", "skipped", "done"]

HELD: Final = '{"type":"sweep","phase":"held",%'  # how the frontier of a held one begins

KEEP = sql("""
    UPDATE stepfast_run SET frontier = :kept, gone = gone + :gone, reason = :reason, updated_at = {now}
     WHERE id = :id AND epoch = :epoch AND COALESCE(stalled_in, state) = 'sweeping' AND frontier = :was
""")
BEGIN = sql("""
    UPDATE stepfast_run SET frontier = :kept, updated_at = {now}
     WHERE id = :id AND epoch = :epoch AND state = 'sweeping'
""")


class SweepState(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="sweep"):
    phase: Phase
    target: TargetColumn  # what it marks; whoever undoes it needs no code of the feed
    strikes: int
    before: int  # on the source's clock: an older observation is of an earlier run
    steps: int = 0  # so that no two states are equal
    after: str = ""  # the row up to which it has walked
    living: int = 0
    unseen: int = 0
    going: int = 0
    struck: int = 0
    still_there: int = 0  # they would have gone, but the source has them
    note: str | None = None  # why it is held, or skipped; or who was not let go

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    def then(self, **changes: object) -> SweepState:
        """The next one."""
        return msgspec.structs.replace(self, **changes, steps=self.steps + 1)


def state_of(run: Run) -> SweepState | None:
    """Of a run that has been swept, or is; None for all others."""
    return read_state(run.frontier)


def read_state(frontier: str | None) -> SweepState | None:
    try:
        return None if frontier is None else msgspec.json.decode(frontier, type=SweepState)
    except msgspec.ValidationError:
        return None  # the frontier of its plan


def is_held(run: Run) -> bool:
    """Whether it waits for a person, and for nothing else."""
    found = state_of(run) if run.at is RunState.SWEEPING else None
    return found is not None and found.phase == "held"


def keep(tx: Transaction, run: Run, was: SweepState, now: SweepState, *, gone: int = 0) -> None:
    """Go on from where the caller saw it; if somebody else did, everything rolls back."""
    matched = tx.run(
        KEEP,
        id=run.id,
        epoch=run.epoch,
        was=was.text,
        kept=now.text,
        gone=gone,
        reason=now.note if now.phase == "held" else None,
    )
    if matched != 1:
        raise TransientError(
            f"the sweep of run {run.id} was moved on by somebody else; nothing of this step is written",
            delay=0,
        )


def begin(tx: Transaction, run: Run, state: SweepState) -> None:
    tx.run(BEGIN, id=run.id, epoch=run.epoch, kept=state.text)
