"""Checks of our own tables: is work being done, and do messages leave the database?

`read_facts` reads what the tables say about jobs, `judge_work` turns it into findings and is pure. `check_outbox` looks at
messages and alerts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stepfast.admin.doctor.finding import Finding, fail, listed, ok, warn
from stepfast.admin.masks import unreadable_rules
from stepfast.admin.workers import QueueReport, WorkerReport, count_leases, list_queues, list_workers
from stepfast.clock import counted, spoken
from stepfast.database.statement import sql
from stepfast.jobs.dead_letters import FailureGroup, failure_groups
from stepfast.jobs.dependencies import find_stranded
from stepfast.outbox.destinations import WAITS_FOR_HOST

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction


SHORT_LEASE: Final = 5.0  # seconds
LONG_LEASE: Final = 300.0
LONG_WAIT: Final = 600.0
PROMOTION: Final = 30.0  # workers promote within half a second
SUSPECT_WAIT: Final = 60.0
FORGOTTEN: Final = (
    60 * 1_000_000
)  # microseconds; a worker gives leases that it does not know back within seconds

START: Final = "start one: stepfast worker module:app"
STRANDED: Final = "stranded jobs"


# Jobs

OVERDUE_JOBS = sql("""
    SELECT count(*), COALESCE(max({now} - ready_at), 0) FROM stepfast_job WHERE state = 'scheduled' AND ready_at <= {now}
""")

LONGEST_SUSPECT = sql("SELECT COALESCE(max({now} - ready_at), 0) FROM stepfast_job WHERE state = 'suspect'")

# A worker that has no handler for a kind writes this error, and puts the job back without a charge.
JOBS_OF_UNKNOWN_KINDS = sql("""
    SELECT kind, count(*) FROM stepfast_job
     WHERE state IN ('ready', 'scheduled') AND error_group LIKE 'UnknownKindError%' GROUP BY kind ORDER BY kind
""")

# Jobs that living workers hold, though their rows show that they run nothing.
FORGOTTEN_LEASES = sql("""
    SELECT w.worker_id, count(*) FROM stepfast_job j JOIN stepfast_worker w ON w.incarnation = j.owner
     WHERE j.state = 'leased' AND j.leased_at < {now} - :age AND w.state = 'alive' AND w.alive_until > {now} AND w.active = 0
     GROUP BY w.worker_id ORDER BY w.worker_id
""")

# Jobs that wait for a dead or cancelled job, and one such job.
WAITING_FOR_DEAD_JOBS = sql("""
    SELECT count(DISTINCT d.child_id), min(d.parent_id)
      FROM stepfast_archive a JOIN stepfast_dependency d ON d.parent_id = a.id
     WHERE a.state IN ('dead', 'cancelled') AND d.state = 'open'
""")

BROKER_DEAD_LETTERS = sql("SELECT count(*) FROM stepfast_dead_message")

# Dead letters of failed runs, after which a later run of the feed has completed: what they lacked was read again.
OVERTAKEN_DEAD_LETTERS = sql("""
    SELECT count(*)
      FROM stepfast_run r
      JOIN stepfast_partition p ON p.run_id = r.id AND p.state = 'failed'
      JOIN stepfast_archive a ON a.id = p.job_id AND a.state = 'dead'
     WHERE r.state = 'failed'
       AND EXISTS (SELECT 1 FROM stepfast_run n
                    WHERE n.feed = r.feed AND n.state = 'completed' AND n.started_at > r.started_at)
""")


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What our own tables say, read once for all checks."""

    workers: Sequence[WorkerReport] = ()
    queues: Sequence[QueueReport] = ()
    leases: int = 0
    expired_leases: int = 0
    forgotten_leases: Sequence[
        tuple[str, int]
    ] = ()  # by worker: jobs that it holds, though it shows none running
    overdue: int = 0  # scheduled jobs whose time has come
    overdue_seconds: float = 0.0
    suspect_seconds: float = 0.0  # how long the longest suspect has been waiting
    unknown_kinds: Sequence[tuple[str, int]] = ()
    dead: Sequence[FailureGroup] = ()
    overtaken: int = 0  # dead letters of runs that a later run has overtaken
    broker_letters: int = 0  # dead letters that were taken over from brokers
    wait_for_dead: int = 0  # jobs that wait for one that died or was cancelled
    dead_parent: str | None = None  # one such job
    stranded: Sequence[str] = ()  # jobs that have ended, while others wait for them

    @property
    def running(self) -> list[WorkerReport]:
        return [worker for worker in self.workers if worker.running]

    @property
    def open_queues(self) -> list[QueueReport]:
        return [queue for queue in self.queues if queue.paused_at is None]

    @property
    def waiting(self) -> int:
        """Jobs that workers should take now."""
        return sum(queue.ready + queue.suspect + queue.held for queue in self.open_queues) + self.overdue


