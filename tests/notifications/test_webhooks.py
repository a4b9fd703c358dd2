"""One attempt to deliver a webhook, against real servers: signed, guarded, limited in time and size."""

from __future__ import annotations

import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from stepfast.errors import install_hint
from stepfast.notifications import webhook as sending
from stepfast.notifications.settings import NotificationSettings
from stepfast.notifications.webhook import (
    LARGEST_ANSWER,
    Delivered,
    Delivery,
    Failed,
    Patience,
    Webhook,
    new_secret,
    send,
    verify,
)
from tests.support.http_receiver import SECRET, SETTINGS, Answer, HttpReceiver, Received, receiving_http

TLS = Path(__file__).parent / "tls"
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
STRICT = NotificationSettings(webhook_secrets=(SECRET,))


def post(url: str, settings: NotificationSettings = SETTINGS, **changes: Any) -> Delivery:
    webhook = Webhook("message-1", url, '{"order": "A-17"}', {})
    return send(replace(webhook, **changes), settings)


def failure(delivery: Delivery) -> Failed:
    assert isinstance(delivery, Failed)
    return delivery


def answering(*answers: Answer) -> Callable[[Received], Answer]:
    left = iter(answers)
    return lambda _: next(left)


# What is sent


def test_a_receiver_can_verify_what_it_gets(receiver: HttpReceiver) -> None:
    assert post(receiver.url(), headers={"X-Tenant": "blue"}, trace=TRACE) == Delivered()

    (got,) = receiver.received
    assert got.body == b'{"order": "A-17"}'
    assert verify(got.body, got.headers, SECRET) == got.id == "message-1"
    assert got.headers["content-type"] == "application/json"
    assert got.headers["x-tenant"] == "blue"
    assert got.headers["traceparent"] == TRACE
    assert got.headers["user-agent"].startswith("stepfast/")
    assert got.headers["host"] == f"127.0.0.1:{receiver.port}"


def test_each_try_has_the_same_id_and_body_and_a_timestamp_of_its_own(receiver: HttpReceiver) -> None:
    webhook = Webhook("message-1", receiver.url(), "{}", {})

    send(webhook, SETTINGS, now=1_700_000_000)
    send(webhook, SETTINGS, now=1_700_000_600)

    first, second = receiver.received
    assert (first.id, first.body) == (second.id, second.body)
    assert [it.headers["webhook-timestamp"] for it in (first, second)] == ["1700000000", "1700000600"]
    verify(second.body, second.headers, SECRET, now=1_700_000_600)


def test_while_a_secret_is_replaced_receivers_with_either_are_content(receiver: HttpReceiver) -> None:
    old, new = new_secret(), new_secret()

    post(receiver.url(), replace(SETTINGS, webhook_secrets=(new, old)))

    (got,) = receiver.received
    assert len(got.headers["webhook-signature"].split()) == 2
    assert verify(got.body, got.headers, old) == verify(got.body, got.headers, new) == got.id


def test_a_host_may_have_a_secret_of_its_own(receiver: HttpReceiver) -> None:
    own = new_secret()

    post(receiver.url(), replace(SETTINGS, webhook_secrets=(SECRET, f"127.0.0.1={own}")))

    (got,) = receiver.received
    assert len(got.headers["webhook-signature"].split()) == 1
    verify(got.body, got.headers, own)


def test_without_a_secret_nothing_is_sent_and_the_sentence_says_how_to_get_one(
    receiver: HttpReceiver,
) -> None:
    failed = failure(post(receiver.url(), replace(SETTINGS, webhook_secrets=())))

    assert "stepfast outbox secret" in failed.reason
    assert receiver.received == []


def test_unsigned_only_on_purpose(receiver: HttpReceiver) -> None:
    assert post(receiver.url(), replace(SETTINGS, webhook_secrets=("none",))) == Delivered()

    (got,) = receiver.received
    assert "webhook-signature" not in got.headers
    assert got.id == "message-1"


def test_without_the_extra_the_sentence_names_the_cure(
    receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "httpcore", None)

    assert install_hint("webhooks") in failure(post(receiver.url())).reason


def test_headers_of_the_callers_own_do_not_double_ours(receiver: HttpReceiver) -> None:
    post(receiver.url(), headers={"User-Agent": "shop/1"})

    assert receiver.received[0].headers["user-agent"] == "shop/1"


# What an answer means


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_status_of_the_200s_means_delivered(receiver: HttpReceiver, status: int) -> None:
    receiver.answer = answering(Answer(status))

    assert post(receiver.url()) == Delivered()


