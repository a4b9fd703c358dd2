"""The process that speaks to the database for a guardian: it renews the row of a worker, or declares the worker dead.

A guardian starts it when there is something to say, and ends it when there has been nothing more for a while. It hears a
line of JSON for each thing to do, and answers with a line when that is done.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from stepfast.clock import micros
from stepfast.database.database import persist
from stepfast.database.drivers import open_database
from stepfast.database.statement import sql
from stepfast.errors import StepfastError
from stepfast.jobs.rescue import DeathReport, bury, rescue
from stepfast.telemetry import happened
from stepfast.telemetry.logs import configure
from stepfast.worker.guardian import FAILED

if TYPE_CHECKING:
    from stepfast.database.database import Database

PATIENCE: Final = (
    60.0  # seconds for which a death is reported again where the database is away; then its lease runs out
)
DONE: Final = b"{}"
AGAIN: Final = 0.5  # seconds between two tries

# The worker's own heartbeat (`beat_at`) is left as it is: an operator sees since when it has been silent.
VOUCH = sql("""
    UPDATE stepfast_worker SET alive_until = {now} + :lease WHERE incarnation = :incarnation AND state = 'alive'
""")
KIND_OF_JOB = sql("SELECT kind FROM stepfast_job WHERE id = :id")


def serve(first: dict[str, Any]) -> None:
    """Do what each line says, until there are no more."""
    if first["log"] is not None:
        configure(first["log"]["format"], first["log"]["level"])
    deputy = Deputy(open_database(first["url"]), first["crash_limit"], first["kinds"])
    for line in sys.stdin:
        answer = DONE
        try:
            deputy.do(json.loads(line))
        except Exception as error:  # noqa: BLE001 - the guardian goes on: leases decide
            happened("guardian.failed", error=error)
            answer = FAILED
        try:
            os.write(1, answer + b"\n")
        except OSError:  # our guardian is gone, and so are we
            break
    logging.shutdown()


class Deputy:
    """Writes what a guardian has to say."""

    def __init__(self, database: Database, crash_limit: int, kinds: dict[str, Any]) -> None:
        self._database = database
        self._crash_limit = crash_limit
        self._kinds = kinds  # of each kind with a timeout: its seconds, and its retry policy

    def do(self, asked: dict[str, Any]) -> None:
        match asked["do"]:
            case "renew":
                self._renew(asked["incarnation"], timedelta(seconds=asked["lease"]))
            case "bury":
                self._bury(asked)
            case _:
                facts = asked["facts"]
                happened(
                    "worker.ended",
                    number=facts["number"],
                    code=facts["code"],
                    restart_in_s=facts["restart_in_s"],
                )

    def _renew(self, incarnation: int, lease: timedelta) -> None:
        parameters = {"incarnation": incarnation, "lease": micros(lease)}
        if persist(self._database, lambda tx: tx.run(VOUCH, **parameters), urgent=True, tries=3):
            happened("guardian.vouched", incarnation=incarnation)

    def _bury(self, asked: dict[str, Any]) -> None:
        """Report the death again and again: until it is written, nobody else knows which steps had started."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                self._bury_once(asked)
                break
            except StepfastError as error:
                if time.monotonic() >= until:
                    raise
                happened("guardian.failed", error=error)
                time.sleep(AGAIN)
        if asked["guilty"] is not None:
            happened("worker.killed", dead_worker_id=asked["worker_id"], job_id=asked["guilty"])

    def _bury_once(self, asked: dict[str, Any]) -> None:
        incarnation, worker_id, guilty = asked["incarnation"], asked["worker_id"], asked["guilty"]
        report = None if asked["started"] is None else self._report(asked["started"], guilty)
        persist(self._database, lambda tx: bury(tx, incarnation, worker_id, report), urgent=True)
        while persist(self._database, lambda tx: rescue(tx, self._crash_limit), urgent=True).jobs:
            pass

    def _report(self, started: list[str], guilty: str | None) -> DeathReport:
        if guilty is None:
            return DeathReport(frozenset(started))
        kind = persist(self._database, lambda tx: tx.first(KIND_OF_JOB, id=guilty))
        known = self._kinds.get(str(kind), {})
        return DeathReport(frozenset(started), guilty, known.get("timeout", 0.0), known.get("retry"))