def read_facts(tx: Transaction) -> Facts:
    """The facts now."""
    leases, expired = count_leases(tx)
    overdue, overdue_age = tx.rows(OVERDUE_JOBS)[0]
    wait_for_dead, dead_parent = tx.rows(WAITING_FOR_DEAD_JOBS)[0]
    return Facts(
        workers=list_workers(tx),
        queues=list_queues(tx),
        leases=leases,
        expired_leases=expired,
        forgotten_leases=[
            (str(name), int(count)) for name, count in tx.rows(FORGOTTEN_LEASES, age=FORGOTTEN)
        ],
        overdue=int(overdue),
        overdue_seconds=int(overdue_age) / 1e6,
        suspect_seconds=int(tx.first(LONGEST_SUSPECT)) / 1e6,
        unknown_kinds=[(str(kind), int(count)) for kind, count in tx.rows(JOBS_OF_UNKNOWN_KINDS)],
        dead=failure_groups(tx, limit=1_000),
        overtaken=int(tx.first(OVERTAKEN_DEAD_LETTERS)),
        broker_letters=int(tx.first(BROKER_DEAD_LETTERS)),
        wait_for_dead=int(wait_for_dead),
        dead_parent=dead_parent,
        stranded=find_stranded(tx),
    )


def judge_work(facts: Facts) -> list[Finding]:
    """All findings about jobs, in the order in which an operator would ask. Pure."""
    return [
        finding
        for check in (
            _workers,
            _silent,
            _same_id,
            _leases,
            _slots,
            _queues,
            _kinds,
            _expired,
            _forgotten,
            _suspects,
            _scheduled,
            _dead,
            _dependants,
            _stranded,
        )
        for finding in check(facts)
    ]


def _workers(facts: Facts) -> list[Finding]:
    running = facts.running
    if running:
        busy, slots = (
            sum(worker.active_jobs for worker in running),
            sum(worker.concurrency for worker in running),
        )
        return [ok("workers", f"{counted(len(running), 'worker')} running, {busy} of {slots} slots busy")]
    if facts.waiting:
        return [fail("workers", f"no worker is running, and {counted(facts.waiting, 'job')} wait", START)]
    return [ok("workers", "no worker is running, and no job waits")]


def _silent(facts: Facts) -> list[Finding]:
    silent = [worker.worker_id for worker in facts.workers if not worker.running]
    if not silent:
        return []
    cure = (
        "nothing to do: the running ones take its jobs over"
        if facts.running
        else "stepfast leases reset, and " + START
    )
    return [warn("silent workers", f"no heartbeat within the lease from {listed(silent)}", cure)]


def _same_id(facts: Facts) -> list[Finding]:
    twice = [
        name for name, count in Counter(worker.worker_id for worker in facts.running).items() if count > 1
    ]
    if not twice:
        return []
    return [
        warn(
            "worker ids",
            f"more than one running worker calls itself {listed(twice)}",
            "leave --worker-id out, or make it unique per process, so that locked_by tells who it was",
        )
    ]


def _leases(facts: Facts) -> list[Finding]:
    short = [worker for worker in facts.running if worker.lease_seconds < SHORT_LEASE]
    long = [worker for worker in facts.running if worker.lease_seconds > LONG_LEASE]
    found = []
    if short:
        found.append(
            warn(
                "lease",
                f"a lease of {_span(min(worker.lease_seconds for worker in short))} ({listed(worker.worker_id for worker in short)}): a short pause looks like a crash",
                f"use --lease {SHORT_LEASE:.0f}s or more",
            )
        )
    if long:
        worst = max(worker.lease_seconds for worker in long)
        found.append(
            warn(
                "lease",
                f"a lease of {_span(worst)} ({listed(worker.worker_id for worker in long)}): jobs of a killed worker wait that long",
                "the lease need not cover a job's duration, since the process renews it; use --lease 10s",
            )
        )
    return found


def _slots(facts: Facts) -> list[Finding]:
    running = facts.running
    if not running or not facts.waiting or any(worker.active_jobs < worker.concurrency for worker in running):
        return []
    return [
        warn(
            "slots",
            f"all {sum(worker.concurrency for worker in running)} slots are busy, and {counted(facts.waiting, 'job')} wait",
            "start more workers or raise --concurrency; stepfast leases list shows what runs",
        )
    ]


