"""Commit what the handlers answered.

Steps without effects share a transaction: everything that finished while the last commit was under way
goes into the next one. So do continuations whose effects say that they may. Any other step with effects has a
transaction of its own. Nothing is dropped while the database is away: answers wait here, and a commit whose answer
was lost is decided by the fences.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from stepfast.database.dialects import Whose
from stepfast.database.upsert import Upsert
from stepfast.steps.acknowledge import acknowledge
from stepfast.steps.commit import commit, more_urgent
from stepfast.steps.failure import judge
from stepfast.steps.outcome import Again, Bury, Continue, Done, Effect, GiveBack, Stop
from stepfast.steps.payload import encode
from stepfast.steps.reports import write_reports
from stepfast.steps.step import Report
from stepfast.telemetry import happened
from stepfast.worker.ended import Ended, each_job_once, report, report_batch
from stepfast.worker.lanes import Lanes
from stepfast.worker.running import DONE
from stepfast.worker.together import PartedError, end_together, joins
from stepfast.worker.writing import PatientWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.steps.lease import Lease
    from stepfast.worker.gate import Gate
    from stepfast.worker.reporter import Reporter

LARGEST_BATCH: Final = 1_000
STICKY_STEPS: Final = 20  # a chain of continuations stays with one worker for so many steps ...
STICKY_SECONDS: Final = 2.0  # ... or so long, then others get a chance
APART: Final = (
    30.0  # seconds without sharing after a deadlock: PostgreSQL needs one to find it, and others wait
)


class Settlement:
    """Turns endings into rows, in the background; tells who was refused and who goes on."""

    def __init__(
        self,
        database: Database,
        *,
        reporter: Reporter,
        gate: Gate,
        goes_on: Callable[[Lease, int, float], bool],
        settled: Callable[[Sequence[Lease]], None],
        healthy: Callable[[], bool],
    ) -> None:
        self._reporter = reporter
        self._gate = gate
        self._goes_on = goes_on  # hands a continuation that stayed here back to the execution
        self._settled = settled
        self._plain: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()
        lanes = 1 if database.dialect.name == "sqlite" else 4
        self._lanes = Lanes(lanes, self._settle_some, "stepfast-commit", self._joins)
        self._apart_until = 0.0  # monotonic
        self._parted: dict[tuple[str, int], list[Report]] = {}  # who shares no transaction, and what it said
        self._thread = threading.Thread(target=self._settle_in_batches, name="stepfast-settle", daemon=True)
        self._hurry = threading.Event()
        self._writer = PatientWriter(database, healthy=healthy, hurry=self._hurry)
        self.stays = True  # whether continuations may stay here

    def start(self) -> None:
        self._thread.start()
        self._lanes.start()

    def put(self, ended: Ended) -> None:
        """Called from the event loop: must not wait."""
        if isinstance(ended.ending, Done) and not ended.effects and not self._reporter.has(ended.lease):
            self._plain.put(ended)
        else:
            self._lanes.put(ended)

    def stop(self, deadline: float) -> None:
        """Finish what is under way; after `deadline` (monotonic), stop waiting for a database that is away."""
        late = threading.Timer(max(0.0, deadline - time.monotonic()), self._hurry.set)
        late.start()
        self._plain.put(None)
        self._thread.join()
        self._lanes.stop()
        late.cancel()

    def hurry(self) -> None:
        self._hurry.set()

    def _settle_in_batches(self) -> None:
        stopping = False
        while not stopping:
            batch: list[Ended] = []
            item: Ended | None = self._plain.get()
            while item is not None:
                batch.append(item)
                if len(batch) >= LARGEST_BATCH:
                    break
                try:
                    item = self._plain.get_nowait()
                except queue.Empty:
                    break
            else:
                stopping = True
            if batch:
                self._acknowledge(batch)

    def _acknowledge(self, ended_now: list[Ended]) -> None:
        batch, alone = each_job_once(ended_now)
        for ended in alone:
            self._settle_alone(ended)
        results: dict[str, str] = {}
        leases: list[Lease] = []
        for ended in batch:
            if (
                ended.ending is not DONE
                and isinstance(ended.ending, Done)
                and ended.ending.result is not None
            ):
                try:
                    results[ended.lease.job_id] = encode(ended.ending.result)
                except Exception as error:  # noqa: BLE001 - an object may do anything when it is read
                    self._settle_alone(_failed(ended, error))
                    continue
            leases.append(ended.lease)
        try:
            written = self._writer.write(leases, lambda tx, todo: self._finish(tx, todo, results))
        except Exception as error:  # noqa: BLE001 - this thread settles for all of them, and must go on
            # One of them cannot be stored, and took the others with it: alone, only the guilty one fails.
            happened("worker.failed", jobs=len(leases), error=error)
            together = {lease.job_id for lease in leases}
            for ended in batch:
                if ended.lease.job_id in together:
                    self._settle_alone(ended)
        else:
            report_batch(batch, written)
            self._settled(leases)

    def _finish(self, tx: Transaction, leases: list[Lease], results: dict[str, str]) -> list[str]:
        mine = acknowledge(tx, leases, results)
        self._gate.free(tx, leases)
        return mine

    def _joins(self, ended: Ended) -> bool:
        return joins(ended) and _key(ended) not in self._parted and time.monotonic() >= self._apart_until

    def _settle_some(self, group: list[Ended]) -> None:
        group, alone = each_job_once(group)
        for ended in alone if len(group) > 1 else [*alone, *group]:
            self._settle_alone(ended)
        if len(group) == 1:
            return
        said = {it.lease.job_id: self._reporter.take(it.lease) for it in group}
        try:
            held, stayed = self._commit_together(group, said)
        except BaseException as error:  # noqa: BLE001 - alone, only the guilty one fails
            self._part(group, said, error)
            return
        for ended in group:
            job_id = ended.lease.job_id
            self._safely(ended, partial(self._after, ended, stayed.get(job_id), held=job_id in held))
        self._settled([it.lease for it in group])

    def _part(self, group: Sequence[Ended], said: Mapping[str, list[Report]], error: BaseException) -> None:
        """Let each be settled alone, by any lane: one that has to wait must not hold up the others."""
        if isinstance(error, PartedError) and error.contended:
            self._apart_until = time.monotonic() + APART
        for ended in group:
            self._parted[_key(ended)] = said[ended.lease.job_id]
        self._lanes.put_first(group)
        happened("commit.parted", jobs=len(group), error=error)

    def _commit_together(
        self, group: list[Ended], said: Mapping[str, list[Report]]
    ) -> tuple[set[str], dict[str, int | None]]:
        """Commit continuations in one transaction, all of them or none.

        Returns the jobs that were still ours, and the new fences of those that stayed here.
        """
        by_id = {it.lease.job_id: it for it in group}
        stayed: dict[str, int | None] = {}

        def write(tx: Transaction, leases: list[Lease]) -> list[str]:
            stayed.update(end_together(tx, [by_id[it.job_id] for it in leases], said, self._may_stay))
            self._gate.free(tx, leases)
            return [it.job_id for it in leases]

        return self._writer.write([it.lease for it in group], write, whose=Whose.OURS_BY_KEY), stayed

    def _settle_alone(self, ended: Ended) -> None:
        self._safely(ended, lambda: self._commit(ended))
        self._settled([ended.lease])

    def _safely(self, ended: Ended, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # noqa: BLE001 - a lane must survive whatever an effect or the database says
            happened("worker.failed", job_id=ended.lease.job_id, error=error)
        finally:
            ended.close("unwritten")

    def _commit(self, ended: Ended) -> None:
        """Commit one step; if its effects fail, that failure is its ending."""
        said = self._parted.pop(_key(ended), []) + self._reporter.take(ended.lease)
        stayed: list[int | None] = [None]

        def write(tx: Transaction, _: list[Lease]) -> list[str]:
            lease = ended.lease
            stay = self._may_stay(ended) and not more_urgent(tx, lease.queue, lease.priority)
            stayed[0] = self._end(tx, ended, said, stay=stay)
            return [lease.job_id]

        try:
            with ended.inside():
                quiet = isinstance(ended.ending, GiveBack)
                held = self._writer.write([ended.lease], write, whose=_whose(ended.effects), quiet=quiet)
        except BaseException as error:  # noqa: BLE001 - an effect may raise anything; that is a failed attempt
            ended, stayed = _failed(ended, error), [None]
            held = self._write_failure(ended, said)
        self._after(ended, stayed[0], held=bool(held))

    def _end(self, tx: Transaction, ended: Ended, said: list[Report], *, stay: bool) -> int | None:
        """Write what one step ends with; returns the new fence of a continuation that stayed here."""
        write_reports(tx, said)  # before the outcome, which consumes the fence
        fence = commit(tx, ended.lease, ended.ending, ended.effects, stay=stay)
        self._gate.free(tx, [ended.lease])
        return fence

    def _after(self, ended: Ended, fence: int | None, *, held: bool) -> None:
        if held:
            report(ended)
            if fence is not None:
                self._continue_here(ended, fence)
        else:
            ended.close("refused")

    def _write_failure(self, ended: Ended, said: list[Report]) -> set[str]:
        try:
            return self._writer.write([ended.lease], lambda tx, _: self._failure(tx, ended, said))
        except Exception as error:  # noqa: BLE001 - perhaps its last words are what cannot be written
            happened("reports.dropped", job_id=ended.lease.job_id, error=error)
            return self._writer.write([ended.lease], lambda tx, _: self._failure(tx, ended, []))

    def _failure(self, tx: Transaction, ended: Ended, said: list[Report]) -> list[str]:
        """The failure of a step whose effects were rolled back: what it said is kept all the same."""
        assert isinstance(ended.ending, Again | Bury | Stop)  # noqa: S101 - what `judge` answers
        error = ended.ending.reason if isinstance(ended.ending, Stop) else ended.ending.error
        write_reports(tx, [*said, Report(ended.lease, None, None, "error", error)])
        commit(tx, ended.lease, ended.ending)
        self._gate.free(tx, [ended.lease])
        return [ended.lease.job_id]

    def _may_stay(self, ended: Ended) -> bool:
        if not isinstance(ended.ending, Continue) or ended.ending.delay or ended.ending.head_start:
            return False
        young = not ended.chain or time.monotonic() - ended.chain_since < STICKY_SECONDS
        return self.stays and ended.chain < STICKY_STEPS and young and not self._gate.limits(ended.lease)

    def _continue_here(self, ended: Ended, fence: int) -> None:
        assert isinstance(ended.ending, Continue)  # noqa: S101 - only a continuation returns a fence
        cursor = encode(ended.ending.cursor, "cursor")
        lease = ended.lease._replace(
            step=ended.lease.step + 1, failures=0, crashes=0, cursor=cursor, fence=fence
        )
        since = ended.chain_since or time.monotonic()
        if not self._goes_on(lease, ended.chain + 1, since):
            self._settle_alone(Ended(lease, GiveBack(), (), ended.retry))


def _key(ended: Ended) -> tuple[str, int]:
    return ended.lease.job_id, ended.lease.fence


def _whose(effects: Sequence[Effect]) -> Whose:
    """Rows to upsert are found by their key, as those of effects that say so; a function may send anything."""
    by_key = all(isinstance(it, Upsert) or getattr(it, "by_key", False) for it in effects)
    return Whose.OURS_BY_KEY if by_key else Whose.THEIRS


def _failed(ended: Ended, error: BaseException) -> Ended:
    """The same step, ending in the failure that its effects or its result met."""
    with ended.hiding():
        verdict = judge(error, ended.retry, ended.lease.failures, random.random())
    return Ended(ended.lease, verdict, (), ended.retry, run=ended.run)
