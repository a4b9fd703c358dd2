"""The envelope of a task: what a message must contain, and how others are refused."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast.tasks.envelope import Envelope, TaskRefusedError, read
from stepfast.tasks.store import task_key

if TYPE_CHECKING:
    from collections.abc import Callable

TASK = {"task_id": "t-1", "task_type": "ingest", "payload": {"filename": "a.pdf"}}


def refused(text: str) -> TaskRefusedError:
    with pytest.raises(TaskRefusedError) as found:
        read(text)
    return found.value


def task(**fields: Any) -> str:
    return json.dumps(TASK | fields)


def test_a_task_is_read_and_its_payload_kept_as_it_was_written() -> None:
    text = '{"task_id": "t-1", "task_type": "ingest", "payload": {"n": 1.50, "é": [ ]}, "webhook_url": "https://a.example/x"}'

    assert read(text) == Envelope(
        task_id="t-1",
        task_type="ingest",
        payload='{"n": 1.50, "é": [ ]}',
        webhook_url="https://a.example/x",
    )


def test_fields_that_nobody_knows_are_no_problem() -> None:
    assert read(task(created_by="frontend", deep={"a": [1]})) == read(task())


def test_a_payload_and_a_webhook_may_be_missing() -> None:
    found = read('{"task_id": "1", "task_type": "a", "webhook_url": "", "schema_version": 1}')

    assert (found.payload, found.webhook_url) == ("{}", None)
    assert read(task(payload=None)).payload == "{}"


def test_a_number_is_an_id_too() -> None:
    assert read(task(task_id=42)).task_id == "42"


@pytest.mark.parametrize("around", ["[{}]", "\ufeff{}\n", "{}"], ids=["list", "mark", "plain"])
def test_a_task_may_come_in_base64_or_in_a_list_of_one(around: str) -> None:
    text = around.replace("{}", task())

    assert read(text) == read(task())
    assert read(base64.b64encode(text.encode()).decode()) == read(task())


@pytest.mark.parametrize(
    "said",
    [
        json.dumps(task()),
        json.dumps(json.dumps(task())),
        base64.urlsafe_b64encode(task(note="~?>>~ü").encode()).decode().rstrip("="),
        base64.b64encode(base64.b64encode(task().encode())).decode(),
        base64.b64encode(task().encode("utf-16")).decode(),
        json.dumps([json.dumps(task())]),
    ],
    ids=["JSON string", "doubled JSON string", "base64url", "doubled base64", "UTF-16", "string in a list"],
)
def test_a_task_is_understood_in_what_other_programs_wrap_it(said: str) -> None:
    assert read(said) == read(task())


def test_base64_of_something_else_is_refused_with_that_cause() -> None:
    why = str(refused(base64.b64encode(b"<task><id>t-1</id></task>").decode()))

    assert "nor base64 of JSON: decoded, it has 25 other characters" in why


def handed_on(text: Any) -> dict[str, Any]:
    """A message as the connector of a Logic App has it."""
    return {"MessageId": "m-1", "PopReceipt": "AgAAAAMAAAA=", "DequeueCount": 1, "MessageText": text}


IN_BASE64 = base64.b64encode(task().encode()).decode()


@pytest.mark.parametrize(
    "said", [task(), IN_BASE64, TASK, f"[{task()}]"], ids=["text", "base64", "object", "list"]
)
@pytest.mark.parametrize(
    "around",
    [
        lambda it: it,
        lambda it: [it],
        lambda it: {"QueueMessage": it},
        lambda it: {"QueueMessagesList": {"QueueMessage": [it]}},
    ],
    ids=["message", "list", "one", "answer"],
)
def test_a_message_of_a_connector_is_unwrapped(said: Any, around: Callable[[Any], Any]) -> None:
    assert read(json.dumps(around(handed_on(said)))) == read(task())


def test_several_messages_of_a_connector_are_several_tasks_and_refused() -> None:
    several = [handed_on(task()), handed_on(task(task_id="t-2"))]

    for text in (
        several,
        {"QueueMessagesList": {"QueueMessage": several}},
        handed_on(json.dumps([TASK, TASK])),
    ):
        assert "a list of 2 tasks; send each of them alone" in str(refused(json.dumps(text)))


def test_a_task_may_have_a_field_that_connectors_use() -> None:
    assert read(task(MessageText="hello")) == read(task())
    assert "task_type is missing" in str(refused('{"task_id": "t-1", "MessageText": "hello"}'))


def test_what_is_wrong_inside_a_connectors_message_is_said_as_ever() -> None:
    assert "no JSON (" in str(refused(json.dumps(handed_on("hello"))))
    assert "no JSON object" in str(refused(json.dumps(handed_on(None))))
    assert "task_id is missing" in str(refused(json.dumps(handed_on("{}"))))


def test_nobody_is_kept_busy_by_wrappings() -> None:
    text = task()
    for _ in range(9):
        text = json.dumps({"MessageText": text})

    assert "wrapped more than 8 times" in str(refused(text))
    assert "no JSON" in str(refused('{"MessageText":' * 100_000))


def test_the_trace_of_whoever_sent_it_is_kept() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    assert read(task(traceparent=trace)).trace == trace
    assert read(task(traceparent="nonsense")).trace is None
    assert read(task(traceparent=["00"])).trace is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no JSON"),
        ("hello", "no JSON"),
        ("{", "no JSON"),
        ('"text"', "no JSON object"),
        ("[]", "a list of 0 tasks"),
        ("[{}, {}]", "a list of 2 tasks"),
        ("{}", "task_id is missing"),
        (task(task_id=""), "task_id ''"),
        (task(task_id=None), "task_id is missing"),
        (task(task_id=True), "task_id True"),
        (task(task_id="a\nb"), "can be printed"),
        (task(task_id="x" * 201), "1 to 200 characters"),
        (task(task_type="a b"), "task_type 'a b'"),
        (task(task_type=7), "task_type 7"),
        (task(payload=[1]), "payload is no object"),
        (task(payload="{}"), "payload is no object"),
        (task(payload={"a": "x" * 1024 * 1024}), "payload takes"),
        (task(payload={"stepfast.sealed": "1.aaaa.bbbb"}), "begins with 'stepfast.'"),
        (task(payload={"a": 1, "stepfast.sealed": "1.aaaa.bbbb"}), "begins with 'stepfast.'"),
        (task(webhook_url="ftp://a"), "webhook_url"),
        (task(webhook_url="https://me:pw@a.example"), "credentials"),
        (task(schema_version=2), "newer than this worker understands"),
        (task(schema_version="1"), "schema_version '1'"),
        (task(schema_version=True), "schema_version True"),
        ("\x00\x01", "no JSON"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_what_is_no_task_is_refused_with_the_reason(text: str, reason: str) -> None:
    assert reason in str(refused(text))


def test_all_that_is_wrong_is_said_at_once() -> None:
    why = str(refused('{"task_type": "a b", "payload": 1, "webhook_url": "x", "schema_version": 9}'))

    assert all(it in why for it in ("task_id", "task_type", "payload", "webhook_url", "schema_version"))


def test_what_can_be_read_of_a_refused_task_is_known() -> None:
    why = refused(task(payload=1, webhook_url="https://a.example/x"))

    assert (why.task_id, why.task_type, why.webhook_url) == ("t-1", "ingest", "https://a.example/x")


@given(st.text() | st.binary().map(lambda it: it.decode("latin-1")))
def test_whatever_comes_is_read_or_refused(text: str) -> None:
    with suppress(TaskRefusedError):
        read(text)


@given(st.text(min_size=1, max_size=200), st.text(min_size=1, max_size=200))
def test_the_keys_of_two_tasks_differ_and_fit(one: str, other: str) -> None:
    assert (task_key(one) == task_key(other)) == (one == other)
    assert len(task_key(one)) <= 50
