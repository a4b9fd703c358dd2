"""The commit of one page: an effect of its step, so that it happens with the next step or not at all.

One statement moves the partition on from the request that the step made, and ends it if this was the last. If it
matches nothing, the partition was restarted, cancelled or read by somebody else: everything rolls back, and the
step finds out when it looks again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from stepfast.clock import instant
from stepfast.database.statement import sql
from stepfast.errors import AnswerError, CursorExpiredError, TransientError
from stepfast.jobs.outcome import Continue, Done, Outcome, Reject, ReservedContinue
from stepfast.jobs.payload import is_finite
from stepfast.runs.calls import answer_of, look_up
from stepfast.runs.debts import close_debt, count_try, open_debt
from stepfast.runs.feed import Page
from stepfast.runs.lifecycle import end_fetching, partition_ended
from stepfast.runs.messages import NextPage, announce_end, announce_pages
from stepfast.runs.paging.decide import decide
from stepfast.runs.paging.decision import (
    Answer,
    Ask,
    Decision,
    PageContents,
    PageState,
    Request,
    StaleAnswer,
    UnidentifiedItem,
    first_state,
    keeps_rows,
    ledger_word,
    next_request,
    page_contents,
    state_of_partition,
)
from stepfast.runs.paging.paginators import Offset
from stepfast.runs.partition import ADVANCE_PARTITION, Partition, end_partition, read_partition
from stepfast.runs.partition import PARTITION_COLUMNS as PARTITION
from stepfast.runs.partitioning.contract import outgrown, pieces_of
from stepfast.runs.plan import WantedPartition, count_next, fan_out
from stepfast.runs.quarantine import RefusedRow, put_aside
from stepfast.runs.raw_rows import (
    OBSERVE_ROWS,
    REMEMBER_NEW,
    REMEMBER_SEEN,
    Observation,
    already_seen,
    make_pending_to_compare,
    observation_parameters,
    observed,
    remember_seen,
    seen_parameters,
)
from stepfast.runs.run import RUN_COLUMNS as RUN
from stepfast.runs.run import PartitionState, Run, RunState, arrow, lock_run, read_run
from stepfast.telemetry.masking import storable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.step import Step
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.partitioning.contract import Frontier, Planned


INSERT_PAGE = sql("""
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
    refused: Sequence[RefusedRow] = ()
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
        if tx.run_many(ADVANCE_PARTITION, [page.advancing() for page in pages]) != len(pages):
            raise moved_on(pages[0].partition)
        tx.run_many(INSERT_PAGE, [page.ledger() for page in pages])
        _remember(tx, [page for page in pages if page.observations])
        tx.run_many(OBSERVE_ROWS, [rows for page in pages for rows in page.rows_to_observe(tx)])
        for page in pages:
            page.finish(tx)
        announce(tx, pages)

    def finish(self, tx: Transaction) -> None:
        if self.run.kind == "verify" and self.observations:
            make_pending_to_compare(tx, self.run, [it.item_id for it in self.observations])
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
        return seen_parameters(tx, self.partition.id, [it.item_id for it in self.observations], self.pass_)

    def rows_to_observe(self, tx: Transaction) -> list[dict[str, Any]]:
        if not self.observations:
            return []
        return observation_parameters(tx, self.run.feed, self.run.id, self.observed_at, self.observations)

    def _end(self, tx: Transaction) -> None:
        debt = self.partition.debt_id
        if self.target is PartitionState.DONE and debt is not None:
            close_debt(tx, debt, self.run.id)
        if self.target is PartitionState.DONE_UNVERIFIED and (
            debt is not None or self.run.moves_the_watermark
        ):
            open_debt(tx, self.run, self.partition)
        if self.target is PartitionState.FAILED and debt is not None:
            count_try(tx, self.run.feed, debt)
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


# What a page leaves: observations of the rows that can be kept, and the others put aside with their reason.

NO_IDENTITY: Final = "no identity"
NOT_STORABLE: Final = "not storable"  # what is kept of such a row is not what the source gave
HALF: Final = "the row or its id holds half a character (a lone surrogate), which no database takes"
NO_NUMBER: Final = "the row holds NaN or an infinity, which JSON has no word for"


