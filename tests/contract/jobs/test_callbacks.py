"""A callback address sends one event, once, until it expires."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from stepfast import ConfigurationError, Step, Stepfast, Wait
from stepfast.callbacks import Received, asgi
from stepfast.errors import SignatureError, UnreachableError
from stepfast.jobs.keys import forget_expired_keys
from stepfast.testing import clock, drain
from tests.support import rows

if TYPE_CHECKING:
    from collections.abc import Mapping

OLD, NEW = "the old key that nobody can guess: 40+", "the new key that nobody can guess: 40+"
BASE = "https://shop.example/callbacks"


@pytest.fixture(autouse=True)
def _settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPFAST_SECRET_KEY", OLD)
    monkeypatch.setenv("STEPFAST_CALLBACK_URL", BASE + "/")


def post(app: Stepfast, path: str, content: bytes = b"", method: str = "POST") -> httpx.Response:
    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(asgi(app, most_bytes=200_000))
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
            return await client.request(method, path, content=content)

    return asyncio.run(ask())


def forget(app: Stepfast) -> None:
    """As a worker does with the ids whose time is over."""
    with app.transaction() as tx:
        forget_expired_keys(tx, 100)


def asking(app: Stepfast, urls: list[str]) -> Any:
    @app.job()
    def approve(step: Step) -> Wait | Any:
        if step.number == 0:
            urls.append(step.callback_url(expires="2h"))
            return Wait(timeout="1h")
        return step.event.payload if step.event else "nobody answered"

    return approve


def test_a_callback_wakes_the_step_that_handed_it_out(app: Stepfast) -> None:
    urls: list[str] = []
    job = asking(app, urls).enqueue()
    drain(app)

    answer = post(app, urls[0], b'{"approved": true}')
    drain(app)

    assert urls[0].startswith(f"{BASE}/")
    assert (answer.status_code, answer.json()) == (200, {"status": "accepted"})
    assert app.operator.job(job.id).result == {"approved": True}


def test_a_callback_is_good_for_once_and_says_so(app: Stepfast) -> None:
    urls: list[str] = []
    asking(app, urls).enqueue()
    drain(app)

    answers = [post(app, urls[0], body) for body in (b"1", b"1", b"2")]

    assert [it.status_code for it in answers] == [200] * 3
    assert [it.json()["status"] for it in answers] == ["accepted", "received before", "received before"]
    assert not rows.count(app, "stepfast_event")


def test_every_try_of_a_step_hands_out_the_same_callback(app: Stepfast) -> None:
    first = app.callbacks.sign("callback:j:0", expires="1h")
    second = app.callbacks.sign("callback:j:0", expires="2h")

    assert first != second
    assert app.callbacks.receive(first) is Received.ACCEPTED
    assert app.callbacks.receive(second) is Received.REPEATED


def test_a_callback_that_lasts_long_is_good_for_once_all_the_time(app: Stepfast) -> None:
    with clock(app) as time:
        token = app.callbacks.sign("payment:42", expires="60d")
        first = app.callbacks.receive(token)

        answers = []
        for _ in range(3):
            time.advance("19d")
            forget(app)
            answers.append(app.callbacks.receive(token))

    assert (first, answers) == (Received.ACCEPTED, [Received.REPEATED] * 3)


@pytest.mark.parametrize(("lasts", "of_the_second"), [("60d", "60d"), ("1h", "60d")])
def test_the_addresses_of_one_step_are_good_for_one_time_all_the_time(
    app: Stepfast, lasts: str, of_the_second: str
) -> None:
    with clock(app) as time:
        used, other = (app.callbacks.sign("callback:j:0", expires=it) for it in (lasts, of_the_second))
        app.callbacks.receive(used)
        if lasts != of_the_second:  # it is known from its first use on how long the other lasts
            app.callbacks.receive(other)
        time.advance("59d")
        forget(app)

        assert app.callbacks.receive(other) is Received.REPEATED


def test_two_addresses_of_one_event_are_good_for_one_time_each(app: Stepfast) -> None:
    tokens = [app.callbacks.sign("payment:42", expires=expires) for expires in ("1h", "2h")]

    assert [app.callbacks.receive(it) for it in tokens] == [Received.ACCEPTED] * 2
    assert [app.callbacks.receive(it) for it in tokens] == [Received.REPEATED] * 2


def test_a_job_can_be_answered_by_its_handle(app: Stepfast) -> None:
    @app.job()
    def ask(step: Step) -> Wait | Any:
        return step.event.payload if step.event else Wait(f"job:{step.job_id}", timeout="1h")

    job = ask.enqueue()
    assert post(app, app.callbacks.url(job), b'"yes"').status_code == 200
    drain(app)

    assert app.operator.job(job.id).result == "yes"


def test_after_its_end_by_the_databases_clock_it_is_refused(app: Stepfast) -> None:
    token = app.callbacks.sign("payment:42", expires="1h")

    with clock(app) as time:
        time.advance("61m")
        assert post(app, f"/{token}").status_code == 410

    assert not rows.count(app, "stepfast_event")


def test_nothing_but_what_we_signed_is_believed(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    token = app.callbacks.sign("payment:42")
    said, _, signature = token.partition(".")
    other = app.callbacks.sign("payment:43").partition(".")[0]

    for forged in ("", "x", said, f"{other}.{signature}", f"{said}.{signature[:-4]}AAAA", "é.é", "a" * 2_000):
        with pytest.raises(SignatureError):
            app.callbacks.receive(forged)
        assert post(app, f"/{forged}").status_code == 404
        assert post(app, f"/{forged}", b"{not json").status_code == 404
    monkeypatch.setenv("STEPFAST_SECRET_KEY", NEW)
    with pytest.raises(SignatureError):
        app.callbacks.receive(token)
    assert not rows.count(app, "stepfast_event")


def test_an_older_key_still_checks_while_it_is_listed(app: Stepfast, monkeypatch: pytest.MonkeyPatch) -> None:
    token = app.callbacks.sign("payment:42")
    monkeypatch.setenv("STEPFAST_SECRET_KEY", f"{NEW}, {OLD}")

    assert app.callbacks.receive(token) is Received.ACCEPTED


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ({"content": b"x" * 200_001}, 413),
        ({"content": b"{not json"}, 400),
        ({"content": b"[" * 60_000 + b"]" * 60_000}, 400),
        ({"method": "GET"}, 405),
        ({"content": b""}, 200),
        ({"content": b'{"a": [1, null]}'}, 200),
    ],
)
def test_what_is_posted_is_checked_first(app: Stepfast, request_: Mapping[str, Any], status: int) -> None:
    answer = post(app, f"/{app.callbacks.sign('payment:42')}", **request_)

    assert answer.status_code == status
    assert rows.count(app, "stepfast_event") == (status == 200)


def test_half_a_body_is_not_taken_for_a_whole_one(app: Stepfast) -> None:
    token = app.callbacks.sign("payment:42")
    parts = iter([{"type": "http.request", "body": b"12", "more_body": True}, {"type": "http.disconnect"}])
    said: list[Any] = []

    async def receive() -> Any:
        return next(parts)

    async def send(message: Any) -> None:
        said.append(message)

    asyncio.run(asgi(app)({"type": "http", "method": "POST", "path": f"/{token}"}, receive, send))

    assert said[0]["status"] == 400
    assert not rows.count(app, "stepfast_event")


def test_while_the_database_is_away_they_are_told_to_come_again(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = app.callbacks.sign("payment:42")

    def away(*_: object, **__: object) -> None:
        raise UnreachableError("gone")

    monkeypatch.setattr(type(app.database), "transaction", away)

    assert post(app, f"/{token}").status_code == 503


def test_it_lives_and_dies_with_the_application_it_is_mounted_in(app: Stepfast) -> None:
    events = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    said: list[str] = []

    async def receive() -> Any:
        return next(events)

    async def send(message: Any) -> None:
        said.append(message["type"])

    asyncio.run(asgi(app)({"type": "lifespan"}, receive, send))

    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_without_a_key_or_an_address_it_is_said_what_to_set(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("STEPFAST_CALLBACK_URL")
    with pytest.raises(ConfigurationError, match="STEPFAST_CALLBACK_URL is not set"):
        app.callbacks.url("payment:42")
    monkeypatch.delenv("STEPFAST_SECRET_KEY")
    with pytest.raises(ConfigurationError, match="STEPFAST_SECRET_KEY is not set"):
        app.callbacks.sign("payment:42")
