"""What an operator may do to a run: retry, consolidate, cancel and resume it.

Each action is one transaction along the arrows of `run.py`. An action that does not fit the run's state is refused, with
that state and what to do instead; nothing has changed then. Whatever is begun again gets a new epoch, so that everything
that still runs for the old one finds out that it is stale: its page, however late, changes nothing. The run's counters
are counted again from its partitions, in the same transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from stepfast.clock import moment
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, ContentionError, StateError
from stepfast.jobs.cancel import cancel_jobs
from stepfast.jobs.dead_letters import mark_answered
from stepfast.runs.debts import covers, open_debt
from stepfast.runs.lifecycle import (
    advice,
    advice_for_failed_consolidation,
    begin_consolidation,
    end_fetching,
    why_not_retried,
)
from stepfast.runs.messages import announce_pages, next_page
from stepfast.runs.paging.decision import PageState, with_fresh_budget
from stepfast.runs.partition import (
    Partition,
    PartitionState,
    end_partition,
    lock_partitions,
    partitions_of,
    require_partition_transition,
)
from stepfast.runs.run import (
    ACTIVE_RUN,
    Run,
    RunState,
    end_run,
    enqueue_job,
    enqueue_jobs,
    find_run,
    kind_of,
    lock_feed,
    lock_run,
    move_run,
    require_run_transition,
    reserved_job,
    watch_job,
)
from stepfast.runs.sweep_rows import is_held
from stepfast.runs.window import Window

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from stepfast.database.connection import Transaction
    from stepfast.database.statement import Statement
    from stepfast.jobs.state import NewJob
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.run import FeedJob


BEGIN_NEXT_EPOCH = sql(
    "UPDATE stepfast_run SET epoch = epoch + 1, updated_at = {now} WHERE id = :id AND epoch = :epoch"
)

RUN_JOBS: tuple[FeedJob, ...] = ("plan", "page", "consolidate", "sweep")
MISSING_PARTITION = (PartitionState.FAILED, PartitionState.CANCELLED)


@dataclass(frozen=True)
class Repaired:
    """The result of an action. A run that another one blocks is not touched: what it lacks becomes debts instead."""

    run: Run  # as it is now
    was: RunState
    partitions: tuple[Partition, ...] = ()  # read again, or stopped
    debts: int = 0  # ranges that a later run must read
    new_debts: int = 0  # how many of them this action opened
    blocked_by: str | None = None  # the id of a newer or active run


def retry(
    tx: Transaction,
    declared: Declaration,
    run_id: str,
    wanted: Sequence[str] = (),
    *,
    from_start: bool = False,
) -> Repaired:
    """Read again what failed or lost its job, from where it stopped. `wanted`: only these partitions, by number or name.

    With `from_start` at the beginning; then also partitions that could not be verified, and any open one that is named:
    the job that reads it is cancelled. A run whose planning failed is planned again.
    """
    replaced = _cancel_readers(tx, run_id, wanted, from_start=from_start)
    partitions, run = lock_run_with_partitions(tx, run_id)
    if run.state is RunState.FAILED and not was_planned(tx, run):
        return _plan_again(tx, declared, run, wanted, from_start=from_start)
    _refuse_retry(run, wanted)
    chosen = _chosen(run, partitions, wanted, readers_of(tx, partitions), from_start=from_start)
    if {place_of(partition) for partition in chosen if partition.is_open} != replaced:
        raise ContentionError(f"partitions of run {run_id} moved while we looked; try again")
    if run.ended_at is not None:
        if blocker := blocked_by(tx, run):
            return _blocked(tx, run, blocker, _missing(partitions))
        restart_partitions(tx, declared, run, chosen, from_start=from_start)
        return Repaired(reopen_run(tx, run, RunState.FETCHING), run.state, tuple(chosen))
    if run.state is RunState.STALLED:
        move_run(tx, run, RunState.FETCHING)
    restart_partitions(tx, declared, run, chosen, from_start=from_start)
    recount_run(tx, run)
    return Repaired(find_run(tx, run.id), run.state, tuple(chosen))


def consolidate(tx: Transaction, declared: Declaration, run_id: str, *, force: bool = False) -> Repaired:
    """Make target rows of what was read, once more. With `force` also if a part of it is missing.

    Then the run ends as published in part: the watermark stays, and what is missing is owed.
    """
    partitions, run = lock_run_with_partitions(tx, run_id)
    if run.state not in (RunState.FAILED, RunState.FAILED_QUALITY):
        raise StateError(f"run {run.id} is {run.state}: {advice(run)}")
    if not was_planned(tx, run):
        raise StateError(
            f"run {run.id} failed before it had partitions; plan it again with: stepfast runs retry {run.id}"
        )
    missing = _missing(partitions)
    if missing and not force:
        raise StateError(
            f"run {run.id} is failed: {len(missing)} of its {run.partitions} partitions are missing; read them with: "
            f"stepfast runs retry {run.id}, or publish what is there with: stepfast runs consolidate {run.id} --force"
        )
    if blocker := blocked_by(tx, run):
        return _blocked(tx, run, blocker, missing)
    owed, new = open_debts_for(tx, run, missing)
    forced = force and (bool(missing) or run.state is RunState.FAILED_QUALITY)
    now = reopen_run(tx, run, RunState.APPLYING, forced=forced or bool(run.forced))
    begin_consolidation(tx, declared, now)
    return Repaired(find_run(tx, run.id), run.state, tuple(missing), owed, new)


def cancel(tx: Transaction, run_id: str, reason: str) -> Repaired:
    """Stop a run: waiting jobs end, running ones are asked to stop, and what they still commit is stale. It can be resumed."""
    seen = find_run(tx, run_id)
    _refuse_ended(seen)
    jobs = live_jobs(tx, seen, *RUN_JOBS)
    cancel_jobs(tx, jobs, reason)
    partitions, run = lock_run_with_partitions(tx, run_id)
    _refuse_ended(run)
    if not set(jobs).issuperset(live_jobs(tx, run, *RUN_JOBS)):
        raise ContentionError(f"run {run_id} got jobs while we looked; try again")
    stopped = [partition for partition in partitions if partition.is_open]
    for partition in stopped:
        end_partition(tx, partition, PartitionState.CANCELLED, partition.last_error, restart=True)
    tx.run(BEGIN_NEXT_EPOCH, id=run.id, epoch=run.epoch)
    end_run(tx, find_run(tx, run_id), RunState.CANCELLED, reason)
    return Repaired(find_run(tx, run_id), run.state, tuple(stopped))


def resume(tx: Transaction, declared: Declaration, run_id: str) -> Repaired:
    """Let a run go on from where it was cancelled, or where it stalled or lost its jobs."""
    partitions, run = lock_run_with_partitions(tx, run_id)
    if is_held(run):
        raise StateError(f"run {run.id} is {run.state}: {advice(run)}")
    if run.state in ACTIVE_RUN:
        return _wake(tx, declared, run, partitions)
    if run.state is not RunState.CANCELLED:
        raise StateError(f"run {run.id} is {run.state}: {advice(run)}")
    stopped = [partition for partition in partitions if partition.state is PartitionState.CANCELLED]
    if blocker := blocked_by(tx, run):
        return _blocked(tx, run, blocker, _missing(partitions))
    forced = bool(run.forced)
    if not was_planned(tx, run):
        enqueue_run_job(tx, declared, now := reopen_run(tx, run, RunState.PLANNING), "plan")
    elif stopped or (run.failed and not forced):
        restart_partitions(tx, declared, run, stopped, from_start=False)
        now = reopen_run(tx, run, RunState.FETCHING)
        end_fetching(tx, declared, run.id)
    else:
        now = reopen_run(tx, run, RunState.APPLYING, forced=forced)
        begin_consolidation(tx, declared, now)
    return Repaired(find_run(tx, run.id), run.state, tuple(stopped))


def _refuse_retry(run: Run, wanted: Sequence[str]) -> None:
    """Refuse a run whose partitions cannot be read again as it stands."""
    if run.state not in (RunState.FAILED, RunState.CANCELLED) and run.phase is not RunState.FETCHING:
        raise StateError(f"run {run.id} is {run.state}: {advice(run)}")
    if run.state is RunState.CANCELLED and wanted:
        raise StateError(
            f"run {run.id} is cancelled: all of it goes on, or nothing; resume it with: stepfast runs resume {run.id}, "
            "then retry the partition"
        )


def _cancel_readers(
    tx: Transaction, run_id: str, wanted: Sequence[str], *, from_start: bool
) -> set[PartitionPlace]:
    """Cancel the jobs of open partitions that are to be read by another one; returns these partitions.

    In the order of locks, jobs come before partitions. So this looks without a lock, and the caller compares.
    """
    run, partitions = find_run(tx, run_id), partitions_of(tx, run_id)
    if run.state is RunState.FAILED or not any(partition.is_open for partition in partitions):
        return set()
    _refuse_retry(run, wanted)
    readers = readers_of(tx, partitions)
    chosen = [
        partition
        for partition in _chosen(run, partitions, wanted, readers, from_start=from_start)
        if partition.is_open
    ]
    jobs = [readers[partition.id].job_id for partition in chosen if partition.id in readers]
    cancel_jobs(tx, sorted(jobs), "Cancelled: an operator has another job read this partition")
    return {place_of(partition) for partition in chosen}


def place_of(partition: Partition) -> PartitionPlace:
    """Which partition it is, and which job reads it: a restart changes that."""
    return PartitionPlace(partition.id, partition.epoch, partition.job_id)


def _plan_again(
    tx: Transaction, declared: Declaration, run: Run, wanted: Sequence[str], *, from_start: bool
) -> Repaired:
    if wanted:
        raise StateError(
            f"run {run.id} failed before it had partitions; plan it again with: stepfast runs retry {run.id}"
        )
    if blocker := blocked_by(tx, run):
        return _blocked(tx, run, blocker, [])
    now = reopen_run(tx, run, RunState.PLANNING)
    if from_start:
        tx.run(FORGET_FRONTIER, id=now.id, epoch=now.epoch)
    enqueue_run_job(tx, declared, now, "plan")
    return Repaired(find_run(tx, run.id), run.state)


def _blocked(tx: Transaction, run: Run, blocker: str, missing: Sequence[Partition]) -> Repaired:
    """The run stays as it is: another one blocks it. What it lacks becomes debts."""
    owed, new = open_debts_for(tx, run, missing)
    return Repaired(run, run.state, (), owed, new, blocked_by=blocker)


def _wake(tx: Transaction, declared: Declaration, run: Run, partitions: Sequence[Partition]) -> Repaired:
    """A stalled run goes on; partitions and runs that have lost their job get another one.

    An active run that has all its jobs is refused: there is nothing to do.
    """
    at, stalled = run.phase, run.state is RunState.STALLED
    readers = readers_of(tx, partitions) if at is RunState.FETCHING else {}
    orphans = [partition for partition in partitions if partition.is_open and partition.id not in readers]
    if at is RunState.FETCHING:
        if not (stalled or orphans or not readers):
            raise StateError(f"run {run.id} is {run.state}: {_nothing_is_missing(run, partitions, readers)}")
        if stalled:
            move_run(tx, run, at)
        renew_jobs(tx, declared, run, orphans)
        mark_answered(tx, [partition.job_id for partition in orphans if partition.job_id is not None])
        end_fetching(tx, declared, run.id)
    elif has_its_jobs(tx, run):
        if not stalled:
            raise StateError(f"run {run.id} is {run.state}: {_nothing_is_missing(run, partitions, readers)}")
        move_run(tx, run, at)
    else:
        now = reopen_run(tx, run, at, forced=bool(run.forced))
        if at is RunState.APPLYING:
            begin_consolidation(tx, declared, now)
        else:
            enqueue_run_job(tx, declared, now, "plan" if at is RunState.PLANNING else "sweep")
    return Repaired(find_run(tx, run.id), run.state, tuple(orphans))


def _nothing_is_missing(run: Run, partitions: Sequence[Partition], readers: Mapping[str, PageReader]) -> str:
    """Why an active run is not resumed, and what moves it on."""
    silent = [
        partition for partition in partitions if partition.id in readers and readers[partition.id].silent
    ]
    if silent:
        return (
            f"no job of it is missing, but {readers[silent[0].id].sentence} ({silent[0].description}); the next worker "
            f"that looks takes it over, and so does: stepfast leases reset"
        )
    return (
        f"it has all its jobs, and workers run them; see what it waits for with: stepfast runs show {run.id}"
    )


def has_its_jobs(tx: Transaction, run: Run) -> bool:
    """Whether the jobs that plan, consolidate or sweep a run are unfinished, all of them."""
    live = set(live_jobs(tx, run, *WHOLE_RUN_JOBS))
    if run.phase is RunState.APPLYING and run.shards:
        current = f"{run.id}.{run.epoch}.{run.rounds}."
        return sum(job_id.startswith(current) for job_id in live) >= run.shards
    return run.job_id in live


def _missing(partitions: Sequence[Partition]) -> list[Partition]:
    return [partition for partition in partitions if partition.state in MISSING_PARTITION]


def _chosen(
    run: Run,
    partitions: Sequence[Partition],
    wanted: Sequence[str],
    readers: Mapping[str, PageReader],
    *,
    from_start: bool,
) -> list[Partition]:
    """The partitions to read again; each one that was named must be one that can be retried."""
    may = {*MISSING_PARTITION, PartitionState.DONE_UNVERIFIED} if from_start else {*MISSING_PARTITION}

    def may_be_retried(partition: Partition) -> bool:
        if not partition.is_open:
            return partition.state in may
        reader = readers.get(partition.id)
        return reader is None or reader.silent or (from_start and bool(wanted))

    if not wanted:
        if chosen := [partition for partition in partitions if may_be_retried(partition)]:
            return chosen
        cure = (
            "no partition of it failed, and none has lost its job"
            if run.ended_at is None
            else advice_for_failed_consolidation(run)
        )
        if run.state is RunState.CANCELLED:
            cure = f"no partition of it is missing; {advice(run)}"
        raise StateError(f"run {run.id} is {run.state}: {cure}")
    chosen = [partition_by_name(partitions, name) for name in dict.fromkeys(wanted)]
    for partition in chosen:
        if not may_be_retried(partition):
            reader = readers.get(partition.id)
            raise StateError(why_not_retried(partition, None if reader is None else reader.sentence))
    return sorted(
        {partition.id: partition for partition in chosen}.values(), key=lambda partition: partition.id
    )


def partition_by_name(partitions: Sequence[Partition], name: str) -> Partition:
    """The partition that is named by `5`, `partition-5`, its range or the id of its row."""
    number = name.removeprefix("partition-")
    for partition in partitions:
        if name in (partition.name, partition.id) or (
            number.isdecimal() and len(number) <= LONGEST_NUMBER and partition.number == int(number)
        ):
            return partition
    last = max((partition.number for partition in partitions), default=None)
    there = "it has none" if last is None else f"it has partition-0 to partition-{last}"
    raise ConfigurationError(
        f"the run has no partition {name!r}; {there}, see: stepfast partitions list --run RUN"
    )


def _refuse_ended(run: Run) -> None:
    if run.state not in ACTIVE_RUN:
        raise StateError(f"run {run.id} is {run.state}: it has ended, there is nothing to cancel")


# The jobs that read the open partitions of a run.

READERS_OF_RUN = sql("""
    SELECT p.id, j.id, j.state, j.ready_at, COALESCE(j.leased_by, w.worker_id),
           CASE WHEN j.state = 'leased' AND COALESCE(j.lease_until, w.alive_until, 0) < {now} THEN 1 ELSE 0 END
      FROM stepfast_partition p
      JOIN stepfast_job j ON j.id = p.job_id
      LEFT JOIN stepfast_worker w ON w.incarnation = j.owner
     WHERE p.run_id = :run_id AND p.state IN ('ready', 'running')