def observe_page(
    declared: Declaration, page: PageContents
) -> tuple[PageContents, list[Observation], list[RefusedRow]]:
    """The page without the rows that cannot be kept, its rows as they are kept, and those that nobody can use."""
    kept: list[Observation] = []
    unfit: dict[str, str] = {}
    for item_id, item in page.rows.items():
        found = _observed(item_id, item, declared.volatile)
        if isinstance(found, Observation):
            kept.append(found)
        else:
            unfit[item_id] = found
    if unfit:
        page = _without(page, unfit)
    strangers = {it.item_id: it for it in (_stranger(declared, it) for it in page.strangers)}
    return page, kept, list(strangers.values())


def check_token(token: Any) -> None:
    """It is kept with the partition, and shown to the source again."""
    try:
        msgspec.json.encode(token)
    except (UnicodeEncodeError, TypeError) as error:
        raise AnswerError("page", f"has a next that cannot be stored: {token!a:.80}") from error


def _observed(item_id: str, item: Any, volatile: Collection[str]) -> Observation | str:
    """The item as it is kept, or why it cannot be kept."""
    try:
        seen = observed(item_id, item, volatile)
    except UnicodeEncodeError:
        return HALF
    if "null" in seen.payload and not is_finite(
        item if isinstance(item, dict) else msgspec.to_builtins(item)
    ):  # they would become null, and be lost
        return NO_NUMBER
    return seen


def _without(page: PageContents, unfit: Mapping[str, str]) -> PageContents:
    """The same page where these rows, which cannot be kept for a reason, are strangers."""
    return replace(
        page,
        ids=[None if it in unfit else it for it in page.ids],
        rows={it: item for it, item in page.rows.items() if it not in unfit},
        strangers=[
            *page.strangers,
            *(UnidentifiedItem(page.rows[it], reason) for it, reason in unfit.items()),
        ],
    )


def _stranger(declared: Declaration, it: UnidentifiedItem) -> RefusedRow:
    """Nobody can tell whether such a row was here before, so it is known by its content."""
    seen = _observed("", it.item, declared.volatile)
    altered = isinstance(seen, str) or it.reason == HALF
    if isinstance(seen, str):
        seen = observed("", _spelled_out(msgspec.to_builtins(it.item)), declared.volatile)
    return RefusedRow(
        item_id=f"?{seen.content_hash}",
        stage="identify",
        code=NOT_STORABLE if altered else NO_IDENTITY,
        message=storable(it.reason),
        content_hash=seen.content_hash,
        payload=seen.payload,
        mapper_version=declared.mapper_version,
    )


def _spelled_out(value: Any) -> Any:
    """With everything that cannot be stored as a text that says what it was."""
    match value:
        case str():
            return storable(value)
        case float():
            return value if is_finite(value) else str(value)
        case dict():
            return {_spelled_out(name): _spelled_out(it) for name, it in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_spelled_out(it) for it in value]
        case _:
            return value


# A partition that holds far more rows than planned is divided, so that several workers share what it became.
#
# Its own job does that, before it has read a page: each step counts a few pieces and stores how far it is. The last one
# writes the pieces with their jobs, and marks the partition as split, in one commit: somebody reads its rows at any time.

KEEP_DIVISION = sql("""
    UPDATE stepfast_partition
       SET frontier = :frontier, seq = seq + 1, requests = requests + :requests, state = 'running', updated_at = {now},
           started_at = COALESCE(started_at, {now})
     WHERE id = :id AND epoch = :epoch AND seq = :seq AND state IN ('ready', 'running')
""")
UNCOUNT_DIVIDED = sql("""
    UPDATE stepfast_run SET partitions = partitions - 1, estimate = estimate - :estimate, updated_at = {now}
     WHERE id = :id AND ended_at IS NULL
""")


def outgrows(declared: Declaration, partition: Partition, request: Request, answer: Answer) -> bool:
    """Whether the source's first count says that the plan was wrong about this partition."""
    return (
        declared.partitioner is not None
        and partition.seq == 0
        and partition.debt_id is None
        and request.ask is Ask.COUNT
        and answer.count is not None
        and outgrown(partition.estimate, answer.count)
        and declared.partitioner.divide(partition.range) is not None
    )


