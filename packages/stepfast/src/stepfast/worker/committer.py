"""Commit what the handlers answered.

Steps that are done and have no effects share a transaction: everything that ended while the last commit was under way
goes into the next one. Continuations whose effects allow it share one, too. Any other step has a transaction of its own.

Nothing is dropped while the database is away: answers wait here. A COMMIT whose answer was lost is decided by the fences.

`worker/execution.py` puts ended steps in (`Committer.put`); what a transaction writes is in `jobs/commit.py`.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Self, TypeVar

from stepfast.backoff import Backoff
from stepfast.clock import boot_time
from stepfast.database.dialects import Plans
from stepfast.database.failures import blames_data, is_read_only_server
from stepfast.database.upsert import Upsert
from stepfast.errors import (
    ContentionError,
    DatabaseError,
    LeaseLostError,
    UnknownCommitError,
    UnreachableError,
)
from stepfast.jobs.commit import CommitState, commit, commit_states, continue_here, finish_many, more_urgent
from stepfast.jobs.end_webhook import TASK_PREFIX, task_id_of
from stepfast.jobs.outcome import Again, Bury, Continue, Done, Effect, GiveBack, ReservedContinue, Stop
from stepfast.jobs.payload import encode
from stepfast.jobs.retry import judge
from stepfast.jobs.step import Report, write_reports
from stepfast.results.watch import WAITS, notify_waiting
from stepfast.telemetry import happened
from stepfast.worker.running import DONE, Ended, each_job_once, report, report_batch, went_wrong
from stepfast.worker.vital import VitalParts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.lease import Lease
    from stepfast.worker.admission import Admission
    from stepfast.worker.heartbeat import Heartbeat
    from stepfast.worker.leases import Leases
    from stepfast.worker.reporter import Reporter

T = TypeVar("T")

LARGEST_BATCH: Final = 1_000  # steps without effects in one transaction
LARGEST_GROUP: Final = 16  # continuations in one transaction
STICKY_STEPS: Final = 20  # a chain of continuations stays with one worker for so many steps ...
STICKY_SECONDS: Final = 2.0  # ... or so long, then other workers get a chance
# Seconds without sharing after a deadlock: PostgreSQL needs one to find it, and others wait.
APART: Final = 30.0
LONGEST_REFUSAL: Final = 5.0  # seconds between two tries to write a step that was refused
IN_VAIN: Final = 8  # tries in a row that the database refused, while it took the writes of others


class Committer:
    """Writes the ends of steps in the background, and hands continuations that stay here back to be run."""

    def __init__(
        self,
        database: Database,
        leases: Leases,
        admission: Admission,
        reporter: Reporter,
        heartbeat: Heartbeat,
        *,
        vital: VitalParts | None = None,
        may_stay: bool = True,
    ) -> None:
        self._database = database
        self._leases = leases
        self._admission = admission
        self._reporter = reporter
        self._heartbeat = heartbeat
        self._stays = may_stay  # whether continuations may stay with this worker
        self._plain: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()
        vital = vital or VitalParts()
        self._batches = vital.thread("commit-batches", self._commit_batches)
        count = 1 if database.dialect.name == "sqlite" else 4
        self._line: Line[Ended] = Line(count)
        self._threads = [vital.thread(f"commit_{number}", self._commit_line) for number in range(count)]
        self._apart_until = 0.0  # monotonic
        self._split_up: dict[
            tuple[str, int], list[Report]
        ] = {}  # steps that share no transaction, and their reports
        self._hurry = threading.Event()
        self._unwritten = UnwrittenSteps(database, self._line)

    def start(self) -> None:
        self._batches.start()
        for thread in self._threads:
            thread.start()

    def put(self, ended: Ended) -> None:
        """Take in the end of a step. Called from the event loop: must not wait."""
        if isinstance(ended.ending, Done) and not ended.effects and not self._has_reports(ended.lease):
            self._plain.put(ended)
        else:
            self._line.put(ended)

    def _has_reports(self, lease: Lease) -> bool:
        """Whether reports of the step may not be written yet; such a step is committed alone, with them."""
        reporter = self._reporter
        return (lease.job_id, lease.fence) in reporter.unwritten or reporter.writing.locked()

    def stay_no_more(self) -> None:
        """From now on continuations go back to their queues."""
        self._stays = False

    def hurry(self) -> None:
        """Stop waiting for a database that is away."""
        self._hurry.set()
        self._unwritten.close()

    def stop(self, deadline: float) -> None:
        """Commit what is here; after `deadline` (monotonic), stop waiting for a database that is away."""
        if self._batches.ident is None:
            return
        late = threading.Timer(max(0.0, deadline - time.monotonic()), self.hurry)
        late.start()
        self._plain.put(None)
        self._batches.join()
        self._unwritten.wait_until_none()
        self._line.close()
        for thread in self._threads:
            thread.join()
        late.cancel()

    # Steps that are done and have no effects: a batch in one transaction.

    def _commit_batches(self) -> None:
        stopping = False
        while not stopping:
            batch: list[Ended] = []
            ended: Ended | None = self._plain.get()
            while ended is not None:
                batch.append(ended)
                if len(batch) >= LARGEST_BATCH:
                    break
                try:
                    ended = self._plain.get_nowait()
                except queue.Empty:
                    break
            else:
                stopping = True
            if batch:
                self._commit_batch(batch)

    def _commit_batch(self, ended_now: list[Ended]) -> None:
        batch, alone = each_job_once(ended_now)
        for ended in alone:
            self._commit_alone(ended)
        leases, results = self._results(batch)
        try:
            attempts = self._attempts(leases)
            for attempt in attempts:
                with attempt as tx:
                    attempt.mine = finish_many(tx, attempt.leases, results)
                    self._admission.free(tx, attempt.leases)
        except Exception as error:  # noqa: BLE001 - this thread commits for all of them, and must go on
            # One of them cannot be stored, and took the others with it: alone, only the guilty one fails.
            happened("worker.failed", jobs=len(leases), error=error)
            together = {lease.job_id for lease in leases}
            for ended in batch:
                if ended.lease.job_id in together:
                    self._commit_alone(ended)
        else:
            report_batch(batch, attempts.written)
            self._forget(leases)

    def _results(self, batch: list[Ended]) -> tuple[list[Lease], dict[str, str]]:
        """The leases of the batch and its encoded results. A step whose result cannot be encoded fails, alone."""
        results: dict[str, str] = {}
        leases: list[Lease] = []
        for ended in batch:
            ending = ended.ending
            if ending is not DONE and isinstance(ending, Done) and ending.result is not None:
                try:
                    results[ended.lease.job_id] = encode(ending.result)
                except Exception as error:  # noqa: BLE001 - an object may do anything when it is read
                    self._commit_alone(_failed(ended, error))
                    continue
            leases.append(ended.lease)
        return leases, results

    # All other steps wait in one line, and several threads commit them: continuations in groups, the others alone.

    def _commit_line(self) -> None:
        while group := self._line.take(self._may_share):
            if len(group) == 1:
                self._commit_alone(group[0])
            else:
                self._commit_group(group)

    def _may_share(self, ended: Ended) -> bool:
        """Whether this step may be committed with its neighbours in the line."""
        return (
            may_share(ended) and _key(ended) not in self._split_up and time.monotonic() >= self._apart_until
        )

    def _commit_group(self, group: list[Ended]) -> None:
        """Commit these steps in one transaction; if that is refused, each of them alone."""
        group, alone = each_job_once(group)
        if len(group) == 1:
            alone, group = [*alone, *group], []
        for ended in alone:
            self._commit_alone(ended)
        if not group:
            return
        reports = {ended.lease.job_id: self._reporter.take(ended.lease) for ended in group}
        try:
            held, fences = self._write_group(group, reports)
        except BaseException as error:  # noqa: BLE001 - alone, only the guilty one fails
            self._split_group(group, reports, error)
            return
        for ended in group:
            job_id = ended.lease.job_id
            self._finish(ended, fences.get(job_id), held=job_id in held)
        self._forget([ended.lease for ended in group])

    def _write_group(
        self, group: list[Ended], reports: Mapping[str, list[Report]]
    ) -> tuple[set[str], dict[str, int | None]]:
        """Returns the jobs that were still ours, and the new fences of those that stayed here."""
        by_id = {ended.lease.job_id: ended for ended in group}
        fences: dict[str, int | None] = {}
        attempts = self._attempts([ended.lease for ended in group], Plans.BY_KEY)
        for attempt in attempts:
            with attempt as tx:
                ending_now = [by_id[lease.job_id] for lease in attempt.leases]
                fences.update(end_together(tx, ending_now, reports, self._may_stay))
                self._admission.free(tx, attempt.leases)
        return attempts.written, fences

    def _split_group(
        self, group: Sequence[Ended], reports: Mapping[str, list[Report]], error: BaseException
    ) -> None:
        """Let any thread commit each of them alone: one that has to wait must not hold up the others."""
        if isinstance(error, PartedError) and error.contended:
            self._apart_until = time.monotonic() + APART
        for ended in group:
            self._split_up[_key(ended)] = reports[ended.lease.job_id]
        self._line.put_first(group)
        happened("commit.parted", jobs=len(group), error=error)

    def _commit_alone(self, ended: Ended) -> None:
        """Commit one step; if its effects fail, that failure is its end. If the database refuses our own writes, it waits."""
        try:
            as_ended, fence, held = self._write_alone(ended)
        except Exception as error:  # noqa: BLE001 - the thread must survive whatever an effect or the database does
            if self._unwritten.keep(ended, error):
                return
            self._split_up.pop(_key(ended), None)
            happened("worker.failed", job_id=ended.lease.job_id, error=error)
            ended.close("unwritten")
        else:
            self._finish(as_ended, fence, held=held)
        self._unwritten.forget(ended)
        self._forget([ended.lease])

    def _write_alone(self, ended: Ended) -> tuple[Ended, int | None, bool]:
        """Returns the step as it ended, the new fence of a continuation that stayed here, and whether it was ours."""
        lease, fence = ended.lease, None
        reports = self._split_up.pop(_key(ended), [])
        if self._has_reports(lease):
            reports = reports + self._reporter.take(lease)
        attempts = self._attempts(
            [lease], _plans(ended.effects), report_refused=not isinstance(ended.ending, GiveBack)
        )
        try:
            with ended.inside():
                for attempt in attempts:
                    with attempt as tx:
                        stay = self._may_stay(ended) and not more_urgent(tx, lease.queue, lease.priority)
                        if reports:
                            write_reports(tx, reports)  # before the outcome, which consumes the fence
                        fence = commit(tx, lease, ended.ending, ended.effects, stay=stay)
                        if self._admission.slots:
                            self._admission.free(tx, [lease])
        except BaseException as error:  # noqa: BLE001 - an effect may raise anything; that is a failed attempt
            try:
                if self._unwritten.may_pass(ended, error):
                    raise
                failed = _failed(ended, error)
                return failed, None, self._write_failure(failed, reports)
            except BaseException:
                self._split_up[_key(ended)] = reports  # for the next try
                raise
        return ended, fence, bool(attempts.written)

    def _write_failure(self, ended: Ended, reports: list[Report]) -> bool:
        """Write the failure of a step whose effects were rolled back; its reports are kept all the same."""
        assert isinstance(ended.ending, Again | Bury | Stop)  # noqa: S101 - what `judge` answers
        error = ended.ending.reason if isinstance(ended.ending, Stop) else ended.ending.error
        last = Report(ended.lease, None, None, "error", error)
        try:
            return self._write_ending(ended, [*reports, last])
        except Exception as problem:  # noqa: BLE001 - perhaps its reports are what cannot be written
            written = self._write_ending(ended, [last])
            happened("reports.dropped", job_id=ended.lease.job_id, error=problem)
            return written

    def _write_ending(self, ended: Ended, reports: list[Report]) -> bool:
        attempts = self._attempts([ended.lease])
        for attempt in attempts:
            with attempt as tx:
                write_reports(tx, reports)
                commit(tx, ended.lease, ended.ending)
                self._admission.free(tx, [ended.lease])
        return bool(attempts.written)

    # After the commit.

    def _finish(self, ended: Ended, fence: int | None, *, held: bool) -> None:
        """Report the end of a step that was ours, and run its continuation if it stayed here."""
        try:
            if held:
                report(ended, self._task_id(ended))
                if fence is not None:
                    self._continue_here(ended, fence)
            else:
                ended.close("refused")
        except Exception as error:  # noqa: BLE001 - the thread must survive, and so must the neighbours
            happened("worker.failed", job_id=ended.lease.job_id, error=error)
        finally:
            ended.close("unwritten")

    def _task_id(self, ended: Ended) -> str | None:
        """The id of a task whose step went wrong. The others are spared the look."""
        if not ended.lease.kind.startswith(TASK_PREFIX) or not went_wrong(ended.ending):
            return None
        try:
            with self._database.looking() as tx:
                return task_id_of(tx, ended.lease.job_id)
        except DatabaseError:  # the event is reported without it
            return None

    def _forget(self, leases: Sequence[Lease]) -> None:
        """These leases are over: free what this process remembers of them, and wake threads that wait for their jobs."""
        if self._admission.slots:
            self._admission.forget(leases)
        self._leases.forget(leases)
        if WAITS:
            notify_waiting(self._database, (lease.job_id for lease in leases))

    # Continuations that stay with this worker.

    def _may_stay(self, ended: Ended) -> bool:
        if (
            not isinstance(ended.ending, Continue)
            or isinstance(ended.ending, ReservedContinue)
            or ended.ending.delay
        ):
            return False
        young = not ended.chain or time.monotonic() - ended.chain_since < STICKY_SECONDS
        limited = self._admission.kinds.limited and self._admission.has_limits(ended.lease)
        return self._stays and ended.chain < STICKY_STEPS and young and not limited

    def _continue_here(self, ended: Ended, fence: int) -> None:
        assert isinstance(ended.ending, Continue)  # noqa: S101 - only a continuation returns a fence
        cursor = encode(ended.ending.cursor, "cursor")
        lease = ended.lease._replace(
            step=ended.lease.step + 1, failures=0, crashes=0, cursor=cursor, fence=fence
        )
        since = ended.chain_since or time.monotonic()
        if not self._leases.resume(lease, ended.chain + 1, since):
            self._commit_alone(Ended(lease, GiveBack(), (), ended.retry))

    def _attempts(
        self, leases: list[Lease], plans: Plans = Plans.ENGINE, *, report_refused: bool = True
    ) -> Attempts:
        return Attempts(
            self._database, self._heartbeat, self._hurry, leases, plans, report_refused=report_refused
        )


class UnwrittenSteps:
    """Steps whose end the database refused, for a reason that may pass: they go back into the line after a pause.

    A step that was refused several times while the database took other writes cannot be written itself: then it fails,
    or is given up if that cannot be written either.
    """

    def __init__(self, database: Database, line: Line[Ended]) -> None:
        self._database = database
        self._line = line
        self._lock = threading.Lock()  # guards the three below
        self._refusals: dict[tuple[str, int], Refusals] = {}
        self._kept: list[Ended] = []
        self._timer: threading.Timer | None = None
        self._closed = False
        self._all_put_back = False

    def may_pass(self, ended: Ended, error: BaseException) -> bool:
        """Whether the error is one of the database, not of the step or its effects."""
        if not isinstance(error, DatabaseError) or error.of_step or blames_data(error):
            return False
        refused = self._refusals.get(_key(ended))
        return refused is None or not self._is_guilty(refused)

    def keep(self, ended: Ended, error: Exception) -> bool:
        """Keep a step that could not be written; False if it is given up."""
        with self._lock:
            before = self._refusals.get(_key(ended), Refusals(0, time.monotonic()))
            now = self._refusals[_key(ended)] = before._replace(times=before.times + 1)
            if self._closed or not isinstance(error, DatabaseError) or self._is_guilty(now):
                return False
            if now.times == 1:
                happened("commit.refused", ended.subject, error=error)
            self._kept.append(ended)
            if self._timer is None:
                self._timer = threading.Timer(min(LONGEST_REFUSAL, 0.05 * 2**now.times), self._put_back)
                self._timer.daemon = True
                self._timer.start()
            return True

    def _is_guilty(self, refused: Refusals) -> bool:
        return refused.times >= IN_VAIN and self._database.recovered_at > refused.since

    def forget(self, ended: Ended) -> None:
        """The step is written, or given up."""
        if self._refusals:
            with self._lock:
                self._refusals.pop(_key(ended), None)

    def wait_until_none(self) -> None:
        """Wait until each is written, given up, or put back for its last try."""
        while self._refusals and not self._all_put_back:
            time.sleep(0.02)

    def close(self) -> None:
        """Keep none any more; those that are kept are tried once more."""
        with self._lock:
            self._closed = True
        self._put_back()
        self._all_put_back = True

    def _put_back(self) -> None:
        with self._lock:
            kept, self._kept, self._timer = self._kept, [], None
        for ended in kept:
            self._line.put(ended)


class Refusals(NamedTuple):
    """How often the end of a step was refused, and since when (monotonic)."""

    times: int
    since: float


def _key(ended: Ended) -> tuple[str, int]:
    return ended.lease.job_id, ended.lease.fence


def _plans(effects: Sequence[Effect]) -> Plans:
    """Rows to upsert are found by their key, as those of effects that say so; a function may send anything."""
    by_key = all(isinstance(effect, Upsert) or getattr(effect, "by_key", False) for effect in effects)
    return Plans.BY_KEY if by_key else Plans.FREE


def _failed(ended: Ended, error: BaseException) -> Ended:
    """The same step, ending in the failure that its effects or its result met."""
    with ended.hiding():
        verdict = judge(error, ended.retry, ended.lease.failures, random.random())
    return Ended(ended.lease, verdict, (), ended.retry, run=ended.run)


class Attempts:
    """One write, tried until the database has answered for each of its leases.

        for attempt in attempts:
            with attempt as tx:
                ...  # write the ends of attempt.leases

    Deadlocks and outages are waited out: effects are applied again, the handler is not run again, and no attempt of
    the job is charged. A COMMIT whose answer was lost is decided by the fences; only what is still open is tried again.
    """

    def __init__(
        self,
        database: Database,
        heartbeat: Heartbeat,
        hurry: threading.Event,
        leases: list[Lease],
        plans: Plans,
        *,
        report_refused: bool,
    ) -> None:
        self._database = database
        self._heartbeat = heartbeat
        self._hurry = hurry
        self._plans = plans
        self._all = leases
        self._report_refused = report_refused
        self._pause: Pause | None = None
        self._gave_up = False
        self._transaction: AbstractContextManager[Transaction] | None = None
        self._tx: Transaction | None = None
        self.leases = leases  # whose end is not known to be written
        # Set it where a write may find that some jobs are no longer ours.
        self.mine: Sequence[str] | None = None
        self.written: set[str] = set()  # jobs that were still ours, and whose end is written

    def __iter__(self) -> Iterator[Self]:
        while self.leases:
            if self._begin():
                yield self
        if self._report_refused and not self._gave_up and len(self.written) < len(self._all):
            for lease in self._all:
                if lease.job_id not in self.written:
                    happened("step.refused", lease, fence=lease.fence)

    def _begin(self) -> bool:
        """Begin a transaction; False if that failed and was waited for."""
        try:
            self._transaction = self._database.transaction(self._plans)
            self._tx = self._transaction.__enter__()
        except Exception as error:
            if self._goes_on_after(error):
                return False
            raise
        return True

    def __enter__(self) -> Transaction:
        assert self._tx is not None  # noqa: S101 - begun before the attempt was handed out
        return self._tx

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        assert self._transaction is not None  # noqa: S101 - begun before the attempt was handed out
        try:
            self._transaction.__exit__(kind, error, trace)
        except Exception as refused:
            if self._goes_on_after(refused):
                return True
            raise
        if error is not None:
            return self._goes_on_after(error)
        self.written.update([lease.job_id for lease in self.leases] if self.mine is None else self.mine)
        self.leases = []
        if self._pause is not None:
            self._pause.over()
        return True

    def _goes_on_after(self, error: BaseException) -> bool:
        """Wait, decide or give up. False: this is an error of the write itself."""
        pause = self._pause = self._pause or Pause(self._hurry)
        match error:
            case LeaseLostError():
                self.leases = []
            case UnknownCommitError() if self._is_ours(error):
                happened("commit.unknown", jobs=len(self.leases))
                self._decide()
                if self.leases and not pause.after(error):
                    self._give_up(error)
            case ContentionError() | UnreachableError() if self._is_ours(error):
                if pause.in_vain(error, self._heartbeat):
                    refused = DatabaseError(
                        f"the database ends the connection whenever this is written: {error}"
                    )
                    refused.of_step = True
                    raise refused from error
                if not pause.after(error):
                    self._give_up(error)
            case _:
                return False
        return True

    def _is_ours(self, error: DatabaseError) -> bool:
        """Whether an effect did not bring the error from another database."""
        return error.origin in {None, self._database.origin}

    def _decide(self) -> None:
        """Find out by the fences which ends a COMMIT has written whose answer was lost."""
        found = self._states()
        committed = [job_id for job_id, state in found.items() if state is CommitState.COMMITTED]
        if committed and self._tx is not None:
            self._tx.committed()
        self.written.update(committed)
        self.leases = [lease for lease in self.leases if found[lease.job_id] is CommitState.OPEN]

    def _states(self) -> dict[str, CommitState]:
        pause = Pause(self._hurry)
        while True:
            try:
                with self._database.transaction(Plans.ENGINE) as tx:
                    return commit_states(tx, self.leases)
            except (ContentionError, UnreachableError, UnknownCommitError) as error:  # it only looks: again
                if not pause.after(error):
                    return {lease.job_id: CommitState.SUPERSEDED for lease in self.leases}

    def _give_up(self, error: Exception) -> None:
        """There is no time left to wait. No job was refused."""
        self._gave_up = True
        for lease in self.leases:
            happened("step.unwritten", lease, error=error)
        self.leases = []


class Pause:
    """How long to wait while the database is away or busy."""

    def __init__(self, hurry: threading.Event) -> None:
        self._hurry = hurry
        self._backoff = Backoff(first=0.02, longest=1.0, jitter=0.5)
        self._tries = 0
        self._refusals = 0
        self._refused_since = 0.0  # boot time
        self._lost = False

    def in_vain(self, error: Exception, heartbeat: Heartbeat) -> bool:
        """Whether it is not the database that is away, but this write that it will not take (a packet too large)."""
        lost = isinstance(error, UnreachableError) and not is_read_only_server(error)
        if not lost or not heartbeat.may_claim:
            self._refusals = 0
            return False
        if not self._refusals:
            self._refused_since = boot_time()
        self._refusals += 1
        # A heartbeat that has not been sent since proves nothing: it may find the same outage.
        return self._refusals >= IN_VAIN and heartbeat.renewed_at > self._refused_since

    def after(self, error: Exception) -> bool:
        """Wait a little longer each time; False when there is no time left to wait."""
        if self._hurry.is_set():
            return False
        if self._tries == 0 and isinstance(error, UnreachableError):
            self._lost = True
            happened("database.lost", error=error, note="what was answered waits to be written")
        self._tries += 1
        self._hurry.wait(self._backoff.next())
        return True

    def over(self) -> None:
        """The write has succeeded."""
        if self._lost:
            happened("database.recovered", note="what was answered is written")


class Line(Generic[T]):
    """Items that several threads take in order, each its share of neighbours that may be taken together.

    An executor without futures, which cost 40 µs a step.
    """

    def __init__(self, threads: int) -> None:
        self._count = threads
        self._items: deque[T] = deque()
        self._changed = threading.Condition(threading.Lock())  # guards the items
        self._closed = False

    def put(self, item: T) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify()

    def put_first(self, items: Sequence[T]) -> None:
        """Let any thread go on with these. Only a thread that has taken them may, so that none is left at a close."""
        with self._changed:
            self._items.extendleft(reversed(items))
            self._changed.notify(len(items))

    def take(self, may_share: Callable[[T], bool]) -> list[T]:
        """Wait for the next item, and take with it those behind it that may share; nothing once the line is closed and empty."""
        with self._changed:
            while not self._items and not self._closed:
                self._changed.wait()
            if not self._items:
                return []
            share = min(LARGEST_GROUP, 1 + (len(self._items) - 1) // self._count)
            group = [self._items.popleft()]
            if self._may(group[0], may_share):
                while len(group) < share and self._may(self._items[0], may_share):
                    group.append(self._items.popleft())
            return group

    def close(self) -> None:
        """Let the threads leave when everything is taken."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def __len__(self) -> int:
        return len(self._items)

    @staticmethod
    def _may(item: T, may_share: Callable[[T], bool]) -> bool:
        try:
            return may_share(item)
        except Exception:  # noqa: BLE001 - it is taken alone, and its own commit says what is wrong with it
            return False


