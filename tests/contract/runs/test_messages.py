"""A page or consolidation that becomes ready stages its message in the same transaction; its job is reserved for the receiver."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from stepfast import Stepfast
from stepfast.clock import new_id
from stepfast.database.database import persist
from stepfast.errors import ConfigurationError
from stepfast.jobs.commit import give_back
from stepfast.jobs.lease import claim, claim_named
from stepfast.runs.broker import Broker
from stepfast.runs.messages import judge_hints, read_hint
from tests.support import rows
from tests.support.broker import PATIENT, broker_of, brokered, end_head_starts, staged
from tests.support.failing_runs import broken_at, run_row, work_until_idle
from tests.support.feeds import Catalogue, Shop, prepare, price_ranges
from tests.support.run_facts import begin, check_complete, partitions
from tests.support.single_threaded_worker import GroupCommittingWorker, SingleThreadedWorker

if TYPE_CHECKING:
    from stepfast.jobs.lease import Lease
    from stepfast.runs.feed import Feed
    from stepfast.runs.run import Run

PARTS = 4
SECOND = price_ranges(250, 500, 750)[1].name


def planned(app: Stepfast) -> Run:
    """A run that has its partitions."""
    run = begin(app)
    worker = SingleThreadedWorker(app, "planner")
    while not partitions(app, run.id):
        assert worker.step() is not None
    return run


def work_through(app: Stepfast) -> None:
    """Until nothing is left, as if every head start were over."""
    while True:
        end_head_starts(app)
        work_until_idle(app)
        if not rows.count(app, "stepfast_job", "state = 'ready'"):
            return


def failing_run(app: Stepfast, shop: Shop) -> Run:
    """A run of which one partition failed at its second page. The source is well again."""
    shop.before = broken_at(("page", SECOND, 5))
    run = begin(app)
    work_through(app)
    shop.before = lambda *_: None
    return run


def take_told(app: Stepfast, worker: SingleThreadedWorker, body: dict[str, object]) -> list[Lease]:
    """Take what a message names, as the worker of a broker does."""
    hint = read_hint(json.dumps(body))

    def take(tx: object) -> list[Lease]:
        (verdict,) = judge_hints(tx, [hint], ["catalogue"])  # type: ignore[arg-type, list-item]
        ids = [verdict.job_id] if hasattr(verdict, "job_id") else []
        return claim_named(tx, ids, worker.incarnation)  # type: ignore[arg-type]

    return persist(app.database, take)


def test_a_plan_stages_one_message_for_each_partition(app: Stepfast) -> None:
    brokered(app)

    run = planned(app)

    (first, *others) = staged(app)
    assert len(others) == PARTS - 1
    assert first == {
        "type": "WORK_ITEM",
        "runId": run.id,
        "traceId": run.id.replace("-", ""),
        "partitionId": "partition-0",
        "minPrice": 0,
        "maxPrice": 250,
        "totalRecords": None,
        "offset": 0,
        "limit": 10,
        "offsetStart": 0,
        "offsetEnd": 10,
        "schemaVersion": 1,
        "epoch": 0,
        "id": f"{run.id}:partition-0:0:e0.0",
        "properties": {"runId": run.id, "partitionId": "partition-0", "offset": 0, "limit": 10},
    }
    assert len({it["id"] for it in (first, *others)}) == PARTS


def test_at_first_only_those_who_were_told_may_take_the_job(app: Stepfast) -> None:
    brokered(app)
    planned(app)
    worker = SingleThreadedWorker(app)

    nobody = persist(app.database, lambda tx: claim(tx, "default", worker.incarnation, 10))
    told = take_told(app, worker, staged(app)[0])

    assert (nobody, len(told)) == ([], 1)
    assert rows.live(app, told[0].job_id)["state"] == "leased"  # type: ignore[index]


def test_a_told_job_that_is_given_back_may_be_taken_by_anybody(app: Stepfast) -> None:
    brokered(app)
    planned(app)
    worker = SingleThreadedWorker(app)
    (lease,) = take_told(app, worker, staged(app)[0])

    persist(app.database, lambda tx: give_back(tx, [lease.job_id], lease.fence))

    found = persist(app.database, lambda tx: claim(tx, "default", worker.incarnation, 10))
    assert [it.job_id for it in found] == [lease.job_id]


def test_after_the_head_start_anybody_may(app: Stepfast) -> None:
    shop = brokered(app)
    run = planned(app)

    end_head_starts(app)

    worker = SingleThreadedWorker(app)
    found = persist(app.database, lambda tx: claim(tx, "default", worker.incarnation, 10))
    assert len(found) == PARTS
    for lease in found:
        worker.commit(lease, worker.run_handler(lease))
    while rows.count(app, "stepfast_job"):
        end_head_starts(app)
        worker.step()
    check_complete(app, run.id, shop)


def test_the_next_page_is_staged_with_the_page_before_it_or_not_at_all(app: Stepfast) -> None:
    brokered(app)
    run = planned(app)
    worker = SingleThreadedWorker(app)
    (lease,) = take_told(app, worker, staged(app)[0])
    thought = worker.run_handler(lease)  # a count: the first page is still to come

    with suppress(RuntimeError), app.transaction() as tx:
        for effect in thought.effects:
            effect.apply(tx)
        raise RuntimeError("no commit")
    before = len(staged(app))
    worker.commit(lease, thought)

    assert (before, len(staged(app))) == (PARTS, PARTS + 1)
    following = staged(app)[-1]
    assert (following["offset"], following["epoch"]) == (0, 0)
    assert following["id"] == f"{run.id}:partition-0:0:e0.1"  # no broker takes it for the one before
    (page,) = take_told(app, worker, following)
    worker.commit(page, worker.run_handler(page))
    assert staged(app)[-1]["offset"] == partitions(app, run.id)[0]["next_offset"] > 0


def test_a_message_that_comes_again_takes_nothing(app: Stepfast) -> None:
    brokered(app)
    planned(app)
    worker, body = SingleThreadedWorker(app), staged(app)[0]
    (lease,) = take_told(app, worker, body)

    while_held = take_told(app, worker, body)
    for _ in range(2):
        worker.commit(lease, worker.run_handler(lease))
        (lease,) = take_told(app, worker, staged(app)[-1])
    persist(app.database, lambda tx: tx.execute("UPDATE stepfast_job SET state = 'ready'"))
    out_of_order = take_told(app, worker, body)

    assert (while_held, out_of_order) == ([], [])


def test_pages_of_several_partitions_are_announced_together_and_none_stays(app: Stepfast) -> None:
    brokered(app)
    planned(app)
    worker = GroupCommittingWorker(app)
    leases = [lease for body in staged(app) for lease in take_told(app, worker, body)]

    worker.commit_group(worker.run_handlers(leases))

    assert worker.stayed == []
    assert len(staged(app)) == 2 * PARTS
    assert {row["state"] for row in rows.query(app, "SELECT state FROM stepfast_job")} == {"ready"}


def test_a_paused_queue_gives_nothing_to_those_who_were_told(app: Stepfast) -> None:
    brokered(app)
    planned(app)
    app.operator.pause("default")

    assert take_told(app, SingleThreadedWorker(app), staged(app)[0]) == []


def test_consolidation_is_announced_once(app: Stepfast) -> None:
    shop = brokered(app)
    run = planned(app)

    work_through(app)

    (message,) = staged(app, "CONSOLIDATE")
    assert {it: message[it] for it in ("runId", "force", "epoch", "schemaVersion")} == {
        "runId": run.id,
        "force": False,
        "epoch": 0,
        "schemaVersion": 1,
    }
    check_complete(app, run.id, shop)


def test_a_retry_is_announced_under_a_new_epoch(app: Stepfast) -> None:
    shop = brokered(app)
    run = failing_run(app, shop)
    known = {it["id"] for it in staged(app)}

    app.runs.retry(run.id)

    again = staged(app)[-1]
    assert again["id"] not in known
    assert (again["partitionId"], again["epoch"], again["offset"]) == ("partition-1", 1, 7)
    work_through(app)
    check_complete(app, run.id, shop)


def test_a_retry_from_the_start_begins_at_the_first_row(app: Stepfast) -> None:
    shop = brokered(app)
    run = failing_run(app, shop)

    app.runs.retry(run.id, from_start=True)

    assert (staged(app)[-1]["offset"], staged(app)[-1]["epoch"]) == (0, 1)


def test_a_forced_consolidation_says_so(app: Stepfast) -> None:
    shop = brokered(app)
    run = failing_run(app, shop)

    app.runs.consolidate(run.id, force=True)

    assert [it["force"] for it in staged(app, "CONSOLIDATE")] == [True]


def test_a_cancelled_run_that_is_resumed_is_announced_again(app: Stepfast) -> None:
    brokered(app)
    run = planned(app)
    app.runs.cancel(run.id)

    app.runs.resume(run.id)

    assert [(it["partitionId"], it["epoch"]) for it in staged(app)[PARTS:]] == [
        (f"partition-{number}", 2) for number in range(PARTS)
    ]  # one for the cancellation, one for the resumption


def test_the_end_of_a_partition_is_told_only_where_somebody_wants_it(app: Stepfast) -> None:
    """A message that nobody reads would end among the dead letters; this one vanishes after an hour. (F43)"""
    shop = brokered(app, transport=Broker(f"memory://{new_id()}", work_done="done", head_start=PATIENT))
    run = failing_run(app, shop)

    told = {it["partitionId"]: it for it in staged(app, "WORK_DONE")}

    assert run_row(app, run.id).failed == 1
    assert {name: it["status"] for name, it in told.items()} == {
        "partition-0": "completed",
        "partition-1": "failed",
        "partition-2": "completed",
        "partition-3": "completed",
    }
    read_rows = {f"partition-{it['number']}": it["seen"] for it in partitions(app, run.id)}
    assert {name: it["recordsProcessed"] for name, it in told.items()} == read_rows
    assert "cannot be read" in told["partition-1"]["error"]
    lives = rows.query(app, "SELECT headers FROM stepfast_outbox WHERE destination LIKE 'broker:done:%'")
    assert {json.loads(it["headers"])["lives-for"] for it in lives} == {"3600.0"}


def test_no_end_is_told_by_default(app: Stepfast) -> None:
    shop = brokered(app)

    failing_run(app, shop)

    assert staged(app, "WORK_DONE") == []


def test_without_a_broker_nothing_is_staged(app: Stepfast) -> None:
    app.feed(Catalogue(shop := Shop.with_items(100)))
    prepare(app)
    run = begin(app)

    work_until_idle(app)

    check_complete(app, run.id, shop)
    assert rows.count(app, "stepfast_outbox") == 0


def test_a_feed_without_a_transport_has_that_of_the_application(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, environment, none = (
        Stepfast(database_url, transport=it) for it in ("memory://ours", None, "")
    )  # "": none, whatever the environment says
    monkeypatch.setenv("STEPFAST_TRANSPORT", "service-bus")
    own = Broker("memory://own")

    mine.feed(Catalogue(Shop()))
    mine.feed(Catalogue(Shop(), name="another", transport=own))
    environment.feed(Catalogue(Shop()))
    none.feed(Catalogue(Shop()))

    assert broker_of(mine).url == "memory://ours"
    assert broker_of(mine, "another") is own
    assert broker_of(environment).url == "service-bus"
    assert none.feeds.get("catalogue").broker is None
    for it in (mine, environment, none):
        it.close()


@pytest.mark.parametrize(
    ("transport", "says"),
    [
        ("carrier-pigeon://", "write one of memory://"),
        (7, "write a URL such as 'service-bus://'"),
        (Broker("memory://x", consolidate="work-items"), "three names"),
        (Broker("memory://x", head_start="2h"), "between a moment and an hour"),
        (Broker("memory://x", head_start=0), "between a moment and an hour"),
    ],
)
@pytest.mark.only_on("sqlite")
def test_a_transport_that_cannot_be_is_refused_with_a_sentence(
    app: Stepfast, transport: object, says: str
) -> None:
    feed: Feed = Catalogue(Shop(), transport=transport)

    with pytest.raises(ConfigurationError, match=f"feed 'catalogue': .*{says}"):
        app.feed(feed)
