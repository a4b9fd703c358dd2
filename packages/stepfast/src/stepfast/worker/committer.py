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
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from stepfast.database.dialects import Whose
from stepfast.database.upsert import Upsert
from stepfast.errors import (
    ContentionError,
    DatabaseError,
    LeaseLostError,
    UnknownCommitError,
    UnreachableError,
)
from stepfast.jobs.commit import CommitState, commit, commit_states, continue_here, finish_many, more_urgent
from stepfast.jobs.outcome import Again, Bury, Continue, Done, Effect, GiveBack, Stop
from stepfast.jobs.payload import encode
from stepfast.jobs.retry import judge
from stepfast.jobs.step import Report, write_reports
from stepfast.telemetry import happened
from stepfast.worker.running import DONE, Ended, each_job_once, report, report_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database
    from stepfast.jobs.lease import Lease
    from stepfast.worker.claimer import Gate
    from stepfast.worker.reporter import Reporter

    Write = Callable[[Transaction, list[Lease]], list[str]]


# A few threads that work off one line: an executor without futures, which cost 40 µs a step.

T = TypeVar("T")

LARGEST_GROUP: Final = 16


class Lanes(Generic[T]):
    """Does `work` with what is put in, in the order of asking, `count` of them side by side. `work` must not raise.

    Items that `joins` says yes to are worked off together with those that wait behind them; the others alone. A lane
    takes its share of the line, and leaves the rest to the other lanes.
    """

    def __init__(
        self, count: int, work: Callable[[list[T]], None], name: str, joins: Callable[[T], bool]
    ) -> None:
        self._work = work
        self._joins = joins
        self._line: deque[T] = deque()
        self._changed = threading.Condition(threading.Lock())  # guards the line
        self._stopping = False
        self._threads = [
            threading.Thread(target=self._run, name=f"{name}_{number}", daemon=True)
            for number in range(count)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def put(self, item: T) -> None:
        with self._changed:
            self._line.append(item)
            self._changed.notify()

    def put_first(self, items: Sequence[T]) -> None:
        """Let any lane go on with these; only `work` may ask for that, so that nothing is left behind by a stop."""
        with self._changed:
            self._line.extendleft(reversed(items))
            self._changed.notify(len(items))

    def stop(self) -> None:
        """Wait for everything that was put before."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while group := self._next():
            self._work(group)

    def _next(self) -> list[T]:
        """What is to be worked off together; nothing when it is time to leave."""
        with self._changed:
            while not self._line and not self._stopping:
                self._changed.wait()
            if not self._line:
                return []
            share = min(LARGEST_GROUP, 1 + (len(self._line) - 1) // len(self._threads))
            group = [self._line.popleft()]
            if self._may_join(group[0]):
                while len(group) < share and self._may_join(self._line[0]):
                    group.append(self._line.popleft())
            return group

    def _may_join(self, item: T) -> bool:
        try:
            return self._joins(item)
        except Exception:  # noqa: BLE001 - it is worked off alone, where it is told what is wrong with it
            return False


# Continuations that share a transaction: the pages of several partitions, say.
#
# It is all of them or none. If one is refused, they are written again, each alone.


class PartedError(Exception):
    """One of them was refused, or met a deadlock."""

    def __init__(self, error: ContentionError | LeaseLostError) -> None:
        super().__init__(str(error))
        self.contended = isinstance(error, ContentionError)


def joins(ended: Ended) -> bool:
    """Whether this step may be committed with others: its effect, if it has one, knows how to be applied with them.

    Each statement of such an effect names its rows, or inserts; it enqueues nothing.
    """
    ending, effects = ended.ending, ended.effects
    return (
        isinstance(ending, Continue)
        and type(ending.delay) is int  # what is no duration at all is told so alone
        and not ending.delay
        and (not effects or (len(effects) == 1 and hasattr(type(effects[0]), "apply_together")))
    )


def end_together(
    tx: Transaction,
    steps: Sequence[Ended],
    said: Mapping[str, list[Report]],
    may_stay: Callable[[Ended], bool],
) -> dict[str, int | None]:
    """Write what these steps end with, or raise; returns the new fence of each that stays here, and None for the others."""
    try:
        return _end(tx, steps, said, may_stay)
    except (ContentionError, LeaseLostError) as error:
        raise PartedError(error) from error


def _end(
    tx: Transaction,
    steps: Sequence[Ended],
    said: Mapping[str, list[Report]],
    may_stay: Callable[[Ended], bool],
) -> dict[str, int | None]:
    lines = [it for step in steps for it in said[step.lease.job_id]]
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


# How long to wait for a database that does not answer, and when to stop believing that it is the database.

IN_VAIN: Final = 8  # lost connections in a row, while the heartbeat gets through


class Pause:
    """How long to hold an answer while the database is away or busy."""

    def __init__(self, hurry: threading.Event) -> None:
        self._hurry = hurry
        self._tries = 0
        self._refusals = 0
        self._lost = False

    def in_vain(self, error: Exception, *, healthy: bool) -> bool:
        """Whether it is not the database that is away, but this write that it will not take (a packet too large)."""
        lost = isinstance(error, UnreachableError)
        self._refusals = self._refusals + 1 if lost and healthy else 0
        return self._refusals >= IN_VAIN

    def after(self, error: Exception) -> bool:
        """Wait a little longer each time; False when there is no time left to wait."""
        if self._hurry.is_set():
            happened("database.lost", error=error, note="gave up: this worker is stopping")
            return False
        if self._tries == 0 and isinstance(error, UnreachableError):
            self._lost = True
            happened("database.lost", error=error, note="what was answered waits to be written")
        self._tries += 1
        ceiling = min(1.0, 0.01 * 2 ** min(self._tries, 7))
        self._hurry.wait(random.uniform(ceiling / 2, ceiling))
        return True

    def over(self) -> None:
        """It was written at last."""
        if self._lost:
            happened("database.recovered", note="what was answered is written")


# Write until the database has answered: deadlocks and outages are waited out, lost answers are decided.


class PatientWriter:
    """Ends steps in transactions that are tried as often as it takes."""

    def __init__(self, database: Database, *, healthy: Callable[[], bool], hurry: threading.Event) -> None:
        self._database = database
        self._healthy = healthy  # whether the heartbeat gets through
        self._hurry = hurry

    def write(
        self,
        leases: list[Lease],
        write: Write,
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
                written.update(job_id for job_id, fate in found.items() if fate is CommitState.COMMITTED)
                open_leases = [lease for lease in open_leases if found[lease.job_id] is CommitState.OPEN]
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

    def _fates(self, leases: list[Lease]) -> dict[str, CommitState]:
        pause = Pause(self._hurry)
        while True:
            try:
                with self._database.transaction(Whose.OURS) as tx:
                    return commit_states(tx, leases)
            except (ContentionError, UnreachableError) as error:
                if not pause.after(error):
                    return {lease.job_id: CommitState.SUPERSEDED for lease in leases}


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
        mine = finish_many(tx, leases, results)
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
