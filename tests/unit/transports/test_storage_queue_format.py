"""The format of messages in Storage Queue: every content survives, and other programs can read it."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree as ET

import pytest
from azure.storage.queue import QueueMessage
from hypothesis import example, given
from hypothesis import strategies as st

from stepfast.transports.storage_queue import LARGEST_TEXT, Parts, delivery_of, packed, packed_dead, unpacked

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
BODIES = TEXTS | VALUES.map(json.dumps) | VALUES.map(lambda it: json.dumps(it, ensure_ascii=False, indent=1))
PROPERTIES = st.dictionaries(TEXTS, TEXTS | st.integers() | st.booleans(), max_size=3)


@given(BODIES, PROPERTIES, TEXTS)
@example("{}", {}, "")
@example("{ }", {}, "")
@example('{"_text": 1}', {}, "")
@example('{"_stepfast":{"id":"x"}}', {}, "")
@example('{"a":1}\n', {}, "")
@example('{"a":1', {}, "")
@example('{"a": NaN}', {}, "")
def test_what_goes_in_comes_out(body: str, properties: dict[str, str | int | bool], subject: str) -> None:
    parts = Parts(id="m-1", body=body, properties=properties, subject=subject)

    assert unpacked(packed(parts), "the broker's") == parts


@given(BODIES, PROPERTIES)
def test_what_is_sent_is_json_that_xml_can_carry(body: str, properties: dict[str, str | int | bool]) -> None:
    text = packed(Parts(id="m-1", body=body, properties=properties))

    assert json.loads(text)["_stepfast"]["id"] == "m-1"
    element = ET.Element("MessageText")
    element.text = text
    assert ET.fromstring(ET.tostring(element)).text == text  # noqa: S314 - our own


@given(st.dictionaries(TEXTS.filter(lambda it: it != "_stepfast"), VALUES, max_size=4))
def test_an_object_stays_the_object_that_it_is_for_others(body: dict[str, object]) -> None:
    read = json.loads(packed(Parts(id="m-1", body=json.dumps(body))))

    assert {name: value for name, value in read.items() if name != "_stepfast"} == body


@given(TEXTS)
def test_what_strangers_send_is_never_refused(text: str) -> None:
    found = unpacked(text, "the broker's")

    assert found.id == "the broker's"
    assert found.body in (text, _inside(text))


DEEP = "[" * 30_000 + "]" * 30_000


@pytest.mark.parametrize(
    "text",
    [
        DEEP,
        base64.b64encode(DEEP.encode()).decode(),
        '{"_stepfast":{"id":"x","dead":{"sent_at":"garbage"}},"task_id":"a","task_type":"ok"}',
        '{"_stepfast":{"id":"x","dead":{"sent_at":7,"reason":null}},"task_id":"a"}',
        '{"_stepfast":{"id":"x","dead":{"sent_at":"0001-01-01T00:00:00+14:00"}},"task_id":"a"}',
        '{"_stepfast":{"id":"x","dead":[1]},"task_id":"a"}',
        f'{{"_stepfast":{{"id":{DEEP}}},"task_id":"a"}}',
    ],
    ids=lambda it: it[:60],
)
def test_no_text_of_a_stranger_ends_whoever_receives_it(text: str) -> None:
    message = QueueMessage(content=text)
    message.id, message.inserted_on = "b-1", datetime(2026, 3, 1, tzinfo=UTC)

    found = delivery_of(message, "tasks", "tasks", timedelta(minutes=1))

    assert found.id in ("b-1", "x")
    assert found.sent_at == message.inserted_on
    packed_dead(Parts(id=found.id, body=found.body, dead={"reason": "refused"}))


def _inside(text: str) -> str | None:
    try:
        return base64.b64decode(text, validate=True).decode()
    except ValueError:
        return None


def test_base64_of_json_is_opened_and_so_is_one_of_ours_in_it() -> None:
    ours = packed(Parts(id="m-1", body='{"a": 1}', subject="TASK"))

    assert unpacked(base64.b64encode(b'{"a": 1}').decode(), "b-1") == Parts(id="b-1", body='{"a": 1}')
    assert unpacked(base64.b64encode(ours.encode()).decode(), "b-1").subject == "TASK"


@pytest.mark.parametrize("size", [10, LARGEST_TEXT - 600, LARGEST_TEXT - 300, LARGEST_TEXT])
def test_a_dead_letter_fits_whatever_the_complaint(size: int) -> None:
    body = json.dumps({"a": "x" * (size - 9)})
    dead = {"reason": "r" * 900, "detail": "ü" * 9_000, "sent_at": ""}

    text = packed_dead(Parts(id="m-1", body=body, dead=dead))

    assert (text is None) == (size == LARGEST_TEXT)
    if text is not None:
        assert len(text.encode()) <= LARGEST_TEXT
        assert unpacked(text, "b-1").body == body
        assert unpacked(text, "b-1").dead["reason"] == "r" * 200
