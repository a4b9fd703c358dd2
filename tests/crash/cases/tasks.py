"""Processes that work on tasks, each killed with SIGKILL at a point that an earlier process has passed.

A point is a statement of ours that writes, or a call of the broker, and before or after it. The first process notes the
points that it passes; each of the others dies at one of them. The broker is a database of its own: it stays.
"""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import sqlite3
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from stepfast import PermanentError, Step, Stepfast
from stepfast.database.database import Database
from stepfast.database.drivers import open_database
from stepfast.database.migrate import migrate
from stepfast.notifications.settings import NotificationSettings
from stepfast.tasks.envelope import queue_of
from stepfast.tasks.intake import Acknowledge, Intake, IntakeSettings
from stepfast.tasks.single_task import SingleTask, run_single_task
from stepfast.transports.contract import Delivery, Outgoing
from stepfast.transports.database import DatabaseTransport
from tests.support.http_receiver import SECRET

if TYPE_CHECKING:
    from stepfast.database.connection import Connection

CLIENT = "south"
QUEUE = queue_of(CLIENT)
PATIENCE = 60.0
GOOD, BAD, NONSENSE = "good", "bad", "garbage"
_OURS = re.compile(r"stepfast_(key|task|job|archive|outbox|destination)\b|\beffects\b")
_WRITES = re.compile(r"\s*(INSERT|UPDATE|DELETE)\b", re.IGNORECASE)


@dataclass
class Trail:
    """What is passed, in a file that a dead process leaves behind; or the point at which this one dies."""

    path: Path
    deadly: str | None = None
    whole_group: bool = False
    _seen: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def passes(self, label: str) -> None:
        with self._lock:
            if label in self._seen:
                return
            self._seen.add(label)
        if self.deadly is None:
            with self.path.open("a") as lines:
                lines.write(label + "\n")
        elif label == self.deadly:
            (os.killpg if self.whole_group else os.kill)(
                os.getpid() if not self.whole_group else 0, signal.SIGKILL
            )

    def on(self, connection: Connection) -> None:
        wrote: list[bool] = [False]

        def watch(phase: str, text: str) -> None:
            short = " ".join(text.split())[:70]
            if _WRITES.match(text) and _OURS.search(text):
                wrote[0] = True
                self.passes(f"{phase} {short}")
            elif text == "COMMIT" and wrote[0]:
                self.passes(f"{phase} COMMIT in {threading.current_thread().name.rstrip('0123456789-_')}")
                wrote[0] = phase == "before"
            elif text.startswith(("BEGIN", "ROLLBACK")):
                wrote[0] = False

        connection.watch = watch

    def points(self) -> list[str]:
        return sorted(set(self.path.read_text().splitlines()))


class MortalTransport(DatabaseTransport):
    """Its calls are points, too."""

    def __init__(self, database: Database, trail: Trail) -> None:
        super().__init__(database)
        self._trail = trail

    async def receive(self, *given: Any, **options: Any) -> list[Delivery]:
        found = await super().receive(*given, **options)
        if found:
            self._trail.passes("after receive")
        return found

    async def complete(self, delivery: Delivery) -> None:
        self._trail.passes("before complete")
        await super().complete(delivery)
        self._trail.passes("after complete")

    async def dead_letter(self, delivery: Delivery, reason: str, detail: str = "") -> None:
        self._trail.passes("before dead letter")
        await super().dead_letter(delivery, reason, detail)
        self._trail.passes("after dead letter")


