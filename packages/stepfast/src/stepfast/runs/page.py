"""One page of a partition: one request to the source, one decision about its answer, one commit.

    PageJob.read ── breaker ──► position ──► request ──► rows ──► decision ──► PageCommit

The source is asked outside of any transaction, under the step's lease. Nothing is written until the commit: what is to
be written is the effect that the step answers with, so that it happens with the next step or not at all. One statement
of it moves the partition on from the request that the step made, and ends it if this was the last. If that matches
nothing, the partition was restarted, cancelled or read by another job: everything rolls back, and the step looks again.

What the answer of a source means is decided in `paging/decide.py`; the cursor is moved by `partition.py`, and the rows are
written by `raw_rows.py`.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

import msgspec

from stepfast.clock import instant
from stepfast.coroutines import answer_of
from stepfast.database.statement import sql
from stepfast.errors import AnswerError, CursorExpiredError, TransientError
from stepfast.jobs.outcome import Continue, Done, Outcome, Reject, ReservedContinue
from stepfast.jobs.payload import is_finite
from stepfast.jobs.step import Step  # noqa: TC001 - a handler's hints are read at run time
from stepfast.runs.breaker import Waiter
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
from stepfast.runs.partition import (
    ADVANCE_PARTITION,
    PARTITION_COLUMNS,
    Partition,
    PartitionState,
    end_partition,
    read_partition,
    require_partition_transition,
)
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
from stepfast.runs.run import RUN_COLUMNS, Run, RunState, lock_run, read_run
from stepfast.telemetry.masking import storable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.runs.breaker import Breaker
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.partitioning.contract import Frontier, Planned

T = TypeVar("T")


class PageJob:
    """The job that reads one partition of a feed, page by page; one object per feed and process."""

    def __init__(self, declared: Declaration, database: Callable[[], Database], breaker: Breaker) -> None:
        self._declared = declared
        self._database = database
        self._breaker = breaker
        self._positions = PagePositions()
        self._repeats = RepeatedRows()

    async def read(self, step: Step, row_id: str, epoch: int) -> Outcome:
        """One step for the partition of this row, unless the feed is paused."""
        return await self._breaker.guard(step, Waiter("partition", row_id), self._read(step, row_id, epoch))

    async def _read(self, step: Step, row_id: str, epoch: int) -> Outcome:  # noqa: PLR0911 - each is an end
        """Ask the source for what the partition needs next, and answer with what is to be written."""
        declared, database = self._declared, self._database()
        position = await self._positions.find(step, database, row_id, epoch)
        if position is None:
            return Reject(f"there is no partition in row {row_id}")
        if not position.may_go_on(epoch):
            return Done("this partition is no longer read by this job")
        run, partition = position.run, position.partition
        step.annotate(run_id=run.id, partition_id=partition.public_id)
        if partition.frontier is not None:
            return await divide(database, declared, run, partition, troubled=step.attempt > 1)
        state = _page_state(declared, partition)
        asked = await _ask(declared, position, state, step.attempt)
        asked, decision, repeats = await self._decide(database, partition, state, asked)
        if isinstance(decision, StaleAnswer):
            return Done(decision.note)
        if outgrows(declared, partition, asked.request, asked.answer):
            return await divide(database, declared, run, partition, admitted=0)
        commit = _commit_of(step, declared, position, state, asked, decision, repeats)
        if commit.next_state is not PartitionState.RUNNING:
            return Done({"partition": commit.next_state.value, "note": decision.note}, effects=[commit])
        cursor = self._positions.keep(step, position.moved(commit.moved))
        if declared.broker is None:
            return Continue(cursor, effects=[commit])
        return ReservedContinue(cursor, effects=[commit], head_start=declared.broker.head_start_micros)

    async def _decide(
        self, database: Database, partition: Partition, state: PageState, asked: Asked
    ) -> tuple[Asked, Decision, RepeatedRows | None]:
        """What the answer means, with the known rows looked up if need be. The last is for a commit that checks them."""
        paging = self._declared.paging
        if self._skip_lookup(partition, state, asked):
            decision = decide(paging, state, asked.request, asked.answer)
            if keeps_rows(decision):  # where no rows are kept, no commit would check them
                return asked, decision, self._repeats
        asked = await _with_known_rows(database, partition, asked)
        return asked, decide(paging, state, asked.request, asked.answer), None

    def _skip_lookup(self, partition: Partition, state: PageState, asked: Asked) -> bool:
        """Whether a page may skip the look for known rows; its commit checks that none was known.

        Where pages do not overlap, those of a first pass bring new rows: so the way to the database is spared.
        """
        return not (
            isinstance(self._declared.paging, Offset)
            or state.pass_ > 1
            or asked.refused
            or self._repeats.expected(partition.id)
        )


def _page_state(declared: Declaration, partition: Partition) -> PageState:
    if partition.paging is None:
        return first_state(counts=declared.counts)
    return msgspec.json.decode(partition.paging, type=PageState)


# Where a partition stands when a step begins: looked up, or remembered from the step before it.
#
# A chain of pages stays with one process for a while, and what the next step would look up is what the last one wrote.
# So that is kept, under the fence that the last step's commit consumed, and the job's cursor names this fence: if both
# agree, that commit happened, and none after it. If another process moved the partition meanwhile, the guard of the
# page's own commit finds out; then the step is tried again, and looks.

MOST_POSITIONS: Final = 1_000  # chains that went on elsewhere are forgotten in the end
# Partitions with repeated rows, after which all of the feed are expected to have them.
MOST_REPEATING: Final = 3
_PARTITION_COLUMNS: Final = len(PARTITION_COLUMNS.split(","))

# One look for all that a step needs to know.
FIND_POSITION = sql(f"""
    SELECT {PARTITION_COLUMNS}, {RUN_COLUMNS}, {{now}} + COALESCE(f.skew, 0)
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
        return (
            self.partition.is_open and self.partition.epoch == epoch and self.run.phase is RunState.FETCHING
        )

    def moved(self, partition: Partition) -> PagePosition:
        """The position with the partition as it is after a commit."""
        return PagePosition(partition, self.run, self.at, self.looked_at)

    @property
    def now(self) -> int:
        """What time it is at the source; rather too early than too late, for an answer is no older than its request."""
        return self.at + int((time.monotonic() - self.looked_at) * 1e6)