@pytest.mark.parametrize(
    ("status", "patience"),
    [
        (400, Patience.LITTLE),
        (401, Patience.LITTLE),
        (404, Patience.LITTLE),
        (422, Patience.LITTLE),
        (408, Patience.FULL),
        (409, Patience.FULL),
        (425, Patience.FULL),
        (429, Patience.FULL),
        (410, Patience.NONE),
        (500, Patience.FULL),
        (502, Patience.FULL),
        (503, Patience.FULL),
    ],
)
def test_a_refusal_is_given_up_sooner_than_an_outage(
    receiver: HttpReceiver, status: int, patience: Patience
) -> None:
    receiver.answer = answering(Answer(status, b"no such order"))

    failed = failure(post(receiver.url()))

    assert failed.patience is patience
    assert failed.reason.startswith(f"HTTP {status}")
    assert failed.answer == "no such order"
    assert "no such order" not in failed.reason  # which is logged


def test_an_answer_cannot_paint_the_terminal_of_whoever_reads_it(receiver: HttpReceiver) -> None:
    receiver.answer = answering(Answer(400, "\x1b[31mred\x00 \u202enow".encode()))

    assert failure(post(receiver.url())).answer == r"\x1b[31mred\x00 \u202enow"


def test_the_receivers_wish_to_wait_is_heard(receiver: HttpReceiver) -> None:
    receiver.answer = answering(Answer(429, headers={"Retry-After": "120"}))

    assert failure(post(receiver.url())).not_before == timedelta(seconds=120)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(receiver: HttpReceiver, status: int) -> None:
    with receiving_http() as elsewhere:
        receiver.answer = answering(Answer(status, headers={"Location": elsewhere.url()}))

        failed = failure(post(receiver.url()))

    assert "redirects are not followed" in failed.reason
    assert failed.patience is Patience.LITTLE
    assert elsewhere.received == []


# Limits


def test_a_receiver_that_says_nothing_is_given_up_in_time(receiver: HttpReceiver) -> None:
    over = threading.Event()
    receiver.answer = answering(Answer(before=lambda: over.wait(20)))
    began = time.monotonic()

    failed = failure(post(receiver.url(), replace(SETTINGS, webhook_timeout=timedelta(seconds=1))))

    assert 0.9 < time.monotonic() - began < 5
    assert "no answer within 1 s" in failed.reason
    over.set()


def test_a_receiver_that_answers_a_byte_at_a_time_is_given_up_in_time() -> None:
    def drip(client: socket.socket) -> None:
        client.recv(65_536)
        for byte in b"HTTP/1.1 200 OK\r\n" + b"X-Slow: yes\r\n" * 100:
            client.send(bytes([byte]))
            time.sleep(0.05)

    began = time.monotonic()
    with raw_server(drip) as port:
        settings = replace(SETTINGS, webhook_timeout=timedelta(seconds=1))
        failed = failure(post(f"http://127.0.0.1:{port}/", settings))

    assert time.monotonic() - began < 5
    assert "no answer within 1 s" in failed.reason


def test_an_endless_answer_is_not_read_to_its_end() -> None:
    sent = 0

    def pour(client: socket.socket) -> None:
        nonlocal sent
        client.recv(65_536)
        client.send(b"HTTP/1.1 500 Oops\r\nContent-Length: 100000000\r\n\r\n")
        while sent < 100_000_000:
            sent += client.send(b"x" * 65_536)

    with raw_server(pour) as port:
        failed = failure(post(f"http://127.0.0.1:{port}/"))

    assert failed.reason == "HTTP 500"
    assert len(failed.answer) == 300
    assert sent < LARGEST_ANSWER + 20_000_000  # what lies in buffers was sent, and not read


def test_an_answer_with_endless_headers_is_refused() -> None:
    def pour(client: socket.socket) -> None:
        client.recv(65_536)
        client.send(b"HTTP/1.1 200 OK\r\n")
        while True:
            client.send(b"X-More: " + b"x" * 10_000 + b"\r\n")

    with raw_server(pour) as port:
        failed = failure(post(f"http://127.0.0.1:{port}/"))

    assert failed.reason.startswith("RemoteProtocolError")


def test_a_good_status_counts_whatever_becomes_of_the_rest() -> None:
    def hang_up(client: socket.socket) -> None:
        client.recv(65_536)
        client.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this")

    with raw_server(hang_up) as port:
        assert post(f"http://127.0.0.1:{port}/") == Delivered()


def test_nonsense_and_silence_are_failures_that_may_pass() -> None:
    def nonsense(client: socket.socket) -> None:
        client.recv(65_536)
        client.send(b"220 mail.example.com ESMTP\r\n")

    with raw_server(nonsense) as port:
        wrong = failure(post(f"http://127.0.0.1:{port}/"))
    with raw_server(lambda client: client.close()) as port:
        closed = failure(post(f"http://127.0.0.1:{port}/"))
    nobody = failure(post(f"http://127.0.0.1:{port}/"))

    assert wrong.patience is closed.patience is nobody.patience is Patience.FULL
    assert "ConnectError" in nobody.reason