class Place:
    """The files of one story: the worker's database, the broker's, and the points."""

    def __init__(self, folder: Path, webhook_url: str) -> None:
        folder.mkdir()
        self.folder = folder
        self.webhook_url = webhook_url
        with closing(sqlite3.connect(folder / "work.db")) as connection:
            connection.execute("CREATE TABLE effects (id TEXT)")
        for name in ("work", "broker"):
            # Closed, because lives are forked: SQLite's locks belong to a process, and must not be inherited.
            with closing(open_database(self.url(name))) as database:
                migrate(database)

    def url(self, name: str) -> str:
        return f"sqlite:///{self.folder / name}.db"

    def message(self, task: str) -> str:
        if task == NONSENSE:
            return json.dumps({"task_id": task, "task_type": 1, "webhook_url": self.webhook_url})
        return json.dumps({"task_id": task, "task_type": task, "webhook_url": self.webhook_url})

    def send(self, *tasks: str) -> None:
        import asyncio

        with closing(open_database(self.url("broker"))) as database:
            transport = DatabaseTransport(database)

            async def all_of_them() -> None:
                await transport.ensure(QUEUE)
                await transport.send(QUEUE, [Outgoing(id=it, body=self.message(it)) for it in tasks])

            asyncio.run(all_of_them())

    def query(self, name: str, text: str) -> list[Any]:
        with closing(sqlite3.connect(self.folder / f"{name}.db")) as connection:
            found = connection.execute(text).fetchall()
            connection.commit()
            return found

    def let_time_pass(self) -> None:
        """What a dead process held is free again, at the broker and in the outbox."""
        self.query("broker", "UPDATE stepfast_message SET visible_at = 1 WHERE state = 'ready'")
        self.query("work", "UPDATE stepfast_destination SET leased_until = 1")

    @property
    def over(self) -> bool:
        return not any(self.left().values())

    def left(self) -> dict[str, int]:
        """What is still to be done; asked in the order in which one becomes the next."""
        return {
            "messages": self.query("broker", "SELECT count(*) FROM stepfast_message WHERE state = 'ready'")[
                0
            ][0],
            "jobs": self.query("work", "SELECT count(*) FROM stepfast_job")[0][0],
            "webhooks": self.query("work", "SELECT count(*) FROM stepfast_outbox WHERE state = 'waiting'")[0][
                0
            ],
        }


def application(place: Place, trail: Trail) -> Stepfast:
    plain = open_database(place.url("work"))

    def connect() -> Connection:
        connection = plain.connect()
        trail.on(connection)
        return connection

    database = Database(plain.url, plain.dialect, connect)
    app = Stepfast(
        database=database,
        notifications=NotificationSettings(webhook_secrets=(SECRET,), webhook_allow=("127.0.0.1",)),
    )

    @app.task(GOOD)
    def good(step: Step) -> str:
        trail.passes("inside the handler")
        step.effect(lambda tx: tx.execute("INSERT INTO effects (id) VALUES ('good')"))
        return "well done"

    @app.task(BAD)
    def bad() -> None:
        raise PermanentError("no")

    return app


def poll(place: Place, trail: Trail, acknowledge: Acknowledge) -> None:
    """Work until nothing is left to do."""
    app = application(place, trail)
    broker = open_database(place.url("broker"))
    settings = IntakeSettings(
        client=CLIENT,
        acknowledge=acknowledge,
        hold=timedelta(minutes=5),
        concurrency=2,
        poll=timedelta(seconds=1),
    )
    intake = Intake(app, MortalTransport(broker, trail), settings, ended=lambda: None)
    with app.worker(concurrency=2, grace="1s"):
        intake.start()
        deadline = time.monotonic() + PATIENCE
        while not place.over and time.monotonic() < deadline:
            time.sleep(0.02)
        intake.stop_taking()
    intake.leave(timedelta(0))


def do_one(place: Place, trail: Trail, task: str) -> int:
    app = application(place, trail)
    one = SingleTask(text=place.message(task), client=CLIENT, budget=timedelta(seconds=30))
    return run_single_task(app, one, lambda _: None)


def live(act: Callable[[], object]) -> int:
    """A life of its own, in a group of its own; how it ended, as `subprocess` says it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if not pid:
        _live(act)
    deadline = time.monotonic() + PATIENCE
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            raise AssertionError("it did not end")
        time.sleep(0.005)


def _live(act: Callable[[], object]) -> NoReturn:
    gc.disable()
    os.setpgid(0, 0)
    code = 97
    try:
        answer = act()
        code = answer if isinstance(answer, int) else 0
    except BaseException:  # noqa: BLE001 - the parent's stack goes on above us
        traceback.print_exc(file=sys.__stderr__)
    finally:
        os._exit(code)