async def divide(
    database: Database,
    declared: Declaration,
    run: Run,
    partition: Partition,
    *,
    admitted: int = 1,
    troubled: bool = False,
) -> Outcome:
    """One step of the division; `admitted` 0: it has asked the source already."""
    partitioner = declared.partitioner
    frontier = None
    if partitioner is not None:
        if partition.frontier is None:
            frontier = partitioner.divide(partition.range)
        else:
            frontier = partitioner.restore(msgspec.json.decode(partition.frontier))
    if frontier is None:  # the deployment of another partitioner: it stays whole
        return Continue(partition.seq + 1, effects=[Whole(partition)])
    if not frontier.finished:
        frontier, asked = await count_next(
            database, declared, partition.window, frontier, admitted=admitted, troubled=troubled
        )
        if not frontier.finished:
            return Continue(partition.seq + 1, effects=[KeepFrontier(partition, frontier, asked)])
    pieces = pieces_of(partition.range, frontier.plan())
    if not pieces:
        return Continue(partition.seq + 1, effects=[Whole(partition)])
    return Done(
        {"partition": "split", "pieces": len(pieces)},
        effects=[Split(declared, run, partition, pieces)],
    )


@dataclass(frozen=True)
class KeepFrontier:
    partition: Partition
    frontier: Frontier
    requests: int

    def apply(self, tx: Transaction, /) -> None:
        text = msgspec.json.encode(self.frontier.to_json()).decode()
        _keep(tx, self.partition, text, self.requests)


@dataclass(frozen=True)
class Whole:
    """It cannot be divided: it is read as it is."""

    partition: Partition

    def apply(self, tx: Transaction, /) -> None:
        _keep(tx, self.partition, None, 0)


@dataclass(frozen=True)
class Split:
    declared: Declaration
    run: Run
    partition: Partition
    pieces: tuple[Planned, ...]

    def apply(self, tx: Transaction, /) -> None:
        if not end_partition(tx, self.partition, PartitionState.SPLIT):
            raise moved_on(self.partition)
        run = lock_run(tx, self.run.id)
        tx.run(UNCOUNT_DIVIDED, id=run.id, estimate=self.partition.estimate or 0)
        wanted = [
            WantedPartition(
                range=it.range,
                window=self.partition.window,
                name=it.range.name,
                estimate=it.estimate,
                parent=self.partition.id,
            )
            for it in self.pieces
        ]
        fan_out(tx, self.declared, run, wanted)
        end_fetching(tx, self.declared, run.id)


def _keep(tx: Transaction, partition: Partition, frontier: str | None, requests: int) -> None:
    matched = tx.run(
        KEEP_DIVISION,
        id=partition.id,
        epoch=partition.epoch,
        seq=partition.seq,
        frontier=frontier,
        requests=requests,
    )
    if matched != 1:
        raise moved_on(partition)


# One step of a partition's job: one request to the source, one decision about its answer, one commit.
#
# The source is asked outside of any transaction, under the step's lease. Nothing here writes: what is to be written is
# the effect that the step answers with.


@dataclass(frozen=True)
class Asked:
    """A request and its answer."""

    request: Request
    answer: Answer
    page: PageContents
    observed_at: int
    milliseconds: int
    observations: Sequence[Observation] = ()
    refused: Sequence[RefusedRow] = ()  # rows that nobody can use


async def read_page(  # noqa: PLR0911, PLR0917 - a job's arguments, and where it runs
    step: Step,
    database: Database,
    declared: Declaration,
    places: PagePositions,
    partition_id: str,
    epoch: int,
) -> Outcome:
    """Ask the source for what the partition needs next, and answer with what is to be written."""
    place = await places.find(step, database, partition_id, epoch)
    if place is None:
        return Reject(f"there is no partition {partition_id}")
    if not place.may_go_on(epoch):
        return Done("this partition is no longer read by this job")
    step.annotate(run_id=place.run.id, partition_id=place.partition.name)
    if place.partition.frontier is not None:
        return await divide(database, declared, place.run, place.partition, troubled=step.attempt > 1)
    state = _state(declared, place.partition)
    asked = await _ask(declared, place, state, step.attempt)
    decision = _supposing_new(declared, places, place, state, asked)
    supposed = decision is not None
    if decision is None:
        asked = await _looked_up(database, place, asked)
        decision = decide(declared.paging, state, asked.request, asked.answer)
    if isinstance(decision, StaleAnswer):
        return Done(decision.note)
    if outgrows(declared, place.partition, asked.request, asked.answer):
        return await divide(database, declared, place.run, place.partition, admitted=0)
    effect = _commit(step, declared, place, state, asked, decision, places.repeats if supposed else None)
    if effect.target is PartitionState.RUNNING:
        cursor = places.keep(step, place.moved(effect.moved))
        if declared.broker is None:
            return Continue(cursor, effects=[effect])
        return ReservedContinue(cursor, effects=[effect], head_start=declared.broker.head_start_micros)
    return Done({"partition": effect.target.value, "note": decision.note}, effects=[effect])


