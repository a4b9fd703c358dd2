"""The state of a sweep, and the rows that it is about: counted, struck, marked as gone, brought back.

A row is unseen if its newest observation is of another run, and older than everything this run can have observed.
`struck_by` is the run that struck it last: no run strikes a row twice, however often its sweep is begun anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from stepfast.database.statement import sql
from stepfast.database.tables import as_instant
from stepfast.errors import TransientError
from stepfast.runs.run import RunState
from stepfast.runs.target import TargetColumn  # noqa: TC001 - msgspec reads the annotation

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.runs.run import Run


# The state of a sweep is kept with its run, so that any worker can go on with it, and an operator approve or undo it.

# counting: how many rows would go. held: more than the fuse allows, a person decides. striking: they are struck.
# declined: a person decided that none goes. skipped: the run does not show which rows are gone. done: none is left.
SweepPhase = Literal["counting", "held", "striking", "declined", "skipped", "done"]

HELD_SWEEP: Final = '{"type":"sweep","phase":"held",%'  # how the frontier of a held sweep begins

KEEP_SWEEP = sql("""
    UPDATE stepfast_run SET frontier = :kept, gone = gone + :gone, reason = :reason, updated_at = {now}
     WHERE id = :id AND epoch = :epoch AND COALESCE(stalled_in, state) = 'sweeping' AND frontier = :was
""")
BEGIN_SWEEP = sql("""
    UPDATE stepfast_run SET frontier = :kept, updated_at = {now}
     WHERE id = :id AND epoch = :epoch AND state = 'sweeping'
""")


class SweepState(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="sweep"):
    phase: SweepPhase
    target: TargetColumn  # what it marks; undoing it needs no code of the feed
    strikes: int
    before: int  # on the source's clock: an older observation is of an earlier run
    steps: int = 0  # so that no two states are equal
    after: str = ""  # the row up to which it has walked
    living: int = 0
    unseen: int = 0
    going: int = 0
    struck: int = 0
    still_there: int = 0  # they would have gone, but the source has them
    note: str | None = None  # why it is held or skipped, or how many rows are still there

    @property
    def text(self) -> str:
        return msgspec.json.encode(self).decode()

    def then(self, **changes: object) -> SweepState:
        """The next state."""
        return msgspec.structs.replace(self, **changes, steps=self.steps + 1)


def sweep_state(run: Run) -> SweepState | None:
    """The state of the run's sweep; None for a run that has none."""
    return read_sweep_state(run.frontier)


def read_sweep_state(frontier: str | None) -> SweepState | None:
    """The state of a sweep from a run's frontier; None if that is of its plan."""
    try:
        return None if frontier is None else msgspec.json.decode(frontier, type=SweepState)
    except msgspec.MsgspecError:
        return None


def is_held(run: Run) -> bool:
    """Whether the run waits for a person to approve or decline its sweep."""
    found = sweep_state(run) if run.phase is RunState.SWEEPING else None
    return found is not None and found.phase == "held"


