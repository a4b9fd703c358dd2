"""Every case of the crash tests, by name."""

from __future__ import annotations

from tests.crash.cases import (
    admin,
    dependencies,
    events,
    jobs,
    limits,
    outbox,
    recovery,
    runs,
    schedules,
    sweeps_and_replays,
)

CASES = (
    jobs.CASES
    | recovery.CASES
    | limits.CASES
    | events.CASES
    | admin.CASES
    | schedules.CASES
    | outbox.CASES
    | dependencies.CASES
)
# PostgreSQL and MariaDB run a daily sample of these: their statements and guards are covered by contract tests.
SAMPLED = dependencies.CASES | events.CASES

RUN_CASES = runs.CASES | sweeps_and_replays.CASES