class PagePositions:
    """The positions of the chains of pages that are read in this process."""

    def __init__(self) -> None:
        self._kept: dict[str, tuple[int, PagePosition]] = {}

    def keep(self, step: Step, position: PagePosition) -> tuple[int, int]:
        """Keep where the partition stands once this step is committed; returns the cursor for the next step."""
        self._kept[position.partition.id] = step.fence, position
        if len(self._kept) > MOST_POSITIONS:
            del self._kept[next(iter(self._kept))]
        return position.partition.seq, step.fence

    async def find(self, step: Step, database: Database, row_id: str, epoch: int) -> PagePosition | None:
        fence, position = self._kept.pop(row_id, (0, None))
        if (
            position is not None
            and was_written_by(fence, position, step)
            and position.partition.epoch == epoch
            and database.shift is None  # a test's clock may stand still, or jump
        ):
            return position
        return await look_up(database, _find_position, row_id)


async def look_up(database: Database, look: Callable[..., T], *arguments: Any) -> T:
    """What `look` reads in our own database: on another thread, except that SQLite's file is read faster than that."""
    if database.dialect.name == "sqlite":
        return look(database, *arguments)
    return await asyncio.to_thread(look, database, *arguments)


def was_written_by(fence: int, position: PagePosition, step: Step) -> bool:
    """Whether the commit that consumed this fence is the one that the step goes on from."""
    return bool(step.cursor == [position.partition.seq, fence])


def _find_position(database: Database, row_id: str) -> PagePosition | None:
    with database.looking() as tx:
        found = tx.rows(FIND_POSITION, id=row_id)
    return _read_position(*found[0]) if found else None


def _read_position(*row: Any) -> PagePosition:
    partition = read_partition(*row[:_PARTITION_COLUMNS])
    return PagePosition(partition, read_run(*row[_PARTITION_COLUMNS:-1]), int(row[-1]), time.monotonic())