""")


class PartitionPlace(NamedTuple):
    """An open partition as a look saw it."""

    row_id: str
    epoch: int
    job_id: str | None


class PageReader(NamedTuple):
    """The unfinished job that reads an open partition."""

    job_id: str
    state: str
    ready_at: int
    worker_id: str | None  # that holds it
    silent: bool  # it has sent no heartbeat within its lease

    @property
    def sentence(self) -> str:
        """What the job does, or what it waits for."""
        match self.state:
            case "leased" if self.silent:
                return f"its job {self.job_id} is held by worker {self.worker_id}, which is silent"
            case "leased":
                return f"worker {self.worker_id} reads it (job {self.job_id})"
            case "scheduled":
                return (
                    f"its job {self.job_id} is tried again at {moment(self.ready_at):%Y-%m-%d %H:%M:%S} UTC"
                )
            case "held":
                return f"its job {self.job_id} waits for a limit; see: stepfast limits list"
            case _:
                return f"its job {self.job_id} waits for a worker"


def readers_of(tx: Transaction, partitions: Sequence[Partition]) -> dict[str, PageReader]:
    """The jobs of the open ones of these partitions of one run, by the ids of their rows. Those without a job are left out."""
    if not partitions:
        return {}
    return {
        str(row_id): PageReader(str(job_id), str(state), int(ready_at), worker_id, bool(int(silent)))
        for row_id, job_id, state, ready_at, worker_id, silent in tx.rows(
            READERS_OF_RUN, run_id=partitions[0].run_id
        )
    }


# Restarting partitions and runs.

LONGEST_NUMBER = 9  # digits of a partition's number
# Jobs that are not about one partition.
WHOLE_RUN_JOBS: tuple[FeedJob, ...] = ("plan", "consolidate", "sweep")

RESTART_PARTITION = sql("""
    UPDATE stepfast_partition
       SET state = 'ready', epoch = epoch + 1, job_id = :job_id, paging = :paging, ended_at = NULL, updated_at = {now}
     WHERE id = :id AND epoch = :epoch AND state = :source
