"""One step of a partition's job: one request to the source, one decision about its answer, one commit.

The source is asked outside of any transaction, under the step's lease. Nothing here writes: what is to be written is
the effect that the step answers with.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from holdfast.clock import instant
from holdfast.errors import AnswerError, CursorExpiredError
from holdfast.runs.asking import answer_of, look_up
from holdfast.runs.division import divide, outgrows
from holdfast.runs.feed import Page
from holdfast.runs.page import PageCommit
from holdfast.runs.paging.contents import Contents, contents
from holdfast.runs.paging.deciding import decide
from holdfast.runs.paging.decision import Decision, Stale, keeps_rows, state_of_partition, word
from holdfast.runs.paging.state import Answer, Ask, PageState, Request, begin, next_request
from holdfast.runs.quarantine import Refused
from holdfast.runs.raw import already_seen, observed
from holdfast.runs.states import PartitionState
from holdfast.steps.outcome import Continue, Done, Outcome, Reject

if TYPE_CHECKING:
    from holdfast.database.database import Database
    from holdfast.runs.declaration import Declaration
    from holdfast.runs.partition import Partition
    from holdfast.runs.place import Place, Places
    from holdfast.steps.step import Step


@dataclass(frozen=True)
class Asked:
    """A request and its answer."""

    request: Request
    answer: Answer
    page: Contents
    observed_at: int
    milliseconds: int


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
        return await divide(declared, place.run, place.partition)
    state = _state(declared, place.partition)
    asked = await _ask(database, declared, place, state)
    decision = decide(declared.paging, state, asked.request, asked.answer)
    if isinstance(decision, Stale):
        return Done(decision.note)
    if outgrows(declared, place.partition, asked.request, asked.answer):
        return await divide(declared, place.run, place.partition)
    effect = _commit(step, declared, place, state, asked, decision)
    if effect.target is PartitionState.RUNNING:
        return Continue(places.keep(step, replace(place, partition=effect.moved)), effects=[effect])
    return Done({"partition": effect.target.value, "note": decision.note}, effects=[effect])


def _state(declared: Declaration, partition: Partition) -> PageState:
    if partition.paging is None:
        return begin(counts=declared.counts)
    return msgspec.json.decode(partition.paging, type=PageState)


async def _ask(database: Database, declared: Declaration, place: Place, state: PageState) -> Asked:
    feed, partition, at = declared.feed, place.partition, place.now
    request = next_request(declared.paging, state, declared.page_size)
    began = time.monotonic()
    if request.ask is Ask.COUNT:
        count = await answer_of(feed.count, partition.range, partition.window)
        return Asked(request, Answer(count=count), Contents(), at, _since(began))
    try:
        page = await answer_of(feed.fetch, partition.range, partition.window, request.cursor)
    except CursorExpiredError:
        return Asked(request, Answer(expired=True), Contents(), at, _since(began))
    if not isinstance(page, Page):
        raise AnswerError("page", f"is {type(page).__name__}; fetch() answers holdfast.Page(items)")
    took = _since(began)
    found = contents(page.items, feed.identify)
    known = await look_up(database, _known, partition.id, list(found.rows)) if found.rows else {}
    answer = Answer(ids=found.ids, seen=known, next=page.next)
    observed_at = at if page.observed_at is None else instant(page.observed_at)
    return Asked(request, answer, found, observed_at, took)


def _known(database: Database, partition_id: str, ids: list[str]) -> dict[str, int]:
    with database.looking() as tx:
        return already_seen(tx, partition_id, ids)


def _commit(  # noqa: PLR0917 - all that one answer is about
    step: Step, declared: Declaration, place: Place, state: PageState, asked: Asked, decision: Decision
) -> PageCommit:
    target = state_of_partition(decision)
    assert target is not None  # noqa: S101 - a stale answer has been left out
    assert not isinstance(decision, Stale)  # noqa: S101 - as above
    kept = keeps_rows(decision)
    rows = asked.page.rows if kept else {}
    return PageCommit(
        declared=declared,
        run=place.run,
        partition=place.partition,
        target=target,
        state=decision.state,
        request_offset=asked.request.cursor.offset if asked.request.ask is Ask.PAGE else None,
        got=decision.got,
        fresh=getattr(decision, "fresh", 0),
        rejected=asked.page.rejected if kept else 0,
        milliseconds=asked.milliseconds,
        decision=word(decision),
        note=decision.note,
        pass_=state.pass_,
        worker_id=step.worker_id,
        fence=step.fence,
        observed_at=asked.observed_at,
        observations=[observed(it, item, declared.volatile) for it, item in rows.items()],
        refused=_strangers(declared, asked.page) if kept else (),
    )


def _strangers(declared: Declaration, page: Contents) -> list[Refused]:
    """Rows without an identity: nobody can tell whether they were here before, so each is known by its content."""
    found = []
    for it in page.strangers:
        seen = observed("", it.item, declared.volatile)
        found.append(
            Refused(
                item_id=f"?{seen.content_hash}",
                stage="identify",
                code="no identity",
                message=it.reason,
                content_hash=seen.content_hash,
                payload=seen.payload,
                mapper_version=declared.mapper_version,
            )
        )
    return found


def _since(began: float) -> int:
    return round((time.monotonic() - began) * 1000)
