"""The limit of pages: the statements that Stepfast sends for each, sent by the bare driver, without an engine.

`pages_raw CONNECTIONS`. What is sent is made ready beforehand: a page costs its statements, and nothing else.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.subjects.pages import PAGE, PAGES, page
from benchmarks.subjects.raw_limit import OWNER
from benchmarks.tally import Tally
from stepfast.database.connection import as_document, as_parameter
from stepfast.database.dialects import Plans
from stepfast.database.drivers import open_database
from stepfast.jobs.commit import CONTINUE_JOB_HERE, LOCK_LEASED_JOB, MORE_URGENT_WORK
from stepfast.runs.page import FIND_POSITION, INSERT_PAGE
from stepfast.runs.partition import ADVANCE_PARTITION
from stepfast.runs.raw_rows import OBSERVE_ROWS, REMEMBER_NEW, observed
from stepfast.worker.committer import STICKY_STEPS

if TYPE_CHECKING:
    from stepfast.database.connection import Connection

FENCE = 1
TAKE = "UPDATE stepfast_job SET state = 'leased', owner = {owner}, fence = {fence}"
PAGING = (
    '{"seq":7,"pass_":1,"ask":"page","ended":null,"counts":false,"offset":0,"position":0,"after":1234,"back":0,'
    '"beyond":null,"seen":0,"read":0,"both":0,"streak":0,"moved":true,"tail":[],"widest":30,"full":true,"holes":0,'
    '"ordered":true,"smooth":true,"shown":0,"closing":false,"count_before":null,"count":null,"counted":false,'
    '"requests":7,"idle":0,"spent":0,"mark":null,"mark_age":0,"mark_life":1}'
)


class Lane:
    """One partition, on a connection with the session settings that Stepfast gives it."""

    def __init__(self, connection: Connection, lane: int, partition_id: str, job_id: str) -> None:
        self.cursor, self.dialect = connection.raw.cursor(), connection.dialect
        self.partition_id, self.job_id, self.fence = partition_id, job_id, FENCE
        self.pages = [self.rows(lane, number * PAGE) for number in range(PAGES)]

    def rows(self, lane: int, first: int) -> dict[str, Any]:
        found = sorted(observed(str(it["id"]), it) for it in page(lane, first))
        ids, hashes, payloads = (list(column) for column in zip(*found, strict=True))
        if self.dialect.name == "postgresql":
            columns = {"ids": ids, "hashes": hashes, "payloads": payloads}
            sent = {name: as_parameter(values, self.dialect) for name, values in columns.items()}
            return {"observe": sent, "remember": {"ids": sent["ids"]}}
        return {"observe": {"rows": as_document(found)}, "remember": {"rows": as_document(ids)}}

    def send(self, statement: Any, **parameters: Any) -> None:
        self.cursor.execute(statement.render(self.dialect), parameters)

    def read(self, seq: int, run_id: str) -> None:
        """One page: the look, where a chain begins, and the commit."""
        rows, mine = self.pages[seq], {"id": self.job_id, "fence": self.fence}
        if seq % STICKY_STEPS == 0:
            self.send(FIND_POSITION, id=self.partition_id)
            self.cursor.fetchall()
        self.cursor.execute(self.dialect.begin[Plans.BY_KEY])
        if self.dialect.commits_unasked:
            self.send(LOCK_LEASED_JOB, **mine)
            self.cursor.fetchall()
            self.write(seq, rows, run_id)
            self.go_on(seq, mine)
        else:
            self.go_on(seq, mine)
            self.write(seq, rows, run_id)
        self.cursor.execute("COMMIT")

    def go_on(self, seq: int, mine: dict[str, Any]) -> None:
        self.send(MORE_URGENT_WORK, queue="default", priority=0)
        self.cursor.fetchall()
        self.fence += 1
        self.send(CONTINUE_JOB_HERE, **mine, cursor=str(seq + 1), new_fence=self.fence)

    def write(self, seq: int, rows: dict[str, Any], run_id: str) -> None:
        self.send(
            ADVANCE_PARTITION,
            id=self.partition_id,
            epoch=0,
            seq=seq,
            paging=PAGING,
            next_offset=seq * PAGE,
            fresh=PAGE,
            rejected=0,
            worker_id="raw",
            target="running",
            counted=None,
            error=None,
            ends=0,
        )
        self.send(
            INSERT_PAGE,
            partition_id=self.partition_id,
            epoch=0,
            seq=seq,
            request_offset=0,
            got=PAGE,
            fresh=PAGE,
            rejected=0,
            milliseconds=0,
            decision="advance",
            worker_id="raw",
            fence=self.fence,
            **{"pass": 1},
        )
        self.send(REMEMBER_NEW, partition_id=self.partition_id, **rows["remember"], **{"pass": 1})
        self.send(
            OBSERVE_ROWS, feed="pages", run_id=run_id, observed_at=time.time_ns() // 1000, **rows["observe"]
        )


def main() -> None:
    url, tally = os.environ["STEPFAST_DATABASE_URL"], Tally(Path(os.environ["BENCH_TALLY"]))
    connections = [open_database(url).connect() for _ in range(int(sys.argv[1]))]
    first = connections[0]
    first.execute(TAKE.format(owner=OWNER, fence=FENCE))
    found = first.execute("SELECT id, job_id, run_id FROM stepfast_partition ORDER BY number").fetchall()
    lanes = [
        Lane(connections[lane % len(connections)], lane, str(row[0]), str(row[1]))
        for lane, row in enumerate(found)
    ]

    def work(mine: list[Lane]) -> None:
        for seq in range(PAGES):
            for lane in mine:
                tally.start()
                lane.read(seq, found[0][2])

    threads = [
        threading.Thread(target=work, args=(lanes[number :: len(connections)],))
        for number in range(len(connections))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.stdin.read()  # until the parent has read its CPU time


if __name__ == "__main__":
    main()
