"""Texts of strangers take time that grows with their length, and not with its square.

A regular expression holds the whole process up while it runs. Here each function that meets foreign text gets a megabyte
of what is worst for it; and every pattern of the packages gets smaller texts, made of its own characters. The time that
the thread itself used is compared with that of a shorter text, so that a busy machine changes nothing.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import ModuleType
from typing import Any

import pytest

import stepfast
import stepfast_diamonds
import stepfast_emulators
from stepfast.admin.doctor.finding import outline
from stepfast.clock import duration
from stepfast.config import MAX_PAYLOAD, size
from stepfast.database.connection import refuse_control
from stepfast.database.dialects import MARIADB
from stepfast.database.drivers import hosts_of, masked
from stepfast.errors import DatabaseError, SignatureError, StepfastError
from stepfast.jobs.retry import describe, fingerprint
from stepfast.notifications.addresses import Allowed
from stepfast.notifications.addresses import shown as shown_entries
from stepfast.notifications.settings import from_environment
from stepfast.notifications.webhook import asked_wait, judge, problem_of, shown, verify
from stepfast.runs.messages import read_hint
from stepfast.schedules import cron
from stepfast.tasks import envelope
from stepfast.telemetry.mask_patterns import hide_matches
from stepfast.telemetry.masking import (
    Rules,
    json_visible,
    one_line,
    storable,
    visible,
    without_data,
    without_secrets,
)
from stepfast.telemetry.sinks import plain, sentence
from stepfast.telemetry.traces import trace_id_of
from stepfast.transports.open import problem_of_transport, shown_transport
from stepfast.transports.storage_queue import unpacked
from stepfast_diamonds.mapping_words import fancy_color

LENGTHS = (4_000, 40_000, 1_000_000)
TOLERANCE = 5  # times longer than its length says; a square would be 10 and 25 times longer
UNMEASURABLE = 0.004  # seconds: below that the clock, and not the text, is measured
TRIES = 3

RULES = Rules()
RULES.add(["card.*", "*_secret", re.compile(r"[\w.]+@[\w.]+\.\w+"), re.compile(r"\d+x")])
NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECRET = "whsec_" + "QUFB" * 8
SIGNED = {"webhook-id": "m-1", "webhook-timestamp": "1", "webhook-signature": "v1,x"}


def read_message(text: str) -> None:
    with suppress(envelope.TaskRefusedError):
        envelope.read(text)


def refused(read: Callable[[str], object]) -> Callable[[str], None]:
    """The function, whatever it thinks of the text."""

    def call(text: str) -> None:
        with suppress(StepfastError, SignatureError, DatabaseError, ValueError):
            read(text)

    return call


READERS: dict[str, Callable[[str], object]] = {
    "a message": read_message,
    "a message in Storage Queue": lambda text: unpacked(text, "m-1"),
    "a message of a run": read_hint,
    "a text without secrets": without_secrets,
    "a text without data": without_data,
    "a text by the rules": RULES.cleaned,
    "a document by the rules": lambda text: RULES.masked_document({"note": text}),
    "an error": lambda text: (describe(ValueError(text)), fingerprint(ValueError(text))),
    "a field of a log line": lambda text: sentence(plain({"error": ValueError(text), "kind": text})),
    "a text for a terminal": lambda text: (visible(text), one_line(text), json_visible(text), storable(text)),
    "the answer of a receiver": lambda text: judge(500, text, NOW, text.encode(errors="replace")),
    "the URL of a webhook": lambda text: (problem_of(text), shown(text)),
    "the headers of a webhook": refused(
        lambda text: verify(text, SIGNED | {"webhook-signature": text}, SECRET)
    ),
    "a time to wait": lambda text: asked_wait(text, NOW),
    "the URL of a database": refused(lambda text: (masked(text), hosts_of(text))),
    "the URL of a transport": lambda text: (problem_of_transport(text), shown_transport(text)),
    "allowed hosts": refused(lambda text: (shown_entries(text), Allowed.read([text]))),
    "URLs for alerts": refused(lambda text: from_environment({"STEPFAST_ALERT_URLS": text})),
    "a duration": refused(duration),
    "a size": refused(size),
    "a schedule": refused(cron.parse),
    "a statement": refused(lambda text: refuse_control(text, MARIADB)),
    "a statement that hangs": lambda text: (outline(text, "mariadb"), outline(text, "postgresql")),
    "a trace": lambda text: trace_id_of(text, text),
    "a colour of a stone": fancy_color,
}
# What is repeated, by the reader for which it is worst; those of "" are given to all.
UNITS: dict[str, list[str]] = {
    "": ["a", " "],
    "a message": ["a ", "[", '{"a":', '"', "\ufeff", "=", "[[1],"],
    "a message in Storage Queue": ["a ", "[", '{"_stepfast":'],
    "a text without secrets": [
        "a:", "a://b:", "http://a", "a://b@", "://", "@", "password ", "password=", "password='", "password=(\n", "token={",
        'secret=\\"', "bearer ", "bearer: ", "authorization: basic x ", "authorization: x", "cookie=", "eyJ-", "eyJaaaaaaaa.",
        "-----BEGIN PRIVATE KEY-----", "hooks.slack.com/services/", "secret", "whsec_", "token=a,", "pass",
    ],
    "a text without data": [
        "input_value=", "Failing row contains (", "Key (", "Key (a)=(", "Duplicate entry '", "Duplicate entry",
    ],
    "a text by the rules": ["card", "card=", "card={", "card='", "_secret", "a@", "a@b.", "x_secret=[", "1x"],
    "an error": ["0x", "aaaaaaaa-", '"', "password="],
    "a text for a terminal": ["\x1b", "\u202e", "\x9b", "\t"],
    "the answer of a receiver": ["\x1b", ","],
    "the URL of a database": ["//", ":", "@", "?pass", "&password=", ",", "a://b:"],
    "the URL of a transport": ["://", "@", "://a"],
    "allowed hosts": ["a@", ",", "a,"],
    "URLs for alerts": [", ", "a ", "a://"],
    "a duration": ["1s", "1."],
    "a statement": ["/**/", ";", "--\n", "/*", "# "],
    "a statement that hangs": ["$a", "/", "1.", "1e"],
    "a colour of a stone": ["D-", "D ", "-,"],
}  # fmt: skip
CASES = [
    pytest.param(READERS[name], unit, id=f"{name}-{unit!a}")
    for name in READERS
    for unit in (*UNITS[""], *UNITS.get(name, ()))
]


@pytest.mark.parametrize(("read", "unit"), CASES)
def test_a_megabyte_takes_as_much_longer_as_it_is_longer(read: Callable[[str], object], unit: str) -> None:
    assert slower(lambda length: read((unit * (length // len(unit) + 1))[:length] + "!"), LENGTHS) == ""


def slower(work: Callable[[int], object], lengths: tuple[int, ...]) -> str:
    """Where the time grew faster than the length; empty: nowhere. The shorter lengths come first: a square ends there."""
    before = (lengths[0], max(seconds(work, lengths[0]), UNMEASURABLE))
    for length in lengths[1:]:
        most = before[1] * length / before[0] * TOLERANCE
        took = min(_until(most, work, length))
        if took > most:
            return f"{before[0]:,} characters took {before[1]:.4f} s, and {length:,} took {took:.4f} s"
        before = (length, max(took, UNMEASURABLE))
    return ""


def _until(most: float, work: Callable[[int], object], length: int) -> Iterator[float]:
    for _ in range(TRIES):
        took = seconds(work, length)
        yield took
        if took <= most:
            return


def seconds(work: Callable[[int], object], length: int) -> float:
    began = time.thread_time()
    work(length)
    return time.thread_time() - began


# Every pattern of the packages, as its module uses it

SHORTER = (500, 5_000, 20_000)
SEARCHING = {"search", "sub", "subn", "split", "findall", "finditer"}
SHORT_TEXTS = {
    "stepfast.clock:_DURATION": "a duration has at most 100 characters",
    "stepfast_emulators.durations:_PART": "a duration has at most 100 characters",
    "stepfast.database.column_types:_COLUMN": "of our own migrations",
    "stepfast_diamonds.simulator.graphql:_FIELD": "of the simulator's own schema",
    "stepfast_diamonds.simulator.graphql:_ARGUMENT": "of the simulator's own schema",
}


def modules() -> Iterator[ModuleType]:
    for package in (stepfast, stepfast_diamonds, stepfast_emulators):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                yield importlib.import_module(found.name)


def patterns() -> dict[str, tuple[re.Pattern[str], set[str]]]:
    """The patterns of all modules by name, with the methods that their modules call."""
    found: dict[str, tuple[re.Pattern[str], set[str]]] = {}
    for module in modules():
        source = inspect.getsource(module)
        for name, value in vars(module).items():
            used = set(re.findall(rf"\b{name}\.(match|fullmatch|{'|'.join(SEARCHING)})\b", source))
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                found[f"{module.__name__}:{name}"] = value, used or {"match"}
    return found


PATTERNS = patterns()


def hostile(pattern: re.Pattern[str]) -> list[str]:
    """Characters and words of the pattern, each of which is repeated."""
    characters = {it for it in pattern.pattern if not it.isalnum()} | set("aA0 _\n'")
    return sorted(characters | set(re.findall(r"[A-Za-z]{2,}[=:]?|://|--", pattern.pattern)))


@pytest.mark.parametrize("name", sorted(PATTERNS.keys() - SHORT_TEXTS.keys()))
def test_no_pattern_goes_over_a_text_again_and_again(name: str) -> None:
    pattern, methods = PATTERNS[name]
    found = {
        unit: problem
        for unit in hostile(pattern)
        for method in ("search" if it in SEARCHING else it for it in methods)
        if (problem := slower(partial(_use, pattern, method, unit), SHORTER))
    }

    assert found == {}, f"{pattern.pattern} is slow; see the others in this file"


def _use(pattern: re.Pattern[str], method: str, unit: str, length: int) -> Any:
    return getattr(pattern, method)((unit * (length // len(unit) + 1))[:length] + "\0")


def test_names_of_patterns_that_are_left_out_exist() -> None:
    assert SHORT_TEXTS.keys() <= PATTERNS.keys()


# Where the size is limited before anything is read


def test_a_message_that_is_too_large_is_refused_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "_fields_of", None)  # nothing reads it

    with pytest.raises(
        envelope.TaskRefusedError, match=r"it takes 2,097,153 bytes, at most 2,097,152 are read"
    ):
        envelope.read("{" + " " * envelope.LARGEST_MESSAGE)
    with pytest.raises(envelope.TaskRefusedError, match="at most"):
        envelope.read("\N{GRINNING FACE}" * (envelope.LARGEST_MESSAGE // 4 + 1))


def test_the_largest_payload_is_read_also_in_base64() -> None:
    import base64

    payload = {"text": "x" * (MAX_PAYLOAD - 20)}
    text = json.dumps({"task_id": "t", "task_type": "a", "payload": payload})

    assert envelope.read(text) == envelope.read(base64.encodebytes(text.encode()).decode())


# Patterns of masking rules


def test_a_match_is_hidden_wherever_it_stands_in_a_long_text() -> None:
    pattern = re.compile(r"\bDE\d{20}\b")
    iban = "DE" + "1" * 20
    for at in (0, 490, 500, 999, 1_000, 1_001, 2_990):
        text = "." * at + iban + "." * 3_000

        assert hide_matches(pattern, text, "***") == "." * at + "***" + "." * 3_000


def test_what_cannot_be_looked_at_in_time_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepfast.telemetry.mask_patterns.MOST_SECONDS", -1.0)

    shown_text = hide_matches(re.compile("pin"), "a" * 1_500 + "pin" + "b" * 5_000 + "pin", "***")

    assert (shown_text, "pin" in shown_text) == ("a" * 500 + "***", False)
