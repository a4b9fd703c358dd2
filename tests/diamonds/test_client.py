"""The client of Nivoda: every failed answer becomes an error whose class says what to do."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepfast import AuthError, ConfigurationError, OutageError, PermanentError, ThrottledError
from stepfast_diamonds import client, query
from stepfast_diamonds.client import BadAnswerError, Client, RefusedError, read_answer
from stepfast_diamonds.settings import PRODUCTION, NivodaSettings, from_environment
from stepfast_diamonds.simulator import Simulator
from tests.diamonds.asking import Asking, settings_for
from tests.support.http_receiver import Answer, HttpReceiver

HTML = b"<!DOCTYPE html><html><body>Request blocked.</body></html>"
GOOD = b'{"data": {"diamonds_by_query_count": 7}}'


def errors(message: str, code: str | None = None, data: Any = None) -> bytes:
    told: dict[str, Any] = {"message": message}
    return json.dumps(
        {"data": data, "errors": [told | ({"extensions": {"code": code}} if code else {})]}
    ).encode()


@pytest.mark.parametrize(
    ("status", "headers", "body", "expected", "words"),
    [
        (429, {"retry-after": "7"}, b"", ThrottledError, "fewer requests"),
        (403, {}, HTML, ThrottledError, "firewall"),
        (403, {"retry-after": "5"}, HTML, ThrottledError, "fewer requests"),
        (403, {}, errors("forbidden"), RefusedError, "forbidden"),
        (401, {}, b"", RefusedError, "401"),
        (503, {}, HTML, OutageError, "503"),
        (503, {"retry-after": "5"}, HTML, ThrottledError, "fewer requests"),
        (502, {}, HTML, OutageError, "502"),
        (408, {}, b"", OutageError, "408"),
        (200, {}, HTML, OutageError, "HTML"),
        (200, {}, GOOD[:-4], BadAnswerError, "no JSON"),
        (200, {}, b"[]", BadAnswerError, "no object"),
        (200, {}, b'{"data": []}', BadAnswerError, "no object"),
        (200, {}, b'{"data": null, "errors": "no"}', BadAnswerError, "no list"),
        (200, {}, errors("Token expired"), RefusedError, "expired"),
        (200, {}, errors("whatever", "UNAUTHENTICATED"), RefusedError, "whatever"),
        (200, {}, errors("Too many login attempts", "UNAUTHENTICATED"), ThrottledError, "fewer"),
        (400, {}, errors('Cannot query field "x"'), PermanentError, "schema has changed"),
        (400, {}, b"what?", BadAnswerError, "does not say why"),
        (404, {}, b"", PermanentError, "check NIVODA_URL"),
        (301, {}, b"", PermanentError, "leads elsewhere"),
    ],
)
def test_an_answer_that_is_none_is_an_error_of_the_right_class(
    status: int, headers: dict[str, str], body: bytes, expected: type[Exception], words: str
) -> None:
    with pytest.raises(expected, match=words):
        read_answer(status, headers, body)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (errors("Internal server error"), OutageError),
        (errors('Unknown argument "x"', "GRAPHQL_VALIDATION_FAILED"), PermanentError),
        (b'{"data": {}}', BadAnswerError),
        (b'{"data": null}', BadAnswerError),
    ],
)
def test_an_answer_without_what_was_asked_for_is_an_error(body: bytes, expected: type[Exception]) -> None:
    with pytest.raises(expected):
        read_answer(200, {}, body).field("diamonds_by_query_count")


def test_a_wait_is_read_in_seconds_or_as_a_date_of_the_sources_own_clock() -> None:
    at = {"date": "Sun, 06 Nov 1994 08:49:37 GMT", "retry-after": "Sun, 06 Nov 1994 08:50:07 GMT"}

    with pytest.raises(ThrottledError) as dated:
        read_answer(429, at, b"")
    with pytest.raises(ThrottledError) as counted:
        read_answer(429, {"retry-after": "7"}, b"")

    assert dated.value.retry_after == timedelta(seconds=30)
    assert counted.value.retry_after == timedelta(seconds=7)
    assert read_answer(200, at, GOOD).date == datetime(1994, 11, 6, 8, 49, 37, tzinfo=UTC)


@pytest.mark.parametrize("style", ["bearer", "as"])
def test_both_ways_to_show_a_token_are_spoken(style: str) -> None:
    with Simulator("1k", seed=7, faults="none", speed=0) as sim:
        asking = Asking(sim, auth=style)
        stone = asking.page(limit=1)[0]

        assert asking.count() == 821
        assert asking.run(lambda it: it.diamond(stone["diamond"]["id"])) == stone
        assert sim.statistics()["logins"] == 1


def test_a_stone_that_has_vanished_is_none() -> None:
    with Simulator("1k", seed=7, faults="none", speed=0) as sim:
        asking = Asking(sim)
        gone = asking.ids(limit=1)[0]
        sim.mutate("delete", ids=[gone])

        assert asking.run(lambda it: it.diamond(gone)) is None


def test_a_source_that_says_nothing_is_away_after_the_timeout() -> None:
    with (
        Simulator("1k", faults="none,hang_prob=1", speed=0) as sim,
        pytest.raises(OutageError, match=r"did not answer within 0\.2 s"),
    ):
        Asking(sim, timeout="200ms").count()


def test_a_connection_that_breaks_is_an_outage_and_is_not_tried_again() -> None:
    with Simulator("1k", faults="none", speed=0) as sim:
        asking = Asking(sim)
        asking.count()
        sim.turn(reset_prob=1)
        before = sim.statistics()["requests"]
        with pytest.raises(OutageError, match="cannot be reached"):
            asking.count()

        assert sim.statistics()["requests"] == before + 1


def test_an_address_where_nobody_listens_is_an_outage() -> None:
    with Simulator("1k", faults="none", speed=0) as sim:
        pass
    with pytest.raises(OutageError, match="cannot be reached"):
        Asking(sim).count()


def test_wrong_credentials_are_told_with_the_names_of_their_variables() -> None:
    with Simulator("1k", faults="none", speed=0) as sim:
        with pytest.raises(AuthError, match="check NIVODA_USERNAME and NIVODA_PASSWORD"):
            Asking(sim, password="wrong").count()
        with pytest.raises(ConfigurationError, match="set NIVODA_PASSWORD in the environment"):
            Asking(sim, password=None).count()


@pytest.mark.parametrize("status", [200, 400, 401, 500])
def test_a_source_that_repeats_secrets_is_not_quoted(
    receiver: HttpReceiver, status: int, caplog: Any
) -> None:
    caplog.set_level(logging.DEBUG)
    secrets: dict[str, Any] = {
        "username": "somebody@example.com",
        "password": "very-secret",
        "secret_key": "a key that nobody can guess: 40 letters",
    }
    settings = NivodaSettings(url=receiver.url("/api"), **secrets)
    said = errors(f"invalid token for {' '.join(secrets.values())}")
    receiver.answer = lambda _: Answer(status, said)

    with pytest.raises((AuthError, PermanentError, OutageError)) as raised:
        asyncio.run(Client(settings).ask(query.COUNT, query={}))

    seen = f"{raised.value!s} {raised.value.__cause__!r} {caplog.text} {settings!r}"
    assert not [it for it in secrets.values() if it in seen]


def test_neither_credentials_nor_tokens_are_in_what_the_source_is_quoted_with(receiver: HttpReceiver) -> None:
    """It lets us in, and then repeats everything that it was sent."""
    settings = NivodaSettings(url=receiver.url("/api"), username="somebody", password="very-secret")
    session = {"authenticate": {"username_and_password": {"token": "a.long.token", "expires": 3_600}}}
    answers = iter(
        [json.dumps({"data": session}).encode(), errors("failed for somebody very-secret a.long.token")]
    )
    receiver.answer = lambda _: Answer(200, next(answers))

    answer = asyncio.run(Client(settings).ask(query.COUNT, query={}))

    assert [it.message for it in answer.problems] == ["failed for *** *** ***"]


def test_neither_credentials_nor_tokens_reach_the_log(caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    with Simulator("1k", seed=7, faults="none", speed=0) as sim:
        asking = Asking(sim)
        asking.count()
        sim.revoke_tokens()
        asking.count()
        token = asking.source._client._tokens._known
        sim.turn(gateway_prob=1)
        with pytest.raises(OutageError):
            asking.count()

        assert token is not None
        assert caplog.records, "something was logged"
        assert not [it for it in (sim.username, sim.password, token.token) if it in caplog.text]


def test_settings_come_from_the_environment() -> None:
    found = from_environment(
        {
            "NIVODA_URL": "http://127.0.0.1:8090/api/diamonds",
            "NIVODA_USERNAME": "me",
            "NIVODA_PASSWORD": "secret",
            "NIVODA_AUTH": "as",
            "NIVODA_RATE": "10",
            "NIVODA_TIMEOUT": "30s",
            "NIVODA_PAGE_SIZE": "50",
            "STEPFAST_SECRET_KEY": "a key that nobody can guess: 32+",
        }
    )

    assert (found.auth, found.rate, found.timeout, found.page_size) == ("as", 10, timedelta(seconds=30), 50)
    assert found.credentials == ("me", "secret")
    assert from_environment({}) == NivodaSettings(
        url=PRODUCTION, rate=25, timeout=timedelta(seconds=45), page_size=30
    )


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"NIVODA_URL": "http://nivoda.example.com"}, "use https"),
        ({"NIVODA_URL": "ftp://x"}, "no address"),
        ({"NIVODA_URL": "https://me:secret@x.example.com"}, "leave the credentials out"),
        ({"NIVODA_PAGE_SIZE": "51"}, "from 20 to 50"),
        ({"NIVODA_RATE": "fast"}, "a whole number"),
        ({"NIVODA_AUTH": "basic"}, "use bearer or as"),
        ({"NIVODA_PARTITION_BY": "carats"}, "use dollar_per_carat or dollar_value"),
        ({"STEPFAST_SECRET_KEY": "short"}, "at least 32"),
    ],
)
def test_settings_that_cannot_work_are_refused_without_being_quoted(
    given: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words) as raised:
        from_environment(given)

    assert "secret@" not in str(raised.value)


def test_a_question_keeps_to_the_pages_of_the_source() -> None:
    with Simulator("1k", seed=7, faults="none,over_limit=error", speed=0) as sim:
        assert len(Asking(sim).page(limit=200)) == 50


def test_connections_end_with_their_event_loop() -> None:
    """Warnings are errors: one that stays open would fail this test."""
    with Simulator("1k", seed=7, faults="none", speed=0) as sim:
        asking = Asking(sim)

        assert [asking.count() for _ in range(3)] == [821] * 3


def test_settings_for_a_simulator_are_accepted() -> None:
    with Simulator("1k", faults="none") as sim:
        assert settings_for(sim).url == sim.url


def test_an_answer_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LARGEST_ANSWER", 1_000_000)
    sent: list[int] = []

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(b" " * 65_536)
                await writer.drain()
                sent.append(65_536)

    async def asked() -> None:
        server = await asyncio.start_server(pour, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        settings = NivodaSettings(
            url=f"http://127.0.0.1:{port}/", username="u", password="p", timeout=timedelta(seconds=5)
        )
        async with server:
            with pytest.raises(BadAnswerError, match="more than 1,000,000 bytes; nobody asked for so much"):
                await Client(settings)._post(query.LOGIN, {})

    asyncio.run(asked())
    assert sum(sent) < 20_000_000  # what lies in buffers was sent, and not read
