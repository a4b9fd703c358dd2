"""Is work being done? Pure judgements over what the tables say."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from stepfast.admin.doctor.finding import Finding, fail, listed, ok, warn
from stepfast.clock import counted, spoken

if TYPE_CHECKING:
    from stepfast.admin.doctor.examination import Facts


SHORT_LEASE: Final = 5.0  # seconds
LONG_LEASE: Final = 300.0
LONG_WAIT: Final = 600.0
PROMOTION: Final = 30.0  # workers promote within half a second
SUSPECT_WAIT: Final = 60.0

START: Final = "start one: stepfast worker module:app"
STRANDED: Final = "stranded jobs"


def judge(facts: Facts) -> list[Finding]:
    """All judgements, in the order in which one would ask."""
    return [
        finding
        for judgement in (
            _workers,
            _silent,
            _same_id,
            _leases,
            _slots,
            _queues,
            _kinds,
            _expired,
            _suspects,
            _scheduled,
            _dead,
            _dependants,
            _stranded,
        )
        for finding in judgement(facts)
    ]


def _workers(facts: Facts) -> list[Finding]:
    running = facts.running
    if running:
        busy, slots = sum(it.active_jobs for it in running), sum(it.concurrency for it in running)
        return [ok("workers", f"{counted(len(running), 'worker')} running, {busy} of {slots} slots busy")]
    if facts.waiting:
        return [fail("workers", f"no worker is running, and {counted(facts.waiting, 'job')} wait", START)]
    return [ok("workers", "no worker is running, and no job waits")]


def _silent(facts: Facts) -> list[Finding]:
    silent = [it.worker_id for it in facts.workers if not it.running]
    if not silent:
        return []
    cure = (
        "nothing to do: the running ones take its jobs over"
        if facts.running
        else "stepfast leases reset, and " + START
    )
    return [warn("silent workers", f"no heartbeat within the lease from {listed(silent)}", cure)]


def _same_id(facts: Facts) -> list[Finding]:
    twice = [name for name, count in Counter(it.worker_id for it in facts.running).items() if count > 1]
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
    short = [it for it in facts.running if it.lease_seconds < SHORT_LEASE]
    long = [it for it in facts.running if it.lease_seconds > LONG_LEASE]
    found = []
    if short:
        found.append(
            warn(
                "lease",
                f"a lease of {_span(min(it.lease_seconds for it in short))} ({listed(it.worker_id for it in short)}): a short pause looks like a crash",
                f"use --lease {SHORT_LEASE:.0f}s or more",
            )
        )
    if long:
        worst = max(it.lease_seconds for it in long)
        found.append(
            warn(
                "lease",
                f"a lease of {_span(worst)} ({listed(it.worker_id for it in long)}): jobs of a killed worker wait that long",
                "the lease need not cover a job's duration, since the process renews it; use --lease 10s",
            )
        )
    return found


def _slots(facts: Facts) -> list[Finding]:
    running = facts.running
    if not running or not facts.waiting or any(it.active_jobs < it.concurrency for it in running):
        return []
    return [
        warn(
            "slots",
            f"all {sum(it.concurrency for it in running)} slots are busy, and {counted(facts.waiting, 'job')} wait",
            "start more workers or raise --concurrency; stepfast leases list shows what runs",
        )
    ]


def _queues(facts: Facts) -> list[Finding]:
    found = []
    paused = [it for it in facts.queues if it.paused_at is not None and it.ready + it.suspect + it.scheduled]
    if paused:
        waiting = sum(it.ready + it.suspect + it.scheduled for it in paused)
        found.append(
            warn(
                "paused queues",
                f"{counted(waiting, 'job')} wait in paused queues: {listed(it.queue for it in paused)}",
                f"stepfast queues resume {paused[0].queue}",
            )
        )
    served = {name for worker in facts.running for name in worker.queues}
    unserved = [
        it.queue
        for it in facts.open_queues
        if it.ready + it.suspect and facts.running and not served & {"*", it.queue}
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
        it
        for it in facts.open_queues
        if (it.oldest_ready_seconds or 0) > LONG_WAIT and it.queue not in unserved
    ]
    if slow and facts.running:
        worst = max(slow, key=lambda it: it.oldest_ready_seconds or 0)
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


def _suspects(facts: Facts) -> list[Finding]:
    if facts.suspect_seconds <= SUSPECT_WAIT:
        return []
    return [
        warn(
            "suspects",
            f"a job that was on board of a dead worker has been waiting for {_span(facts.suspect_seconds)} to be run alone",
            "give a worker room: suspects run one at a time, and not beside others",
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
    if not facts.dead:
        return [ok("dead letters", "none")]
    total, worst = sum(it.count for it in facts.dead), facts.dead[0]
    return [
        warn(
            "dead letters",
            f"{counted(total, 'dead letter')}; most often ({worst.count:,}) {worst.kind}: {worst.error_group}",
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
    """Only rows that were deleted or moved by hand leave any: the end of a job decides about its dependants."""
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
