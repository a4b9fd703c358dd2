"""Progress and log lines, written under the fence while the step runs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stepfast.database.statement import sql
from stepfast.steps.step import LONGEST_NOTE
from stepfast.telemetry.masking import storable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction
    from stepfast.steps.step import Report

PROGRESS = sql("""
    UPDATE stepfast_job
       SET progress = COALESCE(:percent, progress), progress_note = COALESCE(:note, progress_note), updated_at = {now}
     WHERE id = :id AND fence = :fence
""")

LOG = sql("""
    INSERT INTO stepfast_log (job_id, at, level, step, message)
    SELECT id, {now}, :level, step, :message FROM stepfast_job
     WHERE id = :id AND fence = :fence
""")


def write_reports(tx: Transaction, reports: Sequence[Report]) -> set[tuple[str, int]]:
    """Write what still may be written; returns the jobs and fences that have moved on."""
    lost: set[tuple[str, int]] = set()
    latest: dict[tuple[str, int], Report] = {}
    for report in reports:
        whose = report.lease.job_id, report.lease.fence
        mine = {"id": report.lease.job_id, "fence": report.lease.fence}
        if report.message is not None:
            said = {"level": storable(report.level or "info"), "message": storable(report.message)}
            if tx.run(LOG, **mine, **said) != 1:
                lost.add(whose)
        else:
            latest[whose] = _newest(latest.get(whose), report)
    for whose, report in latest.items():
        mine = {"id": whose[0], "fence": whose[1]}
        note = None if report.note is None else storable(report.note)[:LONGEST_NOTE]
        if tx.run(PROGRESS, **mine, percent=report.percent, note=note) != 1:
            lost.add(whose)
    return lost


def _newest(before: Report | None, report: Report) -> Report:
    """Only the newest progress is worth a write; a note holds until there is another."""
    if before is None or report.note is not None:
        return report
    return replace(report, note=before.note)