def keep_sweep(tx: Transaction, run: Run, was: SweepState, now: SweepState, *, gone: int = 0) -> None:
    """Move the sweep on from the state that the caller saw; if another process has, everything rolls back."""
    matched = tx.run(
        KEEP_SWEEP,
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


def keep_first_state(tx: Transaction, run: Run, state: SweepState) -> None:
    """Begin a sweep with this state. The caller holds the run's row."""
    tx.run(BEGIN_SWEEP, id=run.id, epoch=run.epoch, kept=state.text)


# Rows that a run did not see.

BATCH: Final = 500  # rows of one commit
STRETCH: Final = 10_000  # rows that one statement walks over, however large the feed is

_UNSEEN = """gone_at IS NULL AND observed_at < :before AND run_id <> :run_id
                  AND (struck_by IS NULL OR struck_by <> :run_id)"""

COUNT_STRETCH = sql(f"""
    SELECT max(item_id), count(*), COALESCE(sum(living), 0), COALESCE(sum(unseen), 0), COALESCE(sum(going), 0)
      FROM (SELECT item_id, CASE WHEN gone_at IS NULL THEN 1 ELSE 0 END AS living,
                   CASE WHEN {_UNSEEN} THEN 1 ELSE 0 END AS unseen,
                   CASE WHEN strikes + 1 >= :strikes AND {_UNSEEN} THEN 1 ELSE 0 END AS going
              FROM stepfast_raw WHERE feed = :feed AND item_id > :after
             ORDER BY item_id LIMIT :stretch) walked
""")
FIND_UNSEEN = sql(f"""
    SELECT item_id, CASE WHEN strikes + 1 >= :strikes THEN 1 ELSE 0 END FROM stepfast_raw
     WHERE feed = :feed AND item_id > :after AND item_id <= :until AND {_UNSEEN}
     ORDER BY item_id LIMIT :limit
""")
# Again, and locked: one of them may have been observed since it was found.
LOCK_UNSEEN = sql(f"""
    SELECT item_id, strikes FROM stepfast_raw WHERE feed = :feed AND item_id {{any_of:ids}} AND {_UNSEEN}
     ORDER BY item_id {{for_update}}
""")
STRIKE_ROWS = sql("""
    UPDATE stepfast_raw SET strikes = strikes + 1, struck_by = :run_id
     WHERE feed = :feed AND item_id {any_of:ids} AND gone_at IS NULL
""")
# What is in the target is not what was applied: should the row come back as it was, it is applied again.
MARK_GONE = sql("""
    UPDATE stepfast_raw SET strikes = strikes + 1, struck_by = :run_id, gone_at = :at, applied_hash = NULL
     WHERE feed = :feed AND item_id {any_of:ids} AND gone_at IS NULL
""")
CLOCK = sql("SELECT {now}")

_REMOVED = "gone_at IS NOT NULL AND struck_by = :run_id"
END_OF_STRETCH = sql("""
    SELECT max(item_id), count(*) FROM (SELECT item_id FROM stepfast_raw WHERE feed = :feed AND item_id > :after
                                         ORDER BY item_id LIMIT :stretch) walked
""")
FIND_GONE = sql(f"""
    SELECT item_id FROM stepfast_raw
     WHERE feed = :feed AND item_id > :after AND item_id <= :until AND {_REMOVED}
     ORDER BY item_id LIMIT :limit
""")
LOCK_GONE = sql(f"""
    SELECT item_id FROM stepfast_raw WHERE feed = :feed AND item_id {{any_of:ids}} AND {_REMOVED}
     ORDER BY item_id {{for_update}}
""")
BRING_ROWS_BACK = sql("""
    UPDATE stepfast_raw
       SET gone_at = NULL, strikes = 0, applied_hash = CASE WHEN pending = 0 THEN content_hash END
     WHERE feed = :feed AND item_id {any_of:ids} AND gone_at IS NOT NULL
""")

_FORGETTABLE = "gone_at IS NOT NULL AND gone_at < {now} - :keep"
FIND_OLD_GONE = sql(f"""
    SELECT item_id FROM stepfast_raw
     WHERE feed = :feed AND item_id > :after AND item_id <= :until AND {_FORGETTABLE}
     ORDER BY item_id LIMIT :limit
""")
FORGET_GONE = sql(
    f"DELETE FROM stepfast_raw WHERE feed = :feed AND item_id {{any_of:ids}} AND {_FORGETTABLE}"
)


@dataclass(frozen=True)
class UnseenBy:
    """Which rows a run did not see."""

    feed: str
    run_id: str
    before: int  # the run observed nothing earlier, on the source's clock
    strikes: int  # so many make a row gone


class StretchCounts(NamedTuple):
    """What was counted in a stretch of rows, in the order of their ids."""

    last: str | None  # where the stretch ends; None: no row was left
    rows: int
    living: int
    unseen: int
    going: int  # unseen rows that are gone with this strike


class UnseenRow(NamedTuple):
    """A row that was not seen."""

    item_id: str
    goes: bool  # with this strike it is gone


class StrikeCounts(NamedTuple):
    """How many rows were struck, and how many of them are gone."""

    struck: int
    gone: int


def count_stretch(tx: Transaction, by: UnseenBy, after: str) -> StretchCounts:
    """Count the rows of the next stretch."""
    row = tx.rows(
        COUNT_STRETCH,
        feed=by.feed,
        run_id=by.run_id,
        before=by.before,
        after=after,
        strikes=by.strikes,
        stretch=STRETCH,
    )[0]
    return StretchCounts(row[0], *(int(value) for value in row[1:]))


def end_of_stretch(tx: Transaction, feed: str, after: str) -> tuple[str | None, bool]:
    """Where the next stretch ends (None: nothing is left), and whether it is the last."""
    last, rows = tx.rows(END_OF_STRETCH, feed=feed, after=after, stretch=STRETCH)[0]
    return last, int(rows) < STRETCH


def unseen_rows(tx: Transaction, by: UnseenBy, after: str, until: str) -> list[UnseenRow]:
    """The next rows of a stretch that were not seen, at most a batch."""
    rows = tx.rows(
        FIND_UNSEEN,
        feed=by.feed,
        run_id=by.run_id,
        before=by.before,
        strikes=by.strikes,
        after=after,
        until=until,
        limit=BATCH,
    )
    return [UnseenRow(str(row[0]), bool(row[1])) for row in rows]


def strike_rows(  # noqa: PLR0917 - all that decides about a batch
    tx: Transaction,
    by: UnseenBy,
    ids: Sequence[str],
    target: TargetColumn,
    column_type: str,
    may_go: Collection[str] | None = None,
) -> StrikeCounts:
    """Strike the rows that are still unseen; one that has enough strikes is gone, here and in the target.

    With `may_go` only these rows may go: another one that would is not struck.
    """
    found = tx.rows(LOCK_UNSEEN, feed=by.feed, run_id=by.run_id, before=by.before, ids=list(ids))
    going = [
        str(row[0]) for row in found if row[1] + 1 >= by.strikes and (may_go is None or str(row[0]) in may_go)
    ]
    staying = [str(row[0]) for row in found if row[1] + 1 < by.strikes]
    if staying:
        tx.run(STRIKE_ROWS, feed=by.feed, run_id=by.run_id, ids=staying)
    if going:
        now = int(tx.first(CLOCK))
        tx.run(MARK_GONE, feed=by.feed, run_id=by.run_id, ids=going, at=now)
        target.set(tx, going, as_instant(now, column_type))
    return StrikeCounts(len(staying) + len(going), len(going))


def gone_rows(tx: Transaction, feed: str, run_id: str, after: str, until: str) -> list[str]:
    """The next rows of a stretch that this run has marked as gone, and no run has seen since."""
    rows = tx.rows(FIND_GONE, feed=feed, run_id=run_id, after=after, until=until, limit=BATCH)
    return [str(row[0]) for row in rows]


def bring_back(tx: Transaction, feed: str, run_id: str, ids: Sequence[str], target: TargetColumn) -> int:
    """Bring gone rows back, here and in the target; returns how many."""
    found = [str(row[0]) for row in tx.rows(LOCK_GONE, feed=feed, run_id=run_id, ids=list(ids))]
    if found:
        tx.run(BRING_ROWS_BACK, feed=feed, ids=found)
        target.set(tx, found, None)
    return len(found)


def old_gone_rows(tx: Transaction, feed: str, after: str, until: str, keep: int) -> list[str]:
    """Rows that have been gone for longer than `keep`, at most a batch; the rest is left to the next sweep."""
    rows = tx.rows(FIND_OLD_GONE, feed=feed, after=after, until=until, keep=keep, limit=BATCH)
    return [str(row[0]) for row in rows]


def forget_gone(tx: Transaction, feed: str, ids: Sequence[str], keep: int) -> int:
    """Forget rows that are gone; their target rows stay as they are."""
    return tx.run(FORGET_GONE, feed=feed, ids=list(ids), keep=keep)
