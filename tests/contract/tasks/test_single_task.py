"""A single task is waited for until its end, also while the database is away."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stepfast import Retry, Step, Stepfast
from stepfast.errors import ConstraintError, UnreachableError
from stepfast.tasks import single_task
from stepfast.tasks.single_task import SingleTask, run_single_task
from stepfast.testing import drain
from tests.support import rows
from tests.support.broker import CLIENT, QUEUE, task_message
from tests.support.http_receiver import SETTINGS, Answer

if TYPE_CHECKING:
    from stepfast.database.connection import Connection
    from tests.support.http_receiver import HttpReceiver

ONCE = Retry(attempts=1)


@pytest.fixture
def telling(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stepfast]:
    """An application whose webhooks arrive, and a parent that soon asks again."""
    monkeypatch.setattr(single_task, "AWAY", 0.01)
    with closing(Stepfast(database_url, notifications=SETTINGS)) as app:
        yield app


def do(app: Stepfast, text: str, timeout: timedelta | None = None) -> tuple[int, list[str]]:
    """Run a single task; returns the exit code and the output. Signal handlers are restored afterwards."""
    words: list[str] = []
    before = {it: signal.getsignal(it) for it in (signal.SIGTERM, signal.SIGINT)}
    task = SingleTask(text=text, client=CLIENT, timeout=timeout, budget=timedelta(seconds=10))
    try:
        return run_single_task(app, task, words.append), words
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def in_parent() -> Callable[[], bool]:
    """Whether it is asked by the thread that waits for the child."""
    me, thread = os.getpid(), threading.current_thread()
    return lambda: os.getpid() == me and threading.current_thread() is thread


def watch(app: Stepfast, look: Callable[[str, str], None]) -> None:
    """Call `look` before and after each statement."""
    database = app.database
    connect = database._connect

    def watched() -> Connection:
        connection = connect()
        connection.watch = look
        return connection

    database.close()
    database._connect = watched


def fail_each_once(app: Stepfast) -> list[str]:
    """Each statement of the parent fails when it comes for the first time, and once more behind it; a COMMIT for each
    transaction. Returns where it failed.
    """
    failed: list[str] = []
    mine, last = in_parent(), [""]

    def look(phase: str, text: str) -> None:
        if not mine() or text == "ROLLBACK":
            return
        place = f"{phase} {text if text != 'COMMIT' else 'COMMIT behind ' + last[0]}"
        last[0] = text if text != "COMMIT" else last[0]
        if place not in failed:
            failed.append(place)
            raise UnreachableError("says a test")

    watch(app, look)
    return failed


class Outage:
    """The database is away for all processes, from when a file exists until the parent has noticed."""

    def __init__(self, app: Stepfast, folder: Path) -> None:
        self._file = folder / "away"
        self._mine, self.met = in_parent(), 0
        watch(app, self._look)

    def begin(self) -> None:
        self._file.touch()

    def _look(self, _: str, text: str) -> None:
        if text == "ROLLBACK" or not self._file.exists():
            return
        if self._mine():
            self.met += 1
            self._file.unlink()
        raise UnreachableError("says a test")


def test_whatever_fails_for_a_moment_the_task_is_done_and_told_of(
    telling: Stepfast, receiver: HttpReceiver, tmp_path: Path
) -> None:
    """Its first child dies, so that there is something to rescue."""
    notes = tmp_path / "notes"

    @telling.task("good")
    def good() -> str:
        with notes.open("a") as lines:
            lines.write("run\n")
        if notes.read_text() == "run\n":
            os._exit(9)
        return "well done"

    failed = fail_each_once(telling)

    code, _ = do(telling, task_message("good", webhook_url=receiver.url()))

    assert code == 0
    assert notes.read_text() == "run\n" * 2
    assert {(it.id, it.json["result"]) for it in receiver.received} == {(receiver.ids[0], "well done")}
    for it in (
        "INSERT INTO stepfast_task",
        "UPDATE stepfast_worker",
        "FROM stepfast_archive a",
        "SELECT step",
    ):
        assert any(it in " ".join(place.split()) for place in failed), it


@pytest.mark.only_on("sqlite")
def test_an_outage_while_whoever_asked_is_told_changes_no_exit_code(
    telling: Stepfast, receiver: HttpReceiver, tmp_path: Path
) -> None:
    @telling.task("good")
    def good() -> str:
        return "well done"

    outage = Outage(telling, tmp_path)
    receiver.answer = lambda _: Answer(before=outage.begin)

    code, words = do(telling, task_message("good", webhook_url=receiver.url()))

    assert (code, words, outage.met) == (0, ["task t-1 completed"], 1)


@pytest.mark.only_on("sqlite")
def test_an_outage_when_the_time_is_over_keeps_nobody_from_being_told(
    telling: Stepfast, receiver: HttpReceiver, tmp_path: Path
) -> None:
    outage = Outage(telling, tmp_path)

    @telling.task("long")
    def long(step: Step) -> None:
        outage.begin()
        step.wait(60)

    code, _ = do(telling, task_message("long", webhook_url=receiver.url()), timeout=timedelta(seconds=1))

    assert (code, outage.met) == (1, 1)
    assert [it["error"]["cause"] for it in receiver.bodies] == ["timeout"]
    assert rows.count(telling, "stepfast_job") == 0


@pytest.mark.only_on("sqlite")
def test_what_no_database_takes_is_not_tried_for_minutes(
    telling: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A statement that is refused because of what it says fails at once."""
    tries: list[int] = []

    def refusing(*_: object) -> None:
        tries.append(1)
        raise ConstraintError("says a test")

    monkeypatch.setattr(single_task, "accept_task", refusing)

    @telling.task("good")
    def good() -> None: ...

    with pytest.raises(ConstraintError):
        do(telling, task_message("good"))

    assert tries == [1]


@pytest.mark.parametrize("task_type", ["bad", "unknown"])
def test_a_retry_of_a_single_task_is_for_any_worker_of_its_client(app: Stepfast, task_type: str) -> None:
    """No worker serves the queue that belonged to this task alone."""
    works: list[bool] = []

    @app.task("bad", retry=ONCE)
    def bad() -> str:
        if not works:
            raise ValueError("not yet")
        return "now"

    assert do(app, task_message(task_type))[0] == 1
    (letter,) = app.operator.dead_letters()
    assert letter.queue == QUEUE

    works.append(True)
    app.operator.retry(letter.id)
    drain(app, queues=QUEUE, raise_errors=False)

    assert rows.state(app, letter.id) == ("done" if task_type == "bad" else "dead")


def test_a_known_id_with_another_payload_is_refused_and_the_first_task_is_left_alone(
    telling: Stepfast, receiver: HttpReceiver
) -> None:
    @telling.task("greet")
    def greet(name: str) -> str:
        return f"Hello {name}"

    first = do(telling, task_message("greet", webhook_url=receiver.url(), name="Ann"))
    other = do(telling, task_message("greet", webhook_url=receiver.url(), name="Ben"))

    assert (first[0], other[0]) == (0, 1)
    assert "refused: task_id 't-1' was used before, for a task with another payload" in other[1][0]
    assert [it["result"] for it in receiver.bodies] == ["Hello Ann"]