@contextmanager
def raw_server(serve: Callable[[socket.socket], object]) -> Iterator[int]:
    """A server that speaks as it likes, to one client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            try:
                client, _ = listener.accept()
                with client:
                    client.settimeout(20)
                    serve(client)
            except OSError:
                pass  # whoever asked has left

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.close()
        thread.join(20)


# Where it may go


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "127.1", "0", "[::1]", "[::ffff:127.0.0.1]"]
)
def test_this_machine_is_refused_however_it_is_written(receiver: HttpReceiver, host: str) -> None:
    failed = failure(post(f"http://{host}:{receiver.port}/", STRICT))

    assert "is not public" in failed.reason or "ConnectError" in failed.reason
    assert receiver.received == []


@pytest.mark.parametrize(
    "address",
    ["10.0.0.7", "169.254.169.254", "192.168.1.1", "fd00:ec2::254", "fe80::1", "224.0.0.1", "0.0.0.0"],  # noqa: S104 - refused
)
def test_a_name_that_leads_behind_our_walls_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, [[address]])

    failed = failure(post("http://customer.example/", STRICT))

    assert failed.patience is Patience.LITTLE
    assert f"customer.example leads to {address}, which is not public" in failed.reason
    assert "STEPFAST_WEBHOOK_ALLOW" in failed.reason


def test_the_name_is_asked_for_once_and_another_answer_later_leads_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with receiving_http("127.0.0.2") as checked, receiving_http("127.0.0.1", checked.port) as behind_the_wall:
        asked = resolving(monkeypatch, [["127.0.0.2"], ["127.0.0.1"]])
        settings = replace(STRICT, webhook_allow=("127.0.0.2",))

        delivered = post(f"http://customer.example:{checked.port}/", settings)

    assert delivered == Delivered()
    assert asked == ["customer.example"]
    assert (len(checked.received), behind_the_wall.received) == (1, [])
    assert checked.received[0].headers["host"] == f"customer.example:{checked.port}"


def test_of_several_addresses_only_those_that_are_allowed_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with receiving_http("127.0.0.2") as good, receiving_http("127.0.0.1", good.port) as bad:
        resolving(monkeypatch, [["127.0.0.1", "127.0.0.2"]])

        delivered = post(
            f"http://customer.example:{good.port}/", replace(STRICT, webhook_allow=("127.0.0.2",))
        )

    assert delivered == Delivered()
    assert (len(good.received), bad.received) == (1, [])


def test_the_next_address_is_tried_when_the_first_does_not_answer(
    receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolving(monkeypatch, [["127.0.0.3", "127.0.0.1"]])

    settings = replace(STRICT, webhook_allow=("127.0.0.0/8",))

    assert post(f"http://customer.example:{receiver.port}/", settings) == Delivered()


def test_a_host_may_be_allowed_by_its_name(receiver: HttpReceiver, monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch, [["127.0.0.1"], ["127.0.0.1"]])
    settings = replace(STRICT, webhook_allow=("*.internal",))

    assert post(f"http://hooks.internal:{receiver.port}/", settings) == Delivered()
    assert "is not public" in failure(post(f"http://internal.example:{receiver.port}/", settings)).reason


def test_a_name_that_nobody_knows_may_be_known_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)

    failed = failure(post("http://nobody.example/"))

    assert failed.patience is Patience.FULL
    assert "Name or service not known" in failed.reason


def test_a_name_server_that_says_nothing_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [over.wait(20)][1:])

    failed = failure(
        post("http://customer.example/", replace(SETTINGS, webhook_timeout=timedelta(seconds=1)))
    )

    assert "no answer within 1 s" in failed.reason
    over.set()


def resolving(monkeypatch: pytest.MonkeyPatch, answers: list[list[str]]) -> list[str]:
    """Let names have these addresses, another list each time; returns what was asked for."""
    asked: list[str] = []
    left = iter(answers)

    def getaddrinfo(host: str, port: int, *_: object, **__: object) -> list[Any]:
        asked.append(host)
        return [
            (socket.AF_INET6 if ":" in it else socket.AF_INET, socket.SOCK_STREAM, 6, "", (it, port))
            for it in next(left)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


# TLS


@pytest.fixture
def trusting(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Our own authority is trusted, and no other."""
    monkeypatch.setenv("SSL_CERT_FILE", str(TLS / "authority.pem"))
    sending._tls.cache_clear()
    yield
    sending._tls.cache_clear()


@pytest.mark.usefixtures("trusting")
def test_tls_asks_for_the_name_and_not_for_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "receiver.pem")
    names: list[str | None] = []
    context.sni_callback = lambda _, name, __: names.append(name)
    resolving(monkeypatch, [["127.0.0.1"]])

    with receiving_http(tls=context) as receiver:
        delivered = post(f"https://hooks.test:{receiver.port}/")

    assert delivered == Delivered()
    assert names == ["hooks.test"]
    assert receiver.received[0].headers["host"] == f"hooks.test:{receiver.port}"


@pytest.mark.usefixtures("trusting")
def test_a_certificate_for_another_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "receiver.pem")
    resolving(monkeypatch, [["127.0.0.1"]])

    with receiving_http(tls=context) as receiver:
        failed = failure(post(f"https://impostor.test:{receiver.port}/"))

    assert "certificate" in failed.reason
    assert receiver.received == []
