"""What a test reads about a run, and what must be true of it at any time: every counter is the sum of what it counts."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

from stepfast.database.database import persist
from stepfast.runs.run import find_run
from stepfast.runs.start import RunRequest, source_clock, start_run
from tests.support import rows

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepfast import Stepfast
    from stepfast.runs.run import Run
    from tests.support.feeds import Shop


def begin(app: Stepfast, feed: str = "catalogue", **request: Any) -> Run:
    """Start a run as the command does."""
    declared = app.feeds.get(feed)
    clock = asyncio.run(source_clock(app.database, declared))
    return persist(app.database, lambda tx: start_run(tx, declared, RunRequest(**request), clock))


def run_of(app: Stepfast, run_id: str) -> Run:
    with app.database.reading() as tx:
        return find_run(tx, run_id)


def partitions(app: Stepfast, run_id: str) -> list[rows.Row]:
    return rows.query(
        app, "SELECT * FROM stepfast_partition WHERE run_id = :run_id ORDER BY number", run_id=run_id
    )


def pages(app: Stepfast, run_id: str) -> list[rows.Row]:
    """The ledger: what every request asked and got."""
    return rows.query(
        app,
        "SELECT g.*, p.name FROM stepfast_page g JOIN stepfast_partition p ON p.id = g.partition_id"
        " WHERE p.run_id = :run_id ORDER BY p.number, g.epoch, g.seq",
        run_id=run_id,
    )


def jobs_of(app: Stepfast, run_id: str, part: str) -> list[Mapping[str, Any]]:
    """The arguments of all jobs of a run that were ever enqueued for this part of it."""
    found = [
        row["payload"]
        for table in ("job", "archive")
        for row in rows.query(
            app, f"SELECT payload FROM stepfast_{table} WHERE kind LIKE :kind", kind=f"%.{part}"
        )
    ]
    arguments = [json.loads(it) if isinstance(it, str) else it for it in found]
    mine = {row["id"] for row in partitions(app, run_id)}
    return [it for it in arguments if it.get("run_id") == run_id or it.get("row_id") in mine]


def consolidations(app: Stepfast, run_id: str) -> int:
    """How often the end of fetching has begun a consolidation."""
    return sum(not it.get("round") and it.get("shard") is None for it in jobs_of(app, run_id, "consolidate"))


def raw(app: Stepfast, feed: str = "catalogue") -> dict[str, int]:
    """Prices as they were observed last."""
    found = rows.query(app, "SELECT item_id, payload FROM stepfast_raw WHERE feed = :feed", feed=feed)
    return {row["item_id"]: json.loads(row["payload"])["price"] for row in found}


def check_counters(app: Stepfast, run_id: str) -> None:
    """Every number that a run or a partition carries is the sum of what it stands for."""
    run, parts, ledger = run_of(app, run_id), partitions(app, run_id), pages(app, run_id)
    states = [it["state"] for it in parts]
    assert run.partitions == sum(it != "split" for it in states)
    assert run.completed == sum(it in ("done", "done_unverified") for it in states)
    assert run.failed == states.count("failed")
    assert run.unverified == states.count("done_unverified")
    ended = [it for it in parts if it["state"] in ("done", "done_unverified", "failed")]
    assert run.seen == sum(it["seen"] for it in ended)
    assert run.rejected == sum(it["rejected"] for it in ended)
    for it in parts:
        mine = [page for page in ledger if page["partition_id"] == it["id"]]
        began = max((page["epoch"] for page in mine if page["seq"] == 0), default=0)  # anew, perhaps
        assert it["seen"] == sum(page["fresh"] for page in mine if page["epoch"] >= began)
        assert _remembered(app, it["id"]) in ({it["seen"]} if run.ended_at is None else {it["seen"], 0})
        assert it["rejected"] == sum(page["rejected"] for page in mine if page["epoch"] >= began)
        if not it["seq"] or any(page["seq"] == 0 for page in mine):  # else its first requests divided it
            assert it["requests"] == len(mine)
        assert (it["ended_at"] is None) == (it["state"] in ("ready", "running"))


def check_complete(app: Stepfast, run_id: str, shop: Shop) -> None:
    """The run came to its end: everything is there, nothing twice, nothing is stuck."""
    run = run_of(app, run_id)
    assert run.state == "completed", f"{run.state}: {run.reason}"
    assert raw(app, run.feed) == shop.prices()
    assert {it["state"] for it in partitions(app, run_id)} <= {"done", "split"}
    assert consolidations(app, run_id) == 1
    assert not rows.count(app, "stepfast_job")
    check_counters(app, run_id)
    for it in partitions(app, run_id):
        seqs = [page["seq"] for page in pages(app, run_id) if page["partition_id"] == it["id"]]
        assert it["state"] == "split" or seqs == list(range(it["seq"] - len(seqs), it["seq"]))


def _remembered(app: Stepfast, partition_id: str) -> int:
    found = rows.query(
        app,
        "SELECT count(*) AS n FROM stepfast_seen WHERE partition_id = :id AND item_id NOT LIKE '?%'",
        id=partition_id,
    )
    return int(found[0]["n"])
