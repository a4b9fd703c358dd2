"""One step of a partition's job: one request to the source, one decision about its answer, one commit.

The source is asked outside of any transaction, under the step's lease. Nothing here writes: what is to be written is
the effect that the step answers with.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from stepfast.clock import instant
from stepfast.errors import AnswerError, CursorExpiredError
from stepfast.runs.asking import answer_of, look_up
from stepfast.runs.division import divide, outgrows
from stepfast.runs.feed import Page
from stepfast.runs.observing import check_token, observe_page
from stepfast.runs.page import PageCommit
from stepfast.runs.paging.contents import Contents, contents
from stepfast.runs.paging.deciding import decide
from stepfast.runs.paging.decision import Decision, Stale, keeps_rows, state_of_partition, word
from stepfast.runs.paging.paginators import Offset
from stepfast.runs.paging.state import Answer, Ask, PageState, Request, begin, next_request
from stepfast.runs.raw import already_seen
from stepfast.runs.states import PartitionState
from stepfast.steps.outcome import Continue, Done, Outcome, Reject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepfast.database.database import Database
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.partition import Partition
    from stepfast.runs.place import Place, Places
    from stepfast.runs.quarantine import Refused
    from stepfast.runs.raw import Observation
    from stepfast.steps.step import Step


@dataclass(frozen=True)
class Asked:
    """A request and its answer."""

    request: Request
    answer: Answer
    page: Contents
    observed_at: int
    milliseconds: int
    observations: Sequence[Observation] = ()
    refused: Sequence[Refused] = ()  # rows that nobody can use


async def read_page(  # noqa: PLR0911, PLR0917 - a job's arguments, and where it runs
    step: Step, database: Database, declared: Declaration, places: Places, partition_id: str, epoch: int
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
    if isinstance(decision, Stale):
        return Done(decision.note)
    if outgrows(declared, place.partition, asked.request, asked.answer):
        return await divide(database, declared, place.run, place.partition, admitted=0)
    effect = _commit(step, declared, place, state, asked, decision, places.repeats if supposed else None)
    if effect.target is PartitionState.RUNNING:
        told = 0 if declared.broker is None else declared.broker.head_start_micros
        return Continue(places.keep(step, place.moved(effect.moved)), effects=[effect], head_start=told)
    return Done({"partition": effect.target.value, "note": decision.note}, effects=[effect])


def _state(declared: Declaration, partition: Partition) -> PageState:
    if partition.paging is None:
        return begin(counts=declared.counts)
    return msgspec.json.decode(partition.paging, type=PageState)


async def _ask(declared: Declaration, place: Place, state: PageState, attempt: int) -> Asked:
    """The source's answer, as if all of its rows were new."""
    feed, partition, at = declared.feed, place.partition, place.now
    request = next_request(declared.paging, state, declared.page_size)
    began = time.monotonic()
    if request.ask is Ask.COUNT:
        count = await answer_of(feed.count, partition.range, partition.window)
        return Asked(request, Answer(count=count), Contents(), at, _since(began))
    try:
        cursor = request.cursor if attempt == 1 else replace(request.cursor, attempt=attempt)
        page = await answer_of(feed.fetch, partition.range, partition.window, cursor)
    except CursorExpiredError:
        return Asked(request, Answer(expired=True), Contents(), at, _since(began))
    if not isinstance(page, Page):
        raise AnswerError("page", f"is {type(page).__name__}; fetch() answers stepfast.Page(items)")
    took = _since(began)
    check_token(page.next)
    found, kept, refused = observe_page(declared, contents(page.items, feed.identify))
    answer = Answer(ids=found.ids, next=page.next)
    observed_at = at if page.observed_at is None else instant(page.observed_at)
    return Asked(request, answer, found, observed_at, took, kept, refused)


def _supposing_new(
    declared: Declaration, places: Places, place: Place, state: PageState, asked: Asked
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


async def _looked_up(database: Database, place: Place, asked: Asked) -> Asked:
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
    place: Place,
    state: PageState,
    asked: Asked,
    decision: Decision,
    repeats: Callable[[str], None] | None,
) -> PageCommit:
    target = state_of_partition(decision)
    assert target is not None  # noqa: S101 - a stale answer has been left out
    assert not isinstance(decision, Stale)  # noqa: S101 - as above
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
        decision=word(decision),
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