class RepeatedRows:
    """Which partitions were given rows that they had read before: their rows are looked up from then on."""

    def __init__(self) -> None:
        self._partitions: set[str] = set()

    def add(self, row_id: str) -> None:
        self._partitions.add(row_id)

    def expected(self, row_id: str) -> bool:
        """Whether rows may come again: in this partition, or because they did in several others of the feed."""
        return len(self._partitions) >= MOST_REPEATING or row_id in self._partitions


# The request, and its answer.


@dataclass(frozen=True)
class Asked:
    """A request and its answer."""

    request: Request
    answer: Answer
    page: PageContents
    observed_at: int
    milliseconds: int
    observations: Sequence[Observation] = ()
    refused: Sequence[RefusedRow] = ()  # rows that cannot be used


async def _ask(declared: Declaration, position: PagePosition, state: PageState, attempt: int) -> Asked:
    """Ask the source; of the answer all rows are taken for new."""
    feed, partition, at = declared.feed, position.partition, position.now
    request = next_request(declared.paging, state, declared.page_size)
    began = time.monotonic()
    if request.ask is Ask.COUNT:
        count = await answer_of(feed.count, partition.range, partition.window)
        return Asked(request, Answer(count=count), PageContents(), at, _milliseconds_since(began))
    try:
        cursor = request.cursor if attempt == 1 else replace(request.cursor, attempt=attempt)
        page = await answer_of(feed.fetch, partition.range, partition.window, cursor)
    except CursorExpiredError:
        return Asked(request, Answer(expired=True), PageContents(), at, _milliseconds_since(began))
    if not isinstance(page, Page):
        raise AnswerError("page", f"is {type(page).__name__}; fetch() answers stepfast.Page(items)")
    took = _milliseconds_since(began)
    _check_token(page.next)
    found, kept, refused = observe_page(declared, page_contents(page.items, feed.identify))
    answer = Answer(ids=found.ids, next=page.next)
    observed_at = at if page.observed_at is None else instant(page.observed_at)
    return Asked(request, answer, found, observed_at, took, kept, refused)


async def _with_known_rows(database: Database, partition: Partition, asked: Asked) -> Asked:
    """The answer with which of its rows the partition has read before."""
    ids = [*asked.page.rows, *(row.item_id for row in asked.refused)]
    if not ids:
        return asked
    seen = await look_up(database, _known_rows, partition.id, ids)
    return replace(asked, answer=replace(asked.answer, seen=seen))


def _known_rows(database: Database, row_id: str, ids: list[str]) -> dict[str, int]:
    with database.looking() as tx:
        return already_seen(tx, row_id, ids)


def _check_token(token: Any) -> None:
    """The token is stored with the partition, and sent to the source again."""
    try:
        msgspec.json.encode(token)
    except (UnicodeEncodeError, TypeError) as error:
        raise AnswerError("page", f"has a next that cannot be stored: {token!a:.80}") from error


def _milliseconds_since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)


# The rows of a page: observations of those that can be kept; the others are put aside with their reason.

NO_IDENTITY: Final = "no identity"
NOT_STORABLE: Final = "not storable"  # what is kept of such a row is not what the source gave
HALF_CHARACTER: Final = "the row or its id holds half a character (a lone surrogate), which no database takes"
NO_NUMBER: Final = "the row holds NaN or an infinity, which JSON has no word for"
NO_ROW: Final = "the source gave null in place of a row"
LONGEST_REPR: Final = 1_000
SMALLEST, LARGEST = -(2**63), 2**64 - 1  # of whole numbers that all readers of JSON take


HOLE: Final = f"?{observed('', None).content_hash}"  # the entry of all rows that are null


