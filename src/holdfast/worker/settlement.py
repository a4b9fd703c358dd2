"""Commit what the handlers answered.

Steps without effects share a transaction: everything that finished while the last commit was under way
goes into the next one. A step with effects has a transaction of its own. Nothing is dropped while the
database is away: answers wait here, and a commit whose answer was lost is decided by the fences.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from typing import TYPE_CHECKING, Final

from holdfast.database.dialects import Whose
from holdfast.database.upsert import Upsert
from holdfast.errors import (
    ContentionError,
    DatabaseError,
    LeaseLostError,
    UnknownCommitError,
    UnreachableError,
)
from holdfast.steps.acknowledge import acknowledge
from holdfast.steps.commit import commit
from holdfast.steps.failure import judge
from holdfast.steps.fate import Fate, fates
from holdfast.steps.outcome import Again, Bury, Continue, Done, Effect, GiveBack, Stop
from holdfast.steps.payload import encode
from holdfast.steps.reports import write_reports
from holdfast.steps.step import Report
from holdfast.telemetry import happened
from holdfast.worker.ended import Ended, report, report_batch
from holdfast.worker.lanes import Lanes
from holdfast.worker.patience import Pause
from holdfast.worker.running import DONE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.database.connection import Transaction
    from holdfast.database.database import Database
    from holdfast.steps.lease import Lease
    from holdfast.worker.gate import Gate
    from holdfast.worker.reporter import Reporter

LARGEST_BATCH: Final = 1_000
STICKY_STEPS: Final = 20  # a chain of continuations stays with one worker for so many steps ...
STICKY_SECONDS: Final = 2.0  # ... or so long, then others get a chance


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
        self._database = database
        self._reporter = reporter
        self._gate = gate
        self._goes_on = goes_on  # hands a continuation that stayed here back to the execution
        self._settled = settled
        self._healthy = healthy  # whether the heartbeat gets through
        self._plain: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()
        lanes = 1 if database.dialect.name == "sqlite" else 4
        self._lanes = Lanes(lanes, self._settle_alone, "holdfast-commit")
        self._thread = threading.Thread(target=self._settle_in_batches, name="holdfast-settle", daemon=True)
        self._hurry = threading.Event()
        self.stays = True  # whether continuations may stay here

    def start(self) -> None:
        self._thread.start()
        self._lanes.start()

    def put(self, ended: Ended) -> None:
        """Called from the event loop: must not wait."""
        if (
            isinstance(ended.ending, Done)
            and not ended.effects
            and not self._reporter.has(ended.lease.job_id)
        ):
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

    def _acknowledge(self, batch: list[Ended]) -> None:
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
            written = self._write(leases, lambda tx, todo: self._finish(tx, todo, results))
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

    def _settle_alone(self, ended: Ended) -> None:
        try:
            self._commit(ended)
        except Exception as error:  # noqa: BLE001 - a lane must survive whatever an effect or the database says
            happened("worker.failed", job_id=ended.lease.job_id, error=error)
        finally:
            ended.close("unwritten")
            self._settled([ended.lease])

    def _commit(self, ended: Ended) -> None:
        """Commit one step; if its effects fail, that failure is its ending."""
        said = self._reporter.take(ended.lease)
        stay = isinstance(ended.ending, Continue) and self._may_stay(ended)
        stayed: list[int | None] = []

        def write(tx: Transaction, _: list[Lease]) -> list[str]:
            write_reports(tx, said)  # before the outcome, which consumes the fence
            stayed[:] = [commit(tx, ended.lease, ended.ending, ended.effects, stay=stay)]
            self._gate.free(tx, [ended.lease])
            return [ended.lease.job_id]

        try:
            with ended.inside():
                quiet = isinstance(ended.ending, GiveBack)
                held = self._write([ended.lease], write, whose=_whose(ended.effects), quiet=quiet)
        except BaseException as error:  # noqa: BLE001 - an effect may raise anything; that is a failed attempt
            ended = _failed(ended, error)
            held = self._write_failure(ended, said)
        if held:
            report(ended)
            if stayed and stayed[0] is not None:
                self._continue_here(ended, stayed[0])
        else:
            ended.close("refused")

    def _write_failure(self, ended: Ended, said: list[Report]) -> set[str]:
        try:
            return self._write([ended.lease], lambda tx, _: self._failure(tx, ended, said))
        except Exception as error:  # noqa: BLE001 - perhaps its last words are what cannot be written
            happened("reports.dropped", job_id=ended.lease.job_id, error=error)
            return self._write([ended.lease], lambda tx, _: self._failure(tx, ended, []))

    def _write(
        self,
        leases: list[Lease],
        write: Callable[[Transaction, list[Lease]], list[str]],
        *,
        whose: Whose = Whose.OURS,
        quiet: bool = False,  # what was to be given back has been taken: nothing is refused
    ) -> set[str]:
        """Write until the database has answered for each of these steps; returns the jobs that were still ours.

        Deadlocks and outages are waited out: effects are applied again, the handler is not run again, and no
        attempt is charged. A COMMIT whose answer was lost is decided by the fences.
        """
        written: set[str] = set()
        open_leases = list(leases)
        pause = Pause(self._hurry)
        while open_leases:
            try:
                with self._database.transaction(whose) as tx:
                    mine = write(tx, open_leases)
                written.update(mine)
                pause.over()
                break
            except LeaseLostError:
                break
            except UnknownCommitError as error:
                happened("commit.unknown", jobs=len(open_leases))
                found = self._fates(open_leases)
                written.update(job_id for job_id, fate in found.items() if fate is Fate.COMMITTED)
                open_leases = [lease for lease in open_leases if found[lease.job_id] is Fate.OPEN]
                if open_leases and not pause.after(error):
                    return written
            except (ContentionError, UnreachableError) as error:
                if pause.in_vain(error, healthy=self._healthy()):
                    raise DatabaseError(
                        f"the database ends the connection whenever this is written: {error}"
                    ) from error
                if not pause.after(error):
                    return written  # nobody was refused: we stopped waiting
        for lease in leases if len(written) < len(leases) else ():
            if lease.job_id not in written and not quiet:
                happened("step.refused", lease, fence=lease.fence)
        return written

    def _failure(self, tx: Transaction, ended: Ended, said: list[Report]) -> list[str]:
        """The failure of a step whose effects were rolled back: what it said is kept all the same."""
        assert isinstance(ended.ending, Again | Bury | Stop)  # noqa: S101 - what `judge` answers
        error = ended.ending.reason if isinstance(ended.ending, Stop) else ended.ending.error
        write_reports(tx, [*said, Report(ended.lease, None, None, "error", error)])
        commit(tx, ended.lease, ended.ending)
        self._gate.free(tx, [ended.lease])
        return [ended.lease.job_id]

    def _may_stay(self, ended: Ended) -> bool:
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

    def _fates(self, leases: list[Lease]) -> dict[str, Fate]:
        pause = Pause(self._hurry)
        while True:
            try:
                with self._database.transaction(Whose.OURS) as tx:
                    return fates(tx, leases)
            except (ContentionError, UnreachableError) as error:
                if not pause.after(error):
                    return {lease.job_id: Fate.SUPERSEDED for lease in leases}


def _whose(effects: Sequence[Effect]) -> Whose:
    """Rows to upsert are found by their key, as those of effects that say so; a function may send anything."""
    by_key = all(isinstance(it, Upsert) or getattr(it, "by_key", False) for it in effects)
    return Whose.OURS_BY_KEY if by_key else Whose.THEIRS


def _failed(ended: Ended, error: BaseException) -> Ended:
    """The same step, ending in the failure that its effects or its result met."""
    verdict = judge(error, ended.retry, ended.lease.failures, random.random())
    return Ended(ended.lease, verdict, (), ended.retry, run=ended.run)