def _queues(facts: Facts) -> list[Finding]:
    found = []
    paused = [
        queue
        for queue in facts.queues
        if queue.paused_at is not None and queue.ready + queue.suspect + queue.scheduled
    ]
    if paused:
        waiting = sum(queue.ready + queue.suspect + queue.scheduled for queue in paused)
        found.append(
            warn(
                "paused queues",
                f"{counted(waiting, 'job')} wait in paused queues: {listed(queue.queue for queue in paused)}",
                f"stepfast queues resume {paused[0].queue}",
            )
        )
    served = {name for worker in facts.running for name in worker.queues}
    unserved = [
        queue.queue
        for queue in facts.open_queues
        if queue.ready + queue.suspect and facts.running and not served & {"*", queue.queue}
    ]
    if unserved:
        found.append(
            fail(
                "unserved queues",
                f"jobs are ready in queues that no running worker serves: {listed(unserved)}",
                f"start a worker with --queues {','.join(unserved[:5])}",
            )
        )
    slow = [
        queue
        for queue in facts.open_queues
        if (queue.oldest_ready_seconds or 0) > LONG_WAIT and queue.queue not in unserved
    ]
    if slow and facts.running:
        worst = max(slow, key=lambda queue: queue.oldest_ready_seconds or 0)
        found.append(
            warn(
                "backlog",
                f"the next job of queue {worst.queue} has been waiting for {_span(worst.oldest_ready_seconds or 0)}; {worst.ready:,} are ready",
                "start more workers, or give urgent jobs a higher priority",
            )
        )
    return found or [
        ok(
            "queues",
            f"{counted(len(facts.queues), 'queue')}, {counted(facts.waiting, 'job')} ready to be taken",
        )
    ]


def _kinds(facts: Facts) -> list[Finding]:
    if not facts.unknown_kinds:
        return []
    names = listed(f"{kind} ({counted(count, 'job')})" for kind, count in facts.unknown_kinds)
    return [
        fail(
            "unknown kinds",
            f"no worker that met them has a handler for {names}",
            "deploy the code that defines them, or cancel these jobs; they lose no attempt meanwhile",
        )
    ]


def _expired(facts: Facts) -> list[Finding]:
    if not facts.expired_leases:
        return [ok("leases", f"{counted(facts.leases, 'lease')} in force, none expired")]
    found = f"{counted(facts.expired_leases, 'lease')} expired"
    if facts.running:
        return [
            warn("leases", found, "running workers reset them within seconds; at once: stepfast leases reset")
        ]
    return [fail("leases", f"{found}, and no worker is there to reset them", "stepfast leases reset")]


def _forgotten(facts: Facts) -> list[Finding]:
    if not facts.forgotten_leases:
        return []
    jobs = sum(count for _, count in facts.forgotten_leases)
    return [
        fail(
            "forgotten leases",
            f"{counted(jobs, 'job')} leased for more than a minute by workers that show none running: "
            f"{listed(name for name, _ in facts.forgotten_leases)}",
            "look at the logs of these workers: can they write to the database? A worker that is restarted gives its jobs back",
        )
    ]


def _suspects(facts: Facts) -> list[Finding]:
    if facts.suspect_seconds <= SUSPECT_WAIT:
        return []
    return [
        warn(
            "suspects",
            f"a job that was running when its worker died has been waiting for {_span(facts.suspect_seconds)} to be run again",
            "start a worker, or give one room: such jobs run apart from others, in a process of their own",
        )
    ]


def _scheduled(facts: Facts) -> list[Finding]:
    if facts.overdue_seconds <= PROMOTION:
        return []
    return [
        fail(
            "scheduled jobs",
            f"{counted(facts.overdue, 'scheduled job')} should have become ready up to {_span(facts.overdue_seconds)} ago",
            "running workers do that: look at their logs" if facts.running else START,
        )
    ]


def _dead(facts: Facts) -> list[Finding]:
    """As many as `stepfast dead-letters list` shows, those of brokers too."""
    jobs, messages = sum(group.count for group in facts.dead), facts.broker_letters
    if not jobs + messages:
        return [ok("dead letters", "none")]
    text = counted(jobs + messages, "dead letter")
    if jobs + messages == facts.overtaken:
        return [ok("dead letters", f"{text}, all of runs that a later run has overtaken")]
    if facts.overtaken:
        text += f", {facts.overtaken:,} of them of runs that a later run has overtaken"
    if messages:
        text += f", {messages:,} of them from brokers"
    if not jobs:
        return [warn("dead letters", text, "stepfast dead-letters list, then retry or purge them")]
    worst = facts.dead[0]
    return [
        warn(
            "dead letters",
            f"{text}; most often ({worst.count:,}) {worst.kind}: {worst.error_group}",
            "stepfast dead-letters list --by-error, then retry or purge them",
        )
    ]