def observe_page(
    declared: Declaration, page: PageContents
) -> tuple[PageContents, list[Observation], list[RefusedRow]]:
    """The page without the rows that cannot be kept, the observations of the others, and the refused rows."""
    kept: list[Observation] = []
    unfit: dict[str, str] = {}
    for item_id, item in page.rows.items():
        found = _observed(item_id, item, declared.volatile)
        if isinstance(found, Observation):
            kept.append(found)
        else:
            unfit[item_id] = found
    if unfit:
        page = page.without(unfit)
    unusable = page.unidentified + [UnidentifiedItem(None, NO_ROW)] * min(page.holes, 1)
    refused = {row.item_id: row for row in (_refused(declared, item) for item in unusable)}
    return page, kept, list(refused.values())


def _observed(item_id: str, item: Any, volatile: Collection[str]) -> Observation | str:
    """The item as it is kept, or why it cannot be kept."""
    try:
        observation = observed(item_id, item, volatile)
    except UnicodeEncodeError:
        return HALF_CHARACTER
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        return f"the row holds a value that has no form in JSON ({storable(str(error))})"
    if "null" in observation.payload and not is_finite(
        item if isinstance(item, dict) else msgspec.to_builtins(item)
    ):  # they would become null, and be lost
        return NO_NUMBER
    return observation


def _refused(declared: Declaration, unidentified: UnidentifiedItem) -> RefusedRow:
    """A row without identity, named by its content: nothing else shows whether it was here before."""
    observation = _observed("", unidentified.item, declared.volatile)
    altered = isinstance(observation, str) or unidentified.reason == HALF_CHARACTER
    if isinstance(observation, str):
        observation = observed("", _spelled_out_row(unidentified.item), declared.volatile)
    return RefusedRow(
        item_id=f"?{observation.content_hash}",
        stage="identify",
        code=NOT_STORABLE if altered else NO_IDENTITY,
        message=storable(unidentified.reason),
        content_hash=observation.content_hash,
        payload=observation.payload,
        mapper_version=declared.mapper_version,
    )


def _spelled_out_row(item: Any) -> Any:
    """The row with every part that cannot be stored replaced by a text that says what it was."""
    try:
        return _spelled_out(item)
    except RecursionError:  # too deep, or it holds itself
        return f"({type(item).__name__}, too deep to be shown)"


def _spelled_out(value: Any) -> Any:  # noqa: PLR0911 - one line per type
    match value:
        case str():
            return storable(value)
        case float():
            return value if is_finite(value) else str(value)
        case bool() | None:
            return value
        case int():
            return (
                value if SMALLEST <= value <= LARGEST else f"(a whole number of {value.bit_length():,} bits)"
            )
        case dict():
            return {_spelled_out_name(name): _spelled_out(part) for name, part in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_spelled_out(part) for part in value]
        case _:
            return _spelled_out_object(value)


def _spelled_out_name(name: Any) -> str:
    found = _spelled_out(name)
    return found if isinstance(found, str) else str(found)


def _spelled_out_object(value: Any) -> Any:
    """A date, a dataclass and the like as JSON has them; any other object as Python shows it."""
    try:
        found = msgspec.to_builtins(value)
        if type(found) is not type(value):
            return _spelled_out(found)
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        return storable(repr(value)[:LONGEST_REPR])
    except Exception:  # noqa: BLE001 - somebody else's __repr__
        return f"({type(value).__name__})"


# The commit.

INSERT_PAGE = sql("""
    INSERT INTO stepfast_page (partition_id, epoch, seq, pass, request_offset, got, fresh, rejected, milliseconds,
                               decision, worker_id, fence, at)
    VALUES (:partition_id, :epoch, :seq, :pass, :request_offset, :got, :fresh, :rejected, :milliseconds,
            :decision, :worker_id, :fence, {now})
""")


