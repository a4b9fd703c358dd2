"""Another worker finishes the work after a crash, by the engine's own functions; then the promises are checked.

What must come out is worked out from the rows as the crash left them, by the rules and not by the engine: a job is
charged with a crash only if it was the only one that the dead process held.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from stepfast import Continue, Done
from stepfast.config import WorkerSettings
from stepfast.database.database import persist
from stepfast.jobs.commit import commit
from stepfast.jobs.debounce import promote_successors
from stepfast.jobs.lease import Lease, claim, claim_suspect
from stepfast.jobs.outcome import Call, Effect
from stepfast.jobs.rescue import declare_dead, rescue
from stepfast.jobs.wait import cursor_in
from stepfast.limits.limit_rows import release_due
from stepfast.worker.heartbeat import register
from stepfast.worker.maintenance import promote
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Stepfast, Transaction

CRASH_LIMIT = WorkerSettings.crash_limit
ROUNDS = 30  # only a stuck job takes so many

Ends = dict[str, tuple[str, int, int, int]]  # id → state, step, failures, crashes


def effect_of(lease: Lease) -> Effect:
    """Insert a row of the user's own; its table has no key, so that a doubled effect shows."""

    def write(tx: Transaction) -> None:
        tx.execute(
            "INSERT INTO effect (job_id, step) VALUES (:job_id, :step)",
            {"job_id": lease.job_id, "step": page_of(lease.cursor)},
        )

    return Call(write)


def steps_of(payload: str) -> int:
    """How many steps a job has, as its payload says."""
    return int(json.loads(payload).get("steps", 1))


def page_of(cursor: str | None) -> int:
    """How many of them are committed. (The step's number also counts replacements.)"""
    page = cursor_in(cursor)
    return 0 if page is None else int(json.loads(page))


@dataclass
class RecoveringWorker:
    """Another worker on the same database."""

    app: Stepfast
    incarnation: int = 0

    def finish_everything(self) -> None:
        """Rescue the jobs of dead workers, and work until no job is left."""
        settings = WorkerSettings(worker_id="recovering", lease=timedelta(minutes=5))
        self.incarnation = persist(self.app.database, lambda tx: register(tx, settings))
        for _ in range(ROUNDS):
            self._let_time_pass()
            self._take_back()
            for lease in self._claimed():
                self._run(lease)
            if not rows.count(self.app, "stepfast_job"):
                return
        stuck = rows.query(self.app, "SELECT id, state, owner, queue FROM stepfast_job")
        raise AssertionError(f"stuck: {stuck}")

    def _let_time_pass(self) -> None:
        """Scheduled jobs are due, leases by hand have run out, silent processes are late, queues are resumed."""
        with self.app.transaction() as tx:
            tx.execute("UPDATE stepfast_job SET ready_at = 1 WHERE state = 'scheduled'")
            tx.execute("UPDATE stepfast_job SET lease_until = 1 WHERE state = 'leased' AND owner = 0")
            tx.execute(
                "UPDATE stepfast_worker SET alive_until = 1 WHERE state = 'alive' AND incarnation <> :me",
                {"me": self.incarnation},
            )
            tx.execute("UPDATE stepfast_queue SET paused_at = NULL")
            tx.execute("UPDATE stepfast_limit SET due_at = 1, arrival_at = 1 WHERE due_at IS NOT NULL")

    def _take_back(self) -> None:
        database = self.app.database
        persist(database, lambda tx: declare_dead(tx, self.incarnation, trust_clock=True))
        while persist(database, lambda tx: rescue(tx, CRASH_LIMIT)).jobs:
            pass
        persist(database, promote)
        persist(database, release_due)
        persist(database, promote_successors)

    def _claimed(self) -> list[Lease]:
        database, me = self.app.database, self.incarnation
        leases = persist(database, lambda tx: claim(tx, "default", me, 100))
        while suspect := persist(database, lambda tx: claim_suspect(tx, me, [])):
            leases.append(suspect)
        return leases

    def _run(self, lease: Lease) -> None:
        page = page_of(lease.cursor)
        ending = Done() if page + 1 >= steps_of(lease.payload) else Continue(page + 1)
        persist(self.app.database, lambda tx: commit(tx, lease, ending, [effect_of(lease)]))


def expected_ends(app: Stepfast) -> Ends:
    """How each job in the database must end: state, step, failures, crashes."""
    owners = {row["incarnation"]: row for row in rows.query(app, "SELECT * FROM stepfast_worker")}
    live = rows.query(app, "SELECT * FROM stepfast_job")
    held = Counter(row["owner"] for row in live if row["state"] == "leased")
    ends = {row["id"]: _end_in(row) for row in rows.query(app, "SELECT * FROM stepfast_archive")}
    for row in live:
        assert row["id"] not in ends, f"job {row['id']} is live and archived"
        ends[row["id"]] = _end_of(row, owners.get(row["owner"]), held[row["owner"]])
    return ends


def _end_in(row: rows.Row) -> tuple[str, int, int, int]:
    return row["state"], row["step"], row["failures"], row["crashes"]


def _end_of(row: rows.Row, owner: rows.Row | None, held_by_owner: int) -> tuple[str, int, int, int]:
    state, step, failures, crashes = _end_in(row)
    if state == "leased":
        if row["cancel_at"] is not None:
            return "cancelled", step, failures, crashes
        crashes += _charge(row, owner, held_by_owner)
        if crashes >= CRASH_LIMIT:
            return "dead", step, failures, crashes
    more = steps_of(row["payload"]) - 1 - page_of(row["cursor_json"])
    return ("done", step + more, 0, 0) if more else ("done", step, failures, crashes)


def _charge(row: rows.Row, owner: rows.Row | None, held_by_owner: int) -> int:
    if row["owner"] == 0:
        return 1  # a lease by hand that ran out
    if owner is None or owner["state"] == "stopped":
        return 0
    return int((held_by_owner if owner["state"] == "alive" else owner["abandoned"]) == 1)


def check_promises(app: Stepfast, expected: Ends) -> None:
    """No job is lost, doubled, stuck, or charged with a crash that was not its own; each step has one effect."""
    archived = rows.query(app, "SELECT * FROM stepfast_archive")
    assert {row["id"]: _end_in(row) for row in archived} == expected
    effects = rows.query(app, "SELECT job_id, step FROM effect")
    assert Counter((row["job_id"], row["step"]) for row in effects) == Counter(
        (row["id"], step)
        for row in archived
        for step in range(steps_of(row["payload"]) if row["state"] == "done" else page_of(row["cursor_json"]))
    )
    assert not rows.count(app, "stepfast_job")
