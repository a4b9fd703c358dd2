"""The commit of one page: an effect of its step, so that it happens with the next step or not at all.

One statement moves the partition on from the request that the step made, and ends it if this was the last. If it
matches nothing, the partition was restarted, cancelled or read by somebody else: everything rolls back, and the
step finds out when it looks again.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from stepfast.database.statement import sql
from stepfast.errors import TransientError
from stepfast.runs.announcing import NextPage, announce_end, announce_pages
from stepfast.runs.completion import partition_ended
from stepfast.runs.debts import close_debt, open_debt, tried
from stepfast.runs.paging.paginators import Offset
from stepfast.runs.partition import ADVANCE, Partition
from stepfast.runs.quarantine import Refused, put_aside
from stepfast.runs.raw import (
    OBSERVE,
    REMEMBER_NEW,
    REMEMBER_SEEN,
    Observation,
    observing,
    remember_seen,
    remembering,
)
from stepfast.runs.remapping import wait_to_be_compared
from stepfast.runs.states import PartitionState, arrow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.paging.state import PageState
    from stepfast.runs.run import Run

LEDGER = sql("""
    INSERT INTO stepfast_page (partition_id, epoch, seq, pass, request_offset, got, fresh, rejected, milliseconds,
                               decision, worker_id, fence, at)
    VALUES (:partition_id, :epoch, :seq, :pass, :request_offset, :got, :fresh, :rejected, :milliseconds,
            :decision, :worker_id, :fence, {now})
""")


@dataclass(frozen=True, kw_only=True)
class PageCommit:
    """What the answer to one request leaves behind."""

    declared: Declaration
    run: Run
    partition: Partition  # as the step saw it
    target: PartitionState
    state: PageState  # where the pages stand after it
    request_offset: int | None  # None: a count
    got: int
    fresh: int
    rejected: int
    milliseconds: int
    decision: str
    note: str
    pass_: int
    worker_id: str
    fence: int
    observed_at: int
    observations: Sequence[Observation] = ()
    refused: Sequence[Refused] = ()
    repeats: Callable[[str], None] | None = None  # told if rows were known; None: that was looked up

    by_key: ClassVar[bool] = True  # each of its statements names its rows, or inserts

    @property
    def moved(self) -> Partition:
        """The partition after it."""
        was = self.partition
        return was.moved(
            state=self.target,
            seq=was.seq + 1,
            paging=self._paging,
            seen=was.seen + self.fresh,
            rejected=was.rejected + self.rejected,
        )

    def apply(self, tx: Transaction, /) -> None:
        self.apply_together(tx, [self])

    @staticmethod
    def apply_together(tx: Transaction, pages: Sequence[PageCommit]) -> None:
        """The pages of several partitions. Who raises here with others is tried alone."""
        for page in pages:
            arrow(page.partition.state, page.target)
        if tx.run_many(ADVANCE, [page.advancing() for page in pages]) != len(pages):
            raise moved_on(pages[0].partition)
        tx.run_many(LEDGER, [page.ledger() for page in pages])
        _remember(tx, [page for page in pages if page.observations])
        tx.run_many(OBSERVE, [rows for page in pages for rows in page.rows_to_observe(tx)])
        for page in pages:
            page.finish(tx)
        announce(tx, pages)

    def finish(self, tx: Transaction) -> None:
        if self.run.kind == "verify" and self.observations:
            wait_to_be_compared(tx, self.run, [it.item_id for it in self.observations])
        if self.refused:
            put_aside(tx, self.run, self.refused)
            remember_seen(tx, self.partition.id, [it.item_id for it in self.refused], self.pass_)
        if self.target is not PartitionState.RUNNING:
            self._end(tx)

    @cached_property
    def _paging(self) -> str:
        return msgspec.json.encode(self.state).decode()

    @property
    def _next_offset(self) -> int:
        """For people, who want a number also where pages have none: the rows that were read so far."""
        return self.state.offset if isinstance(self.declared.paging, Offset) else self.state.read

    def advancing(self) -> dict[str, Any]:
        return {
            "id": self.partition.id,
            "epoch": self.partition.epoch,
            "seq": self.partition.seq,
            "paging": self._paging,
            "next_offset": self._next_offset,
            "fresh": self.fresh,
            "rejected": self.rejected,
            "worker_id": self.worker_id,
            "target": self.target.value,
            "counted": self.state.count,
            "error": self.note if self.target is PartitionState.FAILED else None,
            "ends": int(self.target is not PartitionState.RUNNING),
        }

    def following(self) -> NextPage:
        """What a message about the page behind this one says."""
        was = self.partition
        total = self.state.count if was.estimate is None else was.estimate
        return NextPage(was.number, was.range, self._next_offset, was.epoch, was.seq + 1, total, was.job_id)

    def ledger(self) -> dict[str, Any]:
        return {
            "partition_id": self.partition.id,
            "epoch": self.partition.epoch,
            "seq": self.partition.seq,
            "pass": self.pass_,
            "request_offset": self.request_offset,
            "got": self.got,
            "fresh": self.fresh,
            "rejected": self.rejected,
            "milliseconds": self.milliseconds,
            "decision": self.decision,
            "worker_id": self.worker_id,
            "fence": self.fence,
        }

    def ids_to_remember(self, tx: Transaction) -> dict[str, Any]:
        return remembering(tx, self.partition.id, [it.item_id for it in self.observations], self.pass_)

    def rows_to_observe(self, tx: Transaction) -> list[dict[str, Any]]:
        if not self.observations:
            return []
        return observing(tx, self.run.feed, self.run.id, self.observed_at, self.observations)

    def _end(self, tx: Transaction) -> None:
        debt = self.partition.debt_id
        if self.target is PartitionState.DONE and debt is not None:
            close_debt(tx, debt, self.run.id)
        if self.target is PartitionState.DONE_UNVERIFIED and (
            debt is not None or self.run.moves_the_watermark
        ):
            open_debt(tx, self.run, self.partition)
        if self.target is PartitionState.FAILED and debt is not None:
            tried(tx, self.run.feed, debt)
        partition_ended(
            tx,
            self.declared,
            self.run.id,
            self.target,
            seen=self.partition.seen + self.fresh,
            rejected=self.partition.rejected + self.rejected,
        )
        if self.declared.broker is not None:
            announce_end(tx, self.declared, self.run, self.moved, self.note)


def _remember(tx: Transaction, pages: Sequence[PageCommit]) -> None:
    tx.run_many(REMEMBER_SEEN, [page.ids_to_remember(tx) for page in pages if page.repeats is None])
    supposed = [page for page in pages if page.repeats is not None]
    expected = sum(len(page.observations) for page in supposed)
    if tx.run_many(REMEMBER_NEW, [page.ids_to_remember(tx) for page in supposed]) == expected:
        return
    page = supposed[0]
    if len(supposed) == 1 and page.repeats is not None:
        page.repeats(page.partition.id)
    raise TransientError(
        f"{page.partition.name} was given rows that it has read before; the page is judged again", delay=0
    )


def announce(tx: Transaction, pages: Sequence[PageCommit]) -> None:
    """Tell a broker of the next pages, where there is one."""
    for page in pages:
        if page.declared.broker is not None and page.target is PartitionState.RUNNING:
            announce_pages(tx, page.declared, page.run, [page.following()])


def moved_on(partition: Partition) -> TransientError:
    """Somebody else moved the partition: the step looks again, which costs no attempt."""
    return TransientError(
        f"{partition.name} was moved on by somebody else; nothing of this page is written", delay=0
    )
