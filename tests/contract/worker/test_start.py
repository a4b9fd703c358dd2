"""A worker comes up whatever the database does meanwhile, and says at once what no waiting can cure."""

from __future__ import annotations

import threading
from contextlib import closing
from urllib.parse import urlsplit

import pytest

from stepfast import Stepfast
from stepfast.database.connection import Connection
from stepfast.errors import AccessRefusedError, SchemaError, UnreachableError
from tests.support import rows
from tests.support.events import hearing, named


class Cut:
    """Cuts the line before the n-th statement of the thread that starts the worker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int | None = None) -> None:
        self.statements: list[str] = []
        self._number = number
        self._thread = threading.current_thread()
        monkeypatch.setattr(Connection, "watch", staticmethod(self._watch))

    def _watch(self, moment: str, text: str) -> None:
        if moment == "before" and threading.current_thread() is self._thread:
            self.statements.append(text)
            if len(self.statements) == self._number:
                raise UnreachableError("the line went dead")


def statements_of_a_start(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    worker = app.worker()
    with monkeypatch.context() as patched:
        cut = Cut(patched)
        worker.start()
        found = list(cut.statements)
    worker.stop(at_once=True)
    return found


def test_a_worker_that_loses_the_database_while_it_starts_comes_up(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each of the statements that its start sends; a COMMIT among them is one whose answer is lost."""
    monkeypatch.setattr("stepfast.worker.worker.AWAY", 0.01)
    found = statements_of_a_start(app, monkeypatch)
    assert len(found) > 10
    for number in range(1, len(found) + 1):
        worker = app.worker()
        with hearing() as told, monkeypatch.context() as patched:
            cut = Cut(patched, number)
            worker.start()
            rows.eventually(lambda: worker.status().running)  # noqa: B023 - asked here
            assert len(cut.statements) >= number
            worker.stop(at_once=True)
        assert len(named(told, "worker.started")) == len(named(told, "worker.stopped")) == 1, found[
            number - 1
        ]
        waits = [it for it in told if it[1].get("note") == "the start of the worker waits"]
        goes_on = [it for it in told if it[1].get("note") == "the start of the worker goes on"]
        assert len(waits) == len(goes_on) <= 1
        assert not worker.failed
    assert rows.count(app, "stepfast_worker", "state = 'alive'") == 0


def test_nothing_is_started_on_tables_that_are_missing(empty_database_url: str) -> None:
    with closing(Stepfast(empty_database_url)) as app:
        worker = app.worker()
        if app.unchecked_database.dialect.name == "sqlite":  # which gets them by itself
            with worker:
                assert worker.status().running
            return
        with pytest.raises(SchemaError, match="has no Stepfast tables"):
            worker.start()

        assert worker.status().problems == ["this worker does not run"]
        left = [it.name for it in threading.enumerate() if it.name in {"stepfast-heartbeat", "stepfast-loop"}]
        assert not left


@pytest.mark.only_on("postgresql", "mariadb")
@pytest.mark.parametrize("wrong", ["password", "user", "database"])
def test_a_database_that_does_not_let_us_in_is_not_waited_for(database_url: str, wrong: str) -> None:
    parts = urlsplit(database_url)
    user, password, name = parts.username, parts.password, parts.path
    match wrong:
        case "password":
            password = "hunter2"
        case "user":
            user = "nobody"
        case _:
            name = "/nowhere"
    url = f"{parts.scheme}://{user}:{password}@{parts.hostname}:{parts.port}{name}"
    with closing(Stepfast(url)) as app:
        worker = app.worker()
        with pytest.raises(AccessRefusedError) as refused:
            worker.start()

    assert str(password) not in str(refused.value)
    assert worker.status().problems == ["this worker does not run"]


def test_a_file_in_a_folder_that_does_not_exist_is_not_waited_for() -> None:
    with closing(Stepfast("sqlite:////no/such/folder/work.db")) as app:
        worker = app.worker()
        with pytest.raises(AccessRefusedError, match="the folder '/no/such/folder' does not exist"):
            worker.start()