""")
RESTART_PARTITION_ANEW = sql("""
    UPDATE stepfast_partition
       SET state = 'ready', epoch = epoch + 1, job_id = :job_id, paging = NULL, frontier = NULL, next_offset = 0,
           seq = 0, seen = 0, rejected = 0, counted = NULL, started_at = NULL, ended_at = NULL, updated_at = {now}
     WHERE id = :id AND epoch = :epoch AND state = :source
""")
FORGET_SEEN = sql("DELETE FROM stepfast_seen WHERE partition_id {any_of:ids}")
RENEW_PARTITION_JOB = sql("""
    UPDATE stepfast_partition SET epoch = epoch + 1, job_id = :job_id, updated_at = {now}
     WHERE id = :id AND epoch = :epoch AND state IN ('ready', 'running')
""")

REOPEN_RUN = sql("""
    UPDATE stepfast_run
       SET state = :target, stalled_in = NULL, active_feed = :active_feed, ended_at = NULL, reason = NULL,
           epoch = epoch + 1, shards = 0, forced = :forced, fetched_at = CASE WHEN :fetched = 1 THEN fetched_at END, updated_at = {now}
     WHERE id = :id AND state = :source AND epoch = :epoch
""")
RECOUNT_RUN = sql("""
    UPDATE stepfast_run
       SET completed = (SELECT count(*) FROM stepfast_partition p WHERE p.run_id = :id AND p.state IN ('done', 'done_unverified')),
           failed = (SELECT count(*) FROM stepfast_partition p WHERE p.run_id = :id AND p.state = 'failed'),
           unverified = (SELECT count(*) FROM stepfast_partition p WHERE p.run_id = :id AND p.state = 'done_unverified'),
           seen = (SELECT COALESCE(sum(p.seen), 0) FROM stepfast_partition p
                    WHERE p.run_id = :id AND p.state IN ('done', 'done_unverified', 'failed')),
           rejected = (SELECT COALESCE(sum(p.rejected), 0) FROM stepfast_partition p
                        WHERE p.run_id = :id AND p.state IN ('done', 'done_unverified', 'failed')),
           updated_at = {now}
     WHERE id = :id