def _dependants(facts: Facts) -> list[Finding]:
    if not facts.wait_for_dead:
        return []
    return [
        warn(
            "dependants",
            f"{counted(facts.wait_for_dead, 'job')} wait for one that died or was cancelled, such as {facts.dead_parent}",
            f"stepfast jobs retry {facts.dead_parent}, or stepfast jobs cancel {facts.dead_parent} --tree",
        )
    ]


def _stranded(facts: Facts) -> list[Finding]:
    """Jobs are stranded only by rows that were deleted or moved by hand: the end of a job releases its dependants."""
    if not facts.stranded:
        return []
    ended = f"{counted(len(facts.stranded), 'job')} ended: {listed(facts.stranded)}"
    return [
        fail(
            STRANDED,
            f"jobs wait for ever, though what they come after has ended ({ended})",
            "stepfast doctor --repair",
        )
    ]


def _span(seconds: float) -> str:
    return spoken(timedelta(seconds=seconds))


# Masking rules


def check_masks(tx: Transaction) -> list[Finding]:
    """Masking rules that cannot be used. No finding if there are none."""
    found = unreadable_rules(tx)
    if not found:
        return []
    text = (
        f"{counted(len(found), 'masking rule')} cannot be used, and hide nothing: {listed(map(repr, found))}"
    )
    return [
        warn(
            "masks",
            text,
            "delete these rows of stepfast_mask; workers store the rules of their code themselves",
        )
    ]


# Messages and alerts

OVERDUE: Final = 60 * 1_000_000  # microseconds; a relay looks every second

COUNT_DEAD_MESSAGES = sql(
    "SELECT count(*) FROM stepfast_outbox WHERE state = 'dead' AND ended_at IS NOT NULL"
)
STUCK_DESTINATIONS = sql("""
    SELECT count(DISTINCT o.destination) FROM stepfast_outbox o
     WHERE o.state = 'waiting' AND o.due_at < {now} - :overdue
       AND NOT EXISTS (SELECT 1 FROM stepfast_outbox h
                        WHERE h.state = 'waiting' AND h.destination = o.destination AND h.seq < o.seq)
       AND NOT EXISTS (SELECT 1 FROM stepfast_destination d WHERE d.id = o.destination AND d.leased_until > {now})
""")
MESSAGES_WITHOUT_SETTINGS = sql("""
    SELECT count(*), max(last_error) FROM stepfast_outbox
     WHERE state = 'waiting' AND attempts = 0 AND last_error IS NOT NULL AND last_error NOT LIKE :waits_for_host
""")
COUNT_UNTOLD_ALERTS = sql("SELECT count(*) FROM stepfast_alert WHERE notify_at < {now} - :overdue")


def check_outbox(tx: Transaction) -> list[Finding]:
    """Messages that no worker sends, messages that were given up, and alerts that have no address. No finding if all is well."""
    found: list[Finding] = []
    if stuck := int(tx.first(STUCK_DESTINATIONS, overdue=OVERDUE)):
        text = f"{counted(stuck, 'destination')} should have been served by now, and nobody does"
        found.append(warn("outbox", text, "start a worker; is STEPFAST_OUTBOX_RELAY off for all of them?"))
    waiting, why = tx.rows(MESSAGES_WITHOUT_SETTINGS, waits_for_host=f"{WAITS_FOR_HOST}%")[0]
    if waiting:
        text = f"{counted(int(waiting), 'message')} cannot be sent by the workers as they are set up: {why}"
        found.append(
            warn("outbox", text, "set up a worker so that it can; the messages wait, and lose no try")
        )
    if dead := int(tx.first(COUNT_DEAD_MESSAGES)):
        cure = "stepfast outbox list --state dead; then stepfast outbox retry, or purge"
        found.append(warn("dead messages", f"{counted(dead, 'message')} given up", cure))
    if untold := int(tx.first(COUNT_UNTOLD_ALERTS, overdue=OVERDUE)):
        text = f"{counted(untold, 'alert')} that nobody was told"
        found.append(
            warn("alerts", text, "set STEPFAST_ALERT_URLS for a worker; read them: stepfast alerts list")
        )
    return found
