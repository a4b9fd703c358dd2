"""Registering kinds of jobs: names, options, and what is refused."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from stepfast import Retry, Stepfast
from stepfast.config import checked_name
from stepfast.errors import ConfigurationError, UnknownKindError
from stepfast.jobs.kinds import is_async


@pytest.fixture
def app(tmp_path: Path) -> Stepfast:
    """Nothing is opened: registering needs no database."""
    return Stepfast(f"sqlite:///{tmp_path}/unused.db")


def test_a_job_has_the_name_of_its_function(app: Stepfast) -> None:
    @app.job(queue="mail", priority=3)
    def send() -> None: ...

    assert send.kind.name == "send"
    assert (app.kinds.names(), app.kinds.queues()) == (["send"], ["mail"])


def test_a_registered_handler_can_still_be_called(app: Stepfast) -> None:
    @app.job()
    def double(n: int) -> int:
        """Twice as much."""
        return 2 * n

    assert double(n=4) == 8
    assert double.__doc__ == "Twice as much."


def test_two_handlers_of_one_name_are_refused_with_the_place_of_the_first(app: Stepfast) -> None:
    @app.job(name="work")
    def first() -> None: ...

    with pytest.raises(ConfigurationError, match=r"'work' is already registered by .*test_kinds.*first"):

        @app.job(name="work")
        def second() -> None: ...


def test_registering_the_same_function_again_is_harmless(app: Stepfast) -> None:
    def work() -> None: ...

    app.job()(work)
    app.job()(work)

    assert app.kinds.names() == ["work"]


def test_an_unknown_kind_is_refused_with_what_is_known(app: Stepfast) -> None:
    app.job(name="known")(lambda: None)

    with pytest.raises(UnknownKindError, match=r"'unheard'.*it knows: known.*deploy"):
        app.kinds.get("unheard")
    assert app.kinds.find("unheard") is None


@pytest.mark.parametrize(
    "option", ["tx", "key", "delay", "run_at", "queue", "id", "priority", "unique_for", "on_duplicate"]
)
def test_a_parameter_with_the_name_of_an_option_is_refused(app: Stepfast, option: str) -> None:
    namespace: dict[str, Any] = {}
    exec(f"def work({option}): ...", namespace)  # noqa: S102 - the name is what is tested

    with pytest.raises(ConfigurationError, match=f"{option!r} has the name of an enqueue option"):
        app.job()(namespace["work"])


@pytest.mark.parametrize("name", ["a", "send_invoice", "mail.send", "a:b/c-d", "9", "x" * 120])
def test_a_name_of_letters_digits_and_marks_is_fine(name: str) -> None:
    assert checked_name("queue", name) == name


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "!cancel", "ü", "a\n", "x" * 121, "a,b"])
def test_another_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"queue .*letters, digits"):
        checked_name("queue", name)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"priority": 40_000}, "priority 40000"),
        ({"priority": "high"}, "priority 'high'"),
        ({"timeout": "soon"}, "timeout: 'soon'"),
        ({"timeout": 0}, "timeout=0: no step can end in no time"),
        ({"timeout": "0s"}, "timeout='0s': no step"),
        ({"timeout": float("nan")}, "timeout: nan is not a duration"),
        ({"timeout": True}, "timeout: True is not a duration"),
        ({"queue": "a b"}, "queue 'a b'"),
        ({"name": ""}, "job name ''"),
        ({"encrypted": "no"}, "encrypted='no': True, False, or 'mixed'"),
        ({"result_ttl": "long"}, "result_ttl: 'long'"),
        ({"retry": "3"}, "job 'work': retry='3': give Retry"),
        ({"retry": True}, "retry=True"),
        ({"retry": False}, "retry=False"),
        ({"retry": 2.5}, r"retry=2\.5"),
        ({"retry": [1, 2]}, r"retry=\[1, 2\]"),
        ({"retry": {"attempts": 3}}, "retry={'attempts': 3}"),
        ({"retry": Retry}, "retry=<class"),
        ({"retry": 0}, "tried at least once"),
    ],
)
def test_options_that_cannot_work_are_refused_at_the_decorator(
    app: Stepfast, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):

        @app.job(**options)
        def work() -> None: ...


def test_a_number_of_attempts_is_a_retry_policy(app: Stepfast) -> None:
    @app.job(retry=3)
    def work() -> None: ...

    @app.task("ingest", retry=7)
    def ingest() -> None: ...

    assert work.kind.retry == Retry(attempts=3)
    assert app.kinds.get("task.ingest").retry == Retry(attempts=7)


def test_a_task_without_a_policy_is_refused_as_a_job_is(app: Stepfast) -> None:
    for options, sentence in (({"retry": "3"}, "task 'ingest': retry='3'"), ({"timeout": 0}, "timeout=0")):
        with pytest.raises(ConfigurationError, match=sentence):
            app.task("ingest", **options)(lambda: None)


def test_an_option_that_does_not_exist_is_refused_with_the_one_that_was_meant(app: Stepfast) -> None:
    with pytest.raises(
        TypeError, match=r"job\(\) got an unexpected keyword argument 'retries'; did you mean 'retry'\?"
    ):
        app.job(retries=3)(lambda: None)  # type: ignore[call-arg]


def test_coroutines_are_recognised_through_decorators() -> None:
    async def waiting() -> None: ...

    def plain() -> None: ...

    @functools.wraps(waiting)
    def wrapped(*args: Any) -> Any:
        return waiting(*args)

    assert [is_async(it) for it in (waiting, plain, wrapped)] == [True, False, True]