""")
PLANNED_AT = sql("SELECT planned_at FROM stepfast_run WHERE id = :id")
FORGET_FRONTIER = sql("UPDATE stepfast_run SET frontier = NULL WHERE id = :id AND epoch = :epoch")

# A backfill runs beside the others, a remap asks the source for nothing: once they have ended they block no run.
FIND_BLOCKING_RUN = sql("""
    SELECT id, state FROM stepfast_run
     WHERE feed = :feed AND id <> :id
       AND (active_feed = :feed OR (kind NOT IN ('backfill', 'remap')
                                    AND (started_at > :started_at OR (started_at = :started_at AND id > :id))))
     ORDER BY started_at DESC, id DESC LIMIT 1
""")
LATER_WINDOWS = sql("""
    SELECT window_from, window_to FROM stepfast_run
     WHERE feed = :feed AND id <> :id AND started_at >= :started_at AND kind IN ('full', 'incremental')
       AND state = 'completed' AND scope = 'complete'
""")
FIND_OPEN_DEBTS = sql(
    "SELECT span, window_from, window_to FROM stepfast_debt WHERE feed = :feed AND state = 'open'"
)
# Opened by the reading that is repeated now; if that is no better, it opens it again.
CLOSE_DEBT_OF_PARTITION = sql("""
    UPDATE stepfast_debt SET state = 'closed', closed_by = :run_id, closed_at = {now}, reason = 'its run reads it again'
     WHERE feed = :feed AND run_id = :run_id AND span = :span AND window_to = :window_to AND state = 'open'