def _state(declared: Declaration, partition: Partition) -> PageState:
    if partition.paging is None:
        return first_state(counts=declared.counts)
    return msgspec.json.decode(partition.paging, type=PageState)


async def _ask(declared: Declaration, place: PagePosition, state: PageState, attempt: int) -> Asked:
    """The source's answer, as if all of its rows were new."""
    feed, partition, at = declared.feed, place.partition, place.now
    request = next_request(declared.paging, state, declared.page_size)
    began = time.monotonic()
    if request.ask is Ask.COUNT:
        count = await answer_of(feed.count, partition.range, partition.window)
        return Asked(request, Answer(count=count), PageContents(), at, _since(began))
    try:
        cursor = request.cursor if attempt == 1 else replace(request.cursor, attempt=attempt)
        page = await answer_of(feed.fetch, partition.range, partition.window, cursor)
    except CursorExpiredError:
        return Asked(request, Answer(expired=True), PageContents(), at, _since(began))
    if not isinstance(page, Page):
        raise AnswerError("page", f"is {type(page).__name__}; fetch() answers stepfast.Page(items)")
    took = _since(began)
    check_token(page.next)
    found, kept, refused = observe_page(declared, page_contents(page.items, feed.identify))
    answer = Answer(ids=found.ids, next=page.next)
    observed_at = at if page.observed_at is None else instant(page.observed_at)
    return Asked(request, answer, found, observed_at, took, kept, refused)


def _supposing_new(
    declared: Declaration, places: PagePositions, place: PagePosition, state: PageState, asked: Asked
) -> Decision | None:
    """What a page means if all of its rows are new; None: somebody has to look.

    Where pages do not overlap, those of a first pass bring new rows, and the commit finds out if not: so the way to the
    database is spared. A meaning that keeps no rows would not be checked by any commit.
    """
    if (
        isinstance(declared.paging, Offset)
        or state.pass_ > 1
        or asked.refused
        or not places.may_suppose_new(place.partition.id)
    ):
        return None
    decision = decide(declared.paging, state, asked.request, asked.answer)
    return decision if keeps_rows(decision) else None


async def _looked_up(database: Database, place: PagePosition, asked: Asked) -> Asked:
    """The same, knowing which of the rows the partition has read before."""
    ids = [*asked.page.rows, *(it.item_id for it in asked.refused)]
    if not ids:
        return asked
    seen = await look_up(database, _known, place.partition.id, ids)
    return replace(asked, answer=replace(asked.answer, seen=seen))


def _known(database: Database, partition_id: str, ids: list[str]) -> dict[str, int]:
    with database.looking() as tx:
        return already_seen(tx, partition_id, ids)


def _commit(  # noqa: PLR0917 - all that one answer is about
    step: Step,
    declared: Declaration,
    place: PagePosition,
    state: PageState,
    asked: Asked,
    decision: Decision,
    repeats: Callable[[str], None] | None,
) -> PageCommit:
    target = state_of_partition(decision)
    assert target is not None  # noqa: S101 - a stale answer has been left out
    assert not isinstance(decision, StaleAnswer)  # noqa: S101 - as above
    kept = keeps_rows(decision)
    return PageCommit(
        declared=declared,
        run=place.run,
        partition=place.partition,
        target=target,
        state=decision.state,
        request_offset=asked.request.cursor.offset if asked.request.ask is Ask.PAGE else None,
        got=decision.got,
        fresh=getattr(decision, "fresh", 0),
        rejected=_rejected(place.partition, state, asked) if kept else 0,
        milliseconds=asked.milliseconds,
        decision=ledger_word(decision),
        note=decision.note,
        pass_=state.pass_,
        worker_id=step.worker_id,
        fence=step.fence,
        observed_at=asked.observed_at,
        observations=asked.observations if kept else (),
        refused=asked.refused if kept else (),
        repeats=repeats,
    )


