"""Which queues of jobs a worker of tasks serves beside its own."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from stepfast import Stepfast
from stepfast.errors import ConfigurationError
from stepfast.tasks.command import _queues_of_jobs

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def app() -> Iterator[Stepfast]:
    with closing(Stepfast("sqlite:///never-opened.db")) as found:

        @found.job(queue="index")
        def index() -> None: ...

        @found.job()
        def greet() -> None: ...

        @found.task("ingest")
        def ingest() -> None: ...

        yield found


@pytest.mark.parametrize(
    ("wanted", "once", "queues"),
    [
        ("auto", False, ("default", "index")),  # and no queue of tasks, which may be those of another client
        ("auto", True, ()),
        ("none", False, ()),
        ("mail, index", False, ("mail", "index")),
        ("mail", True, ("mail",)),
    ],
)
def test_a_worker_of_tasks_serves_the_queues_of_its_apps_jobs_or_those_that_are_named(
    app: Stepfast, wanted: str, queues: tuple[str, ...], *, once: bool
) -> None:
    assert _queues_of_jobs(app, wanted, once=once) == queues


@pytest.mark.parametrize(("wanted", "problem"), [("*", "tasks of other clients"), ("mail.*", "mail")])
def test_queues_that_cannot_be_meant_are_refused(app: Stepfast, wanted: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        _queues_of_jobs(app, wanted, once=False)