""")
# The jobs of a run: of its partitions, the one that it watches, and its shards, whose ids begin with its own. All by key:
# a queue may be long.
JOIN_JOBS = """
      JOIN (SELECT p.job_id AS id FROM stepfast_partition p WHERE p.run_id = :run_id
            UNION SELECT r.job_id FROM stepfast_run r WHERE r.id = :run_id
            UNION SELECT s.id FROM {table} s WHERE s.id > :first AND s.id < :beyond) its ON its.id = j.id
"""
LIVE_JOBS = sql("SELECT j.id, j.kind FROM stepfast_job j" + JOIN_JOBS.format(table="stepfast_job"))
DEAD_JOBS = sql(
    "SELECT j.id, j.kind FROM stepfast_archive j"
    + JOIN_JOBS.format(table="stepfast_archive")
    + "WHERE j.state = 'dead'"
)


def lock_run_with_partitions(tx: Transaction, run_id: str) -> tuple[list[Partition], Run]:
    """Lock a run with its partitions, in the order of locks: partitions first."""
    partitions = lock_partitions(tx, run_id)
    run = lock_run(tx, run_id)
    if len(partitions_of(tx, run_id)) != len(partitions):
        raise ContentionError(f"run {run_id} got partitions while we looked; try again")
    return partitions, run


def was_planned(tx: Transaction, run: Run) -> bool:
    return tx.first(PLANNED_AT, id=run.id) is not None


def live_jobs(tx: Transaction, run: Run, *parts: FeedJob) -> list[str]:
    """The unfinished jobs of a run of these kinds. Nothing is locked."""
    return _jobs(tx, LIVE_JOBS, run, parts)


def jobs_of(run: Run) -> dict[str, str]:
    """The parameters of statements about the jobs of a run."""
    return {"run_id": run.id, "first": f"{run.id}.", "beyond": f"{run.id}/"}


def _jobs(tx: Transaction, statement: Statement, run: Run, parts: Sequence[FeedJob]) -> list[str]:
    kinds = {kind_of(run.feed, part) for part in parts}
    return [str(row[0]) for row in tx.rows(statement, **jobs_of(run)) if row[1] in kinds]


def blocked_by(tx: Transaction, run: Run) -> str | None:
    """The run because of which this one cannot go on: a newer run of its feed, or one that is active."""
    lock_feed(tx, run.feed)
    if run.kind == "backfill":
        return None
    found = tx.rows(FIND_BLOCKING_RUN, feed=run.feed, id=run.id, started_at=run.started_at)
    return str(found[0][0]) if found else None


def restart_partitions(
    tx: Transaction, declared: Declaration, run: Run, chosen: Sequence[Partition], *, from_start: bool
) -> None:
    """Make partitions ready again, each with a job of its new epoch: where it stopped, or at its beginning. They are locked."""
    jobs = [
        reserved_job(declared, run, "page", row_id=partition.id, epoch=partition.epoch + 1)
        for partition in chosen
    ]
    enqueue_jobs(tx, jobs)
    for partition, job in zip(chosen, jobs, strict=True):
        require_partition_transition(partition.state, PartitionState.READY)
        place = {
            "id": partition.id,
            "epoch": partition.epoch,
            "source": partition.state.value,
            "job_id": job.id,
        }
        if from_start:
            matched = tx.run(RESTART_PARTITION_ANEW, **place)
        else:
            matched = tx.run(RESTART_PARTITION, **place, paging=_with_fresh_budget(partition.paging))
        if matched != 1:
            raise ContentionError(f"{partition.description} changed while we looked; try again")
        if partition.state is PartitionState.DONE_UNVERIFIED:
            tx.run(
                CLOSE_DEBT_OF_PARTITION,
                feed=run.feed,
                run_id=run.id,
                span=partition.span,
                window_to=partition.window_to,
            )
    if from_start and chosen:
        tx.run(FORGET_SEEN, ids=[partition.id for partition in chosen])
    mark_answered(tx, [partition.job_id for partition in chosen if partition.job_id is not None])
    _announce(tx, declared, run, zip(chosen, jobs, strict=True), from_start=from_start)


def renew_jobs(tx: Transaction, declared: Declaration, run: Run, orphans: Sequence[Partition]) -> None:
    """Enqueue new jobs for open partitions that have lost theirs."""
    jobs = [
        reserved_job(declared, run, "page", row_id=partition.id, epoch=partition.epoch + 1)
        for partition in orphans
    ]
    enqueue_jobs(tx, jobs)
    for partition, job in zip(orphans, jobs, strict=True):
        if tx.run(RENEW_PARTITION_JOB, id=partition.id, epoch=partition.epoch, job_id=job.id) != 1:
            raise ContentionError(f"{partition.description} changed while we looked; try again")
    _announce(tx, declared, run, zip(orphans, jobs, strict=True), from_start=False)


def reopen_run(tx: Transaction, run: Run, target: RunState, *, forced: bool = False) -> Run:
    """Move a run back to an active state, under a new epoch, and count its counters again.

    A run that is active, and has lost its jobs, stays in its state.
    """
    if run.state is not target:
        require_run_transition(run.state, target)
    matched = tx.run(
        REOPEN_RUN,
        id=run.id,
        source=run.state.value,
        epoch=run.epoch,
        target=target.value,
        active_feed=None if run.kind == "backfill" else run.feed,
        forced=int(forced),
        fetched=int(target in (RunState.APPLYING, RunState.SWEEPING)),
    )
    if matched != 1:
        raise StateError(
            f"run {run.id} is no longer {run.state}; look again with: stepfast runs show {run.id}"
        )
    recount_run(tx, run)
    mark_answered(tx, _jobs(tx, DEAD_JOBS, run, WHOLE_RUN_JOBS))
    return find_run(tx, run.id)


def recount_run(tx: Transaction, run: Run) -> None:
    """Count the run's counters again, from the states of its partitions. The caller holds its row."""
    tx.run(RECOUNT_RUN, id=run.id)