def _rejected(partition: Partition, state: PageState, asked: Asked) -> int:
    """Rows that nobody can use, each once however often it comes. One hole is like another: one pass counts them."""
    strangers = sum(it.item_id not in asked.answer.seen for it in asked.refused)
    return strangers + (asked.page.holes if state.pass_ == 1 or not partition.rejected else 0)


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


# Where a partition stands when a step begins: looked up, or remembered from the step before it.
#
# A chain of pages stays with one process for a while, and what the next step would look up is what the last one wrote.
# So that is kept, under the fence that the last step's commit consumed, and the job's cursor names this fence: if both
# agree, that commit happened, and none after it. Whoever else moved the partition meanwhile is found out by the guard of
# the page's own commit; then the step is tried again, and looks.

MOST: Final = 1_000  # chains that went on elsewhere are forgotten in the end
MOST_REPEATING: Final = (
    3  # partitions that were given rows again, after which all of the feed are expected to be
)
_PARTITION_COLUMNS: Final = len(PARTITION.split(","))

# One look for all that a step needs to know.
FIND_POSITION = sql(f"""
    SELECT {PARTITION}, {RUN}, {{now}} + COALESCE(f.skew, 0)
      FROM stepfast_partition p
      JOIN stepfast_run r ON r.id = p.run_id
      LEFT JOIN stepfast_feed f ON f.id = r.feed
     WHERE p.id = :id
""")


@dataclass(frozen=True)
class PagePosition:
    """A partition, its run, and what time it was at the source when they were looked up."""

    partition: Partition
    run: Run
    at: int
    looked_at: float  # on the clock of this process, just afterwards

    def may_go_on(self, epoch: int) -> bool:
        return self.partition.is_open and self.partition.epoch == epoch and self.run.at is RunState.FETCHING

    def moved(self, partition: Partition) -> PagePosition:
        """The same with the partition after a commit."""
        return PagePosition(partition, self.run, self.at, self.looked_at)

    @property
    def now(self) -> int:
        """What time it is at the source; rather too early than too late, for an answer is no older than its request."""
        return self.at + int((time.monotonic() - self.looked_at) * 1e6)


class PagePositions:
    """Of the chains that are in this process."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, PagePosition]] = {}
        self._repeating: set[str] = set()

    def keep(self, step: Step, place: PagePosition) -> tuple[int, int]:
        """Where the partition stands once this step is committed; returns the cursor for the next one."""
        self._kept[place.partition.id] = step.fence, place
        if len(self._kept) > MOST:
            del self._kept[next(iter(self._kept))]
        return place.partition.seq, step.fence

    def may_suppose_new(self, partition_id: str) -> bool:
        """Whether the rows of a page may pass for new until its commit says otherwise."""
        return len(self._repeating) < MOST_REPEATING and partition_id not in self._repeating

    def repeats(self, partition_id: str) -> None:
        """It was given rows that it had read: from now on they are looked up first."""
        self._repeating.add(partition_id)

    async def find(
        self, step: Step, database: Database, partition_id: str, epoch: int
    ) -> PagePosition | None:
        fence, place = self._kept.pop(partition_id, (0, None))
        if (
            place is not None
            and was_written_by(fence, place, step)
            and place.partition.epoch == epoch
            and database.shift is None  # a test's clock may stand still, or jump
        ):
            return place
        return await look_up(database, _look, partition_id)


def was_written_by(fence: int, place: PagePosition, step: Step) -> bool:
    """Whether the commit that consumed this fence is the one that the step goes on from."""
    return bool(step.cursor == [place.partition.seq, fence])


def _look(database: Database, partition_id: str) -> PagePosition | None:
    with database.looking() as tx:
        found = tx.rows(FIND_POSITION, id=partition_id)
    return _place(*found[0]) if found else None


def _place(*row: Any) -> PagePosition:
    partition = read_partition(*row[:_PARTITION_COLUMNS])
    return PagePosition(partition, read_run(*row[_PARTITION_COLUMNS:-1]), int(row[-1]), time.monotonic())
