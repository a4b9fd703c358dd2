"""The limit: the statements that Stepfast sends, sent by the bare driver in a loop, without an engine.

`raw_limit drain BATCH` claims and acknowledges in batches; `raw_limit effects CONNECTIONS` gives each step a
transaction of its own with one effect row, on so many connections at once.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.tally import Tally
from stepfast.database.dialects import Plans
from stepfast.database.drivers import open_database
from stepfast.jobs.archive import ARCHIVE_JOBS, REMOVE_JOBS
from stepfast.jobs.commit import (
    COUNT_LEASED_JOBS,
    LOCK_LEASED_JOB,
    LOCK_LEASED_JOBS,
    MOVE_DONE_JOB,
    MOVE_DONE_JOBS,
    REMOVE_DONE_JOB,
)
from stepfast.jobs.lease import PICK_JOBS, TAKE_JOBS

OWNER = 7
EFFECT = "INSERT INTO bench_effect (id, note) VALUES ({n}, {note}) "
REPLACING = {
    "mariadb": "ON DUPLICATE KEY UPDATE note = VALUES(note)",
    "postgresql": "ON CONFLICT (id) DO UPDATE SET note = excluded.note",
    "sqlite": "ON CONFLICT (id) DO UPDATE SET note = excluded.note",
}


class Limit:
    """One connection, with the session settings that Stepfast gives it."""

    def __init__(self, url: str, fences: int = 1) -> None:
        connection = open_database(url).connect()
        self.dialect = connection.dialect
        self.cursor: Any = connection.raw.cursor()
        self.fence = fences
        spelled = {name: self.dialect.parameter.format(name) for name in ("n", "note")}
        self.effect = EFFECT.format(**spelled) + REPLACING[self.dialect.name]

    def claim(self, batch: int) -> list[tuple[Any, ...]]:
        self.fence += 1
        taken = {"owner": OWNER, "fence": self.fence}
        asked = {"queue": "default", "limit": batch}
        self.cursor.execute(self.dialect.begin[Plans.ENGINE])
        if take := TAKE_JOBS.render(self.dialect):
            self.cursor.execute(PICK_JOBS.render(self.dialect), asked)
            rows = list(self.cursor.fetchall())
            if self.dialect.name == "sqlite":
                rows = msgspec.json.decode(rows[0][0])
            if rows:
                self.cursor.execute(take, {**taken, "ids": self.listed([row[0] for row in rows])})
        else:
            self.cursor.execute(PICK_JOBS.render(self.dialect), {**asked, **taken})
            rows = list(self.cursor.fetchall())
        self.cursor.execute("COMMIT")
        return rows

    def acknowledge(self, ids: list[str]) -> None:
        self.cursor.execute(self.dialect.begin[Plans.ENGINE])
        self.finish(ids)
        self.cursor.execute("COMMIT")

    def commit_effect(self, job_id: str, n: int) -> None:
        mine: dict[str, str | int] = {"id": job_id, "fence": self.fence}
        effect = {"n": n, "note": "done"}
        self.cursor.execute(self.dialect.begin[Plans.BY_KEY])
        if self.dialect.commits_unasked:
            self.cursor.execute(LOCK_LEASED_JOB.render(self.dialect), mine)
            self.cursor.fetchall()
            self.cursor.execute(self.effect, effect)
            self.finish_one(mine)
        else:
            self.finish_one(mine)
            self.cursor.execute(self.effect, effect)
        self.cursor.execute("COMMIT")

    def finish_one(self, mine: dict[str, str | int]) -> None:
        self.cursor.execute(MOVE_DONE_JOB.render(self.dialect), {**mine, "result": None})
        if remove := REMOVE_DONE_JOB.render(self.dialect):
            self.cursor.execute(remove, mine)
        else:
            self.cursor.fetchall()

    def finish(self, ids: list[str]) -> None:
        if at_once := MOVE_DONE_JOBS.render(self.dialect):
            self.cursor.execute(at_once, {"ids": self.listed(ids), "fence": self.fence})
            self.cursor.fetchall()
            return
        listed = self.listed(ids)
        held = COUNT_LEASED_JOBS if self.dialect.name == "sqlite" else LOCK_LEASED_JOBS
        self.cursor.execute(held.render(self.dialect), {"ids": listed, "fence": self.fence})
        self.cursor.fetchall()
        self.cursor.execute(ARCHIVE_JOBS.render(self.dialect), {"ids": listed, "state": "done"})
        self.cursor.execute(REMOVE_JOBS.render(self.dialect), {"ids": listed})

    def listed(self, values: Sequence[str | int]) -> Any:
        match self.dialect.name:
            case "postgresql":
                return "{" + ",".join(map(str, values)) + "}"
            case "sqlite":
                return json.dumps(values)
            case _:
                return tuple(values)


def drain(limit: Limit, tally: Tally, batch: int) -> None:
    while rows := limit.claim(batch):
        for _ in rows:
            tally.start()
        limit.acknowledge([row[0] for row in rows])


def effects(limit: Limit, tally: Tally, batch: int) -> None:
    while rows := limit.claim(batch):
        for row in rows:
            tally.start()
            limit.commit_effect(row[0], json.loads(row[-1])["n"])


def main() -> None:
    url, tally = os.environ["STEPFAST_DATABASE_URL"], Tally(Path(os.environ["BENCH_TALLY"]))
    mode, number = sys.argv[1], int(sys.argv[2])
    if mode == "drain":
        drain(Limit(url), tally, number)
        return
    lanes = [
        threading.Thread(target=effects, args=(Limit(url, lane << 32), tally, 100))
        for lane in range(1, number + 1)
    ]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()


if __name__ == "__main__":
    main()