def enqueue_run_job(tx: Transaction, declared: Declaration, run: Run, part: FeedJob) -> None:
    """Enqueue the job that plans the run, or sweeps for it, in its epoch."""
    watch_job(tx, run, enqueue_job(tx, declared, run, part, run_id=run.id, epoch=run.epoch))


def open_debts_for(tx: Transaction, run: Run, missing: Sequence[Partition]) -> tuple[int, int]:
    """Open debts for ranges that this run will not read any more, unless a later run has read them.

    Returns how many ranges are owed, and how many of these debts are new. Trials and checks owe nothing.
    """
    if run.kind == "verify" or run.most_rows is not None:
        return 0, 0
    later = [
        Window.of(begins, int(ends))
        for begins, ends in tx.rows(LATER_WINDOWS, feed=run.feed, id=run.id, started_at=run.started_at)
    ]
    known = {(str(span), begins, int(ends)) for span, begins, ends in tx.rows(FIND_OPEN_DEBTS, feed=run.feed)}
    owed = [
        partition for partition in missing if not any(covers(window, partition.window) for window in later)
    ]
    new = [
        partition
        for partition in owed
        if (partition.span, partition.window_from, partition.window_to) not in known
    ]
    for partition in new:
        open_debt(tx, run, partition)
    return len(owed), len(new)


def _announce(
    tx: Transaction,
    declared: Declaration,
    run: Run,
    restarted: Iterable[tuple[Partition, NewJob]],
    *,
    from_start: bool,
) -> None:
    """Stage messages about their next pages. Each is in a new epoch, so that no broker takes it for one it has seen."""
    if declared.broker is not None:
        announce_pages(
            tx,
            declared,
            run,
            [next_page(partition, job.id, from_start=from_start) for partition, job in restarted],
        )


def _with_fresh_budget(paging: str | None) -> str | None:
    """The stored state of the pages, with a fresh budget of requests."""
    if paging is None:
        return None
    return msgspec.json.encode(with_fresh_budget(msgspec.json.decode(paging, type=PageState))).decode()