@dataclass(frozen=True, kw_only=True)
class PageCommit:
    """What the answer to one request leaves behind: an effect of its step."""

    declared: Declaration
    run: Run
    partition: Partition  # as the step saw it
    next_state: PartitionState
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
    # None: known rows were looked up; else none is expected, and one is noted.
    repeats: RepeatedRows | None = None

    by_key: ClassVar[bool] = True  # each of its statements names its rows, or inserts

    @property
    def moved(self) -> Partition:
        """The partition as it is after the commit."""
        was = self.partition
        return was.moved(
            state=self.next_state,
            seq=was.seq + 1,
            paging=self._paging,
            seen=was.seen + self.fresh,
            rejected=was.rejected + self.rejected,
            requests=was.requests + 1,
        )

    def apply(self, tx: Transaction, /) -> None:
        self.apply_together(tx, [self])

    @staticmethod
    def apply_together(tx: Transaction, pages: Sequence[PageCommit]) -> None:
        """Write the pages of several partitions. If that fails, each of them is written alone."""
        for page in pages:
            require_partition_transition(page.partition.state, page.next_state)
        if tx.run_many(ADVANCE_PARTITION, [page.advancing() for page in pages]) != len(pages):
            raise moved_on(pages[0].partition)
        tx.run_many(INSERT_PAGE, [page.ledger() for page in pages])
        _remember(tx, [page for page in pages if page.observations])
        tx.run_many(OBSERVE_ROWS, [rows for page in pages for rows in page.rows_to_observe(tx)])
        for page in pages:
            page.finish(tx)
        _announce_next(tx, pages)

    def finish(self, tx: Transaction) -> None:
        if self.run.kind == "verify" and self.observations:
            make_pending_to_compare(tx, self.run, [row.item_id for row in self.observations])
        if self.refused:
            put_aside(tx, self.run.feed, self.run.id, self.refused)
            remember_seen(tx, self.partition.id, [row.item_id for row in self.refused], self.pass_)
        if self.next_state is not PartitionState.RUNNING:
            self._end(tx)

    @cached_property
    def _paging(self) -> str:
        return msgspec.json.encode(self.state).decode()

    @property
    def _next_offset(self) -> int:
        """Shown to people, who want a number also where pages have none: the rows that were read so far.

        Of a partition that was read to its end all its rows: the last page begins before those it shares with the next.
        """
        if self.next_state in (PartitionState.DONE, PartitionState.DONE_UNVERIFIED):
            return self.partition.seen + self.fresh + self.partition.rejected + self.rejected
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
            "target": self.next_state.value,
            "counted": self.state.count,
            "error": self.note if self.next_state is PartitionState.FAILED else None,
            "ends": int(self.next_state is not PartitionState.RUNNING),
        }

    def following(self) -> NextPage:
        """What a message about the next page says."""
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
        return seen_parameters(tx, self.partition.id, [row.item_id for row in self.observations], self.pass_)

    def rows_to_observe(self, tx: Transaction) -> list[dict[str, Any]]:
        if not self.observations:
            return []
        return observation_parameters(tx, self.run.feed, self.run.id, self.observed_at, self.observations)

    def _end(self, tx: Transaction) -> None:
        debt = self.partition.debt_id
        if self.next_state is PartitionState.DONE and debt is not None:
            close_debt(tx, debt, self.run.id)
        if self.next_state is PartitionState.DONE_UNVERIFIED and (
            debt is not None or self.run.moves_the_watermark
        ):
            open_debt(tx, self.run, self.partition)
        if self.next_state is PartitionState.FAILED and debt is not None:
            count_try(tx, self.run.feed, debt)
        ended = self.moved
        partition_ended(tx, self.declared, ended, self.note)
        if self.declared.broker is not None:
            announce_end(tx, self.declared, self.run, ended, self.note)


def _remember(tx: Transaction, pages: Sequence[PageCommit]) -> None:
    """Remember the rows of each page as seen; if one passed for new and was not, roll back: its page is judged again."""
    tx.run_many(REMEMBER_SEEN, [page.ids_to_remember(tx) for page in pages if page.repeats is None])
    unchecked = [page for page in pages if page.repeats is not None]
    expected = sum(len(page.observations) for page in unchecked)
    if tx.run_many(REMEMBER_NEW, [page.ids_to_remember(tx) for page in unchecked]) == expected:
        return
    page = unchecked[0]
    if len(unchecked) == 1 and page.repeats is not None:
        page.repeats.add(page.partition.id)
    raise TransientError(
        f"{page.partition.description} was given rows that it has read before; the page is judged again",
        delay=0,
    )


