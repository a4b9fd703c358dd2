"""Wherever a rotation of encryption keys is killed, every document can be decrypted, and the next rotation completes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from stepfast import Job, Step, Stepfast, Wait
from stepfast.admin import encryption as keys
from stepfast.encryption import Keyring, key_id
from stepfast.testing import drain
from tests.crash.daily_sample import SEED
from tests.crash.kill_points import die_at, kill_points, recorded
from tests.crash.table_dump import TABLES
from tests.support import rows

if TYPE_CHECKING:
    from tests.crash.daily_sample import Sample

OLD, NEW = "the old key that nobody can guess: 40+", "the new key that nobody can guess: 40+"
CARD = "4111-1111-1111-1111"


def charge(step: Step, card: str) -> Wait | str:
    return Wait("3ds", timeout="1h", cursor={"card": card}) if step.number == 0 else card


def pay(card: str) -> str:
    return card


@dataclass
class RotatedKeys:
    """A database on which keys are rotated again and again."""

    app: Stepfast
    jobs: list[Job[..., Any]]

    def set(self, patch: pytest.MonkeyPatch) -> None:
        """A payload, a cursor, a result and an event under the old key; from now on there is a new one."""
        with self.app.transaction() as tx:
            for table in TABLES:
                tx.execute(f"DELETE FROM stepfast_{table}")
        patch.setenv("STEPFAST_SECRET_KEY", OLD)
        for job in self.jobs:
            job.enqueue(card=CARD)
        drain(self.app)
        self.app.events.send("later", CARD, encrypted=True)
        patch.setenv("STEPFAST_SECRET_KEY", f"{NEW},{OLD}")
        if self.app.database.dialect.name == "sqlite":
            self.app.database.close()  # its locks belong to the process


@pytest.fixture
def rotated(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RotatedKeys]:
    monkeypatch.setenv("STEPFAST_SECRET_KEY", OLD)
    monkeypatch.setattr(keys, "BATCH", 1)
    with closing(Stepfast(database_url)) as app:
        encrypted = app.job(encrypted=True)
        yield RotatedKeys(app, [encrypted(charge), encrypted(pay)])


def opened(app: Stepfast, *secrets: str) -> list[str]:
    """Every document that is stored, read with these keys alone."""
    ring = Keyring(secrets)
    found: list[str] = []
    for row in rows.query(app, "SELECT id, kind, payload, cursor_json FROM stepfast_job"):
        waiting = row["cursor_json"].partition('"cursor":')[2].removesuffix("}")
        found += [
            ring.open(row["payload"], f"payload of {row['kind']}", row["id"]),
            ring.open(waiting, f"cursor of {row['kind']}", row["id"]),
        ]
    for row in rows.query(app, "SELECT id, kind, payload, result FROM stepfast_archive"):
        found += [ring.open(row[it], f"{it} of {row['kind']}", row["id"]) for it in ("payload", "result")]
    for row in rows.query(app, "SELECT event_id, name, payload FROM stepfast_event"):
        found.append(ring.open(row["payload"], f"event {row['name']}", row["event_id"]))
    return found


def renewed(app: Stepfast) -> int:
    """Rows that are under the new key."""
    tables = ("stepfast_job", "stepfast_archive", "stepfast_event")
    found = [row["payload"] for it in tables for row in rows.query(app, f"SELECT payload FROM {it}")]
    return sum(key_id(NEW) in it for it in found)


def test_a_rotation_may_die_at_any_point(
    rotated: RotatedKeys, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = rotated.app

    def rotate() -> object:
        return keys.rotate(app.database)

    rotated.set(monkeypatch)
    stored = sorted(opened(app, OLD))
    points = recorded(rotate, lambda: None)
    assert sorted(opened(app, NEW)) == stored

    for point in sample.of("rotate keys", kill_points(points), most=3):
        rotated.set(monkeypatch)
        die_at(point, rotate, app)
        where = f"{point} of {len(points)} (STEPFAST_CRASH_SEED={SEED})"

        assert sorted(opened(app, NEW, OLD)) == stored, where
        written = sum(int(it["touched"]) for it in rows.query(app, "SELECT touched FROM stepfast_audit"))
        assert written == renewed(app), where
        rotate()
        assert sorted(opened(app, NEW)) == stored, where
        assert renewed(app) == 3
