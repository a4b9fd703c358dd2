"""Events reach their listeners, and cost little without any."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from stepfast.telemetry import EVENTS, LEVELS, Fact, happened, listen, sinks, unlisten, wanted
from stepfast.telemetry.masking import without_data, without_secrets
from stepfast.telemetry.sinks import Plain, camel, loggable, plain, sentence
from tests.support.events import hearing, named


class Subject:
    """Something to tell about that counts how often it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def facts(self) -> dict[str, Fact]:
        self.asked += 1
        return {"job_id": "j-1", "kind": "greet"}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Remove all listeners, and log warnings only, whatever ran before."""
    monkeypatch.setattr(sinks, "_sinks", {})
    log = logging.getLogger("stepfast")
    before = log.level
    log.setLevel(logging.WARNING)
    yield
    log.setLevel(before)


def test_an_event_is_a_record_with_its_name_and_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "stepfast"):
        happened("worker.started", worker_id="w-1", concurrency=3)

    (record,) = caplog.records
    assert record.name == "stepfast"
    assert record.getMessage() == "worker.started worker_id=w-1 concurrency=3"
    assert record.__dict__["event"] == "worker.started"
    assert record.__dict__["facts"] == {"worker_id": "w-1", "concurrency": 3}


def test_what_nobody_wants_is_not_built() -> None:
    subject = Subject()

    happened("step.committed", subject)

    assert not wanted("step.committed")
    assert subject.asked == 0


def test_whoever_listens_hears_what_the_subject_says_and_what_is_added() -> None:
    subject = Subject()

    with hearing() as told:
        assert wanted("step.committed")
        happened("step.committed", subject, fence=7)

    assert told == [("step.committed", {"job_id": "j-1", "kind": "greet", "fence": 7})]
    assert not wanted("step.committed")


def test_a_listener_hears_only_what_it_asked_for() -> None:
    heard: list[str] = []

    def hear(event: str, _: Mapping[str, Fact]) -> None:
        heard.append(event)

    listen(hear, ["worker.started"])
    happened("worker.started", worker_id="w-1")
    happened("worker.stopped", worker_id="w-1")
    unlisten(hear)
    happened("worker.started", worker_id="w-1")

    assert heard == ["worker.started"]


def test_a_listener_that_fails_disturbs_nobody_and_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    def stumble(_: str, __: Mapping[str, Fact]) -> None:
        raise RuntimeError("disk full")

    listen(stumble, ["worker.started"])
    try:
        with hearing() as told:
            for _ in range(3):
                happened("worker.started", worker_id="w-1")
    finally:
        unlisten(stumble)

    assert len(named(told, "worker.started")) == 3
    assert [it.getMessage() for it in caplog.records if it.exc_info] == [
        "a listener failed at worker.started"
    ]


def test_fields_in_a_log_are_one_line_whatever_they_hold() -> None:
    fields: Plain = {"worker_id": "w\r\n2026 worker.stopped\x1b[2J\u202e", "error_message": "a\tb"}

    assert sentence(fields) == r"worker_id=w\x0d\n2026 worker.stopped\x1b[2J\u202e error=a\tb"


def test_an_event_that_is_not_in_the_list_is_told_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """A test finds it; a program in production must not fall over it."""
    with caplog.at_level(logging.INFO, "stepfast"):
        happened("dog.barked", at="the postman")

    assert caplog.records[0].getMessage() == "dog.barked at=the postman"


def test_every_event_is_a_noun_and_what_happened_to_it_and_says_what_it_means() -> None:
    assert len(EVENTS) > 35
    for name, event in EVENTS.items():
        noun, _, verb = name.partition(".")
        assert noun
        assert verb
        assert event.meaning
        assert event.level == LEVELS[name]


# Fields


def test_an_error_becomes_its_type_and_its_message() -> None:
    assert plain({"error": ValueError("no"), "job_id": None}) == {
        "error_type": "ValueError",
        "error_message": "no",
    }
    assert plain({"error": "no route"}) == {"error_message": "no route"}
    assert sentence(plain({"jobs": 2, "error": KeyError("a")})) == "jobs=2 error=KeyError: 'a'"
    assert sentence(plain({"error": "no route"})) == "error=no route"
    assert sentence(plain({"error": KeyError()})) == "error=KeyError"


def test_an_error_that_cannot_be_read_is_told_all_the_same() -> None:
    class OddError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("really")

    assert plain({"error": OddError()})["error_message"] == "(its text could not be read)"


def test_of_many_samples_the_largest_is_shown() -> None:
    assert plain({"held_s": [0.1, 0.5, 0.2], "took_s": [], "charged": True}) == {"held_s": 0.5, "charged": 1}


@pytest.mark.parametrize(
    ("name", "camelled"),
    [("worker_id", "workerId"), ("error_type", "errorType"), ("jobs", "jobs"), ("retry_in_s", "retryInS")],
)
def test_machines_read_names_in_camel_case(name: str, camelled: str) -> None:
    assert camel(name) == camelled


@pytest.mark.parametrize(
    "text",
    [
        "1 validation error for Login\nname\n  Input should be a valid integer [type=int, input_value='hunter2', input_type=str]",
        "[type=missing, input_value={'name': 'hunter2, yes', 'n': 1}, input_type=dict]",
        'null value in column "a"\nDETAIL:  Failing row contains (1, hunter2, null).',
        "DETAIL:  Key (email)=(hunter2) already exists.",
        'DETAIL:  Key (a, b)=(1, hunter2) is not present in table "t".',
        "(1062, \"Duplicate entry 'hunter2' for key 'email'\")",
        "postgresql://me:hunter2@db/x",
        "password=hunter2, user=me",
        "Authorization: Bearer hunter2hunter2",
    ],
)
def test_a_log_shows_no_secret_and_no_data_that_a_library_quotes(text: str) -> None:
    assert "hunter2" not in without_data(text)
    assert "***" in without_data(text)


def test_what_quotes_no_data_stays_as_it_is() -> None:
    text = 'ValueError: no row contains the key (yet) for input "a"\nsecond line'

    assert without_data(text) == without_secrets(text) == text


def test_a_long_field_is_cut_and_a_secret_at_the_cut_is_seen_first() -> None:
    shown = plain({"note": "x" * 1_980 + " password=hunter2hunter2hunter2"})["note"]

    assert isinstance(shown, str)
    assert len(shown) <= 2_000
    assert "hunter" not in shown


def test_masking_takes_no_time_worth_mentioning() -> None:
    """However a text is made: no repetition may be tried in all the ways there are."""
    for text in (
        "input_value=" * 50_000,
        "Key (" * 100_000,
        "Failing row contains (" * 30_000,
        "a" * 1_000_000,
    ):
        plain({"note": text})  # a hang is a failure, by the time limit of the tests


def test_the_library_leaves_logging_alone(tmp_path: Path) -> None:
    """A program that imports Stepfast, and works with it, finds its root logger as it was."""
    script = (
        "import logging, json, sys\n"
        "from stepfast import Stepfast\n"
        "app = Stepfast('sqlite:///' + sys.argv[1])\n"
        "app.migrate()\n"
        "with app.worker(): pass\n"
        "named = [logging.getLogger(), logging.getLogger('stepfast')]\n"
        "print(json.dumps([len(it.handlers) for it in named] + [logging.getLogger('stepfast').level]))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "work.db")],
        check=True,
        capture_output=True,
        text=True,
    )

    assert json.loads(done.stdout) == [0, 0, 0]
    assert done.stderr == ""


def test_the_exception_of_a_record_is_a_copy_without_secrets_and_half_characters() -> None:
    error = LookupError("no card \udc80")
    error.__cause__ = OSError("https://me:hunter2@bank.example refused")
    error.add_note("token=abcdef123456")

    copy = loggable(error)
    text = "".join(traceback.format_exception(copy))

    assert type(copy).__qualname__ == "LookupError"
    assert "no card \\udc80" in text
    assert "OSError: https://me:***@bank.example refused" in text
    assert "hunter2" not in text
    assert "abcdef123456" not in text
    text.encode()


def test_an_exception_that_may_be_shown_is_the_one_of_the_record() -> None:
    error = LookupError("no card")
    error.__cause__ = OSError("refused")

    assert loggable(error) is error