# Continuations that share a transaction: the pages of several partitions, say. All of them are written, or none.


def may_share(ended: Ended) -> bool:
    """Whether this step may be committed with others: its effect, if it has one, knows how to be applied with them.

    Each statement of such an effect names its rows, or inserts; it enqueues nothing.
    """
    ending, effects = ended.ending, ended.effects
    return (
        isinstance(ending, Continue)
        and type(ending.delay) is int  # a delay that is no duration is refused when the step is alone
        and not ending.delay
        and (not effects or (len(effects) == 1 and hasattr(type(effects[0]), "apply_together")))
    )


class PartedError(Exception):
    """A step of a group was refused, or met a deadlock: the group is split up."""

    def __init__(self, error: ContentionError | LeaseLostError) -> None:
        super().__init__(str(error))
        self.contended = isinstance(error, ContentionError)


def end_together(
    tx: Transaction,
    steps: Sequence[Ended],
    reports: Mapping[str, list[Report]],
    may_stay: Callable[[Ended], bool],
) -> dict[str, int | None]:
    """Write the ends of these steps, or raise; returns the new fence of each that stays here, and None for the others."""
    try:
        return _end_together(tx, steps, reports, may_stay)
    except (ContentionError, LeaseLostError) as error:
        raise PartedError(error) from error


def _end_together(
    tx: Transaction,
    steps: Sequence[Ended],
    reports: Mapping[str, list[Report]],
    may_stay: Callable[[Ended], bool],
) -> dict[str, int | None]:
    lines = [line for step in steps for line in reports[step.lease.job_id]]
    write_reports(tx, lines)  # before the outcomes, which consume the fences
    wishes = {step.lease.job_id: (step.lease.queue, step.lease.priority) for step in steps if may_stay(step)}
    stays = {place: not more_urgent(tx, *place) for place in set(wishes.values())}
    here: list[Ended] = []
    for step in steps:
        place = wishes.get(step.lease.job_id)
        if place is not None and stays[place]:
            here.append(step)
        else:
            commit(tx, step.lease, step.ending)
    fences = continue_here(tx, [(it.lease, it.ending) for it in here if isinstance(it.ending, Continue)])
    sharing: dict[type[Any], list[Effect]] = {}
    for step in steps:
        for effect in step.effects:
            sharing.setdefault(type(effect), []).append(effect)
    for kind, effects in sharing.items():
        kind.apply_together(tx, effects)
    return {step.lease.job_id: fences.get(step.lease.job_id) for step in steps}