def _announce_next(tx: Transaction, pages: Sequence[PageCommit]) -> None:
    """Stage messages about the next pages, where the feed has a broker."""
    for page in pages:
        if page.declared.broker is not None and page.next_state is PartitionState.RUNNING:
            announce_pages(tx, page.declared, page.run, [page.following()])


def moved_on(partition: Partition) -> TransientError:
    """Another process moved the partition: the step looks again, which costs no attempt."""
    return TransientError(
        f"{partition.description} was moved on by somebody else; nothing of this page is written", delay=0
    )


def _commit_of(  # noqa: PLR0917 - all that one answer is about
    step: Step,
    declared: Declaration,
    position: PagePosition,
    state: PageState,
    asked: Asked,
    decision: Decision,
    repeats: RepeatedRows | None,
) -> PageCommit:
    next_state = state_of_partition(decision)
    assert next_state is not None  # noqa: S101 - a stale answer has been left out
    assert not isinstance(decision, StaleAnswer)  # noqa: S101 - as above
    kept = keeps_rows(decision)
    return PageCommit(
        declared=declared,
        run=position.run,
        partition=position.partition,
        next_state=next_state,
        state=decision.state,
        request_offset=asked.request.cursor.offset if asked.request.ask is Ask.PAGE else None,
        got=decision.got,
        fresh=getattr(decision, "fresh", 0),
        rejected=_rejected(position.partition, state, asked) if kept else 0,
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
    """Rows that cannot be used, each once however often it comes. One hole is like another: one pass counts them."""
    unknown = sum(row.item_id != HOLE and row.item_id not in asked.answer.seen for row in asked.refused)
    return unknown + (asked.page.holes if state.pass_ == 1 or not partition.rejected else 0)


# The division of a partition that holds far more rows than planned, so that several workers share what it became.
#
# Its own job divides it, before it has read a page: each step counts a few pieces and stores how far it is. The last
# step writes the pieces with their jobs, and marks the partition as split, in one commit: at no time are its rows unread.

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
    """One step of the division; `admitted` 0: the step has asked the source already."""
    partitioner = declared.partitioner
    frontier = None
    if partitioner is not None:
        if partition.frontier is None:
            frontier = partitioner.divide(partition.range)
        else:
            frontier = partitioner.restore(msgspec.json.decode(partition.frontier))
    if frontier is None:  # another partitioner was deployed: the partition stays whole
        return Continue(partition.seq + 1, effects=[EndDivision(partition)])
    if not frontier.finished:
        frontier, asked = await count_next(
            database, declared, partition.window, frontier, admitted=admitted, troubled=troubled
        )
        if not frontier.finished:
            return Continue(partition.seq + 1, effects=[KeepDivision(partition, frontier, asked)])
    pieces = pieces_of(partition.range, frontier.plan())
    if not pieces:
        return Continue(partition.seq + 1, effects=[EndDivision(partition)])
    return Done(
        {"partition": "split", "pieces": len(pieces)},
        effects=[Split(declared, run, partition, pieces)],
    )


@dataclass(frozen=True)
class KeepDivision:
    """Stores how far the division is."""

    partition: Partition
    frontier: Frontier
    requests: int

    def apply(self, tx: Transaction, /) -> None:
        text = msgspec.json.encode(self.frontier.to_json()).decode()
        _keep_division(tx, self.partition, text, self.requests)


@dataclass(frozen=True)
class EndDivision:
    """The partition cannot be divided: it is read as it is."""

    partition: Partition

    def apply(self, tx: Transaction, /) -> None:
        _keep_division(tx, self.partition, None, 0)


@dataclass(frozen=True)
class Split:
    """Replaces the partition by its pieces."""

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
                range=piece.range,
                window=self.partition.window,
                name=piece.range.name,
                estimate=piece.estimate,
                parent=self.partition.id,
            )
            for piece in self.pieces
        ]
        fan_out(tx, self.declared, run, wanted)
        end_fetching(tx, self.declared, run.id)


def _keep_division(tx: Transaction, partition: Partition, frontier: str | None, requests: int) -> None:
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
