"""Signatures of webhooks follow Standard Webhooks; a wrong one is refused with a sentence."""

from __future__ import annotations

import base64
import hashlib
import hmac
from datetime import timedelta

import pytest

from stepfast.errors import ConfigurationError, SignatureError
from stepfast.notifications.webhook import TOLERANCE, Secrets, key_of, new_secret, sign, verify

# The example that the libraries of Standard Webhooks test themselves with.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, AT, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
HEADERS = {"webhook-id": ID, "webhook-timestamp": str(AT), "webhook-signature": SIGNATURE}


def test_the_published_example_comes_out() -> None:
    assert sign([key_of(SECRET)], ID, AT, BODY) == SIGNATURE


def test_the_published_example_comes_out_by_hand() -> None:
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    inner = hashlib.sha256(bytes(it ^ 0x36 for it in key.ljust(64, b"\0")) + f"{ID}.{AT}.".encode() + BODY)
    outer = hashlib.sha256(bytes(it ^ 0x5C for it in key.ljust(64, b"\0")) + inner.digest())

    assert "v1," + base64.b64encode(outer.digest()).decode() == SIGNATURE


@pytest.mark.parametrize("body", [BODY, BODY.decode()], ids=["bytes", "text"])
def test_a_genuine_one_is_believed(body: bytes | str) -> None:
    assert verify(body, HEADERS, SECRET, now=AT) == ID


@pytest.mark.parametrize("name", HEADERS)
def test_half_a_character_in_a_header_or_the_body_was_never_signed(name: str) -> None:
    with pytest.raises(SignatureError):
        verify(BODY, HEADERS | {name: f"{HEADERS[name]}\udc80"}, SECRET, now=AT)
    with pytest.raises(SignatureError, match="half a character"):
        verify("\udc80", HEADERS, SECRET, now=AT)


def test_names_of_headers_may_be_written_in_any_case() -> None:
    assert verify(BODY, {name.title(): it for name, it in HEADERS.items()}, SECRET, now=AT) == ID


def test_one_secret_of_several_is_enough_on_either_side() -> None:
    old, new = new_secret(), new_secret()
    both = sign([key_of(old), key_of(new)], ID, AT, BODY)

    assert verify(BODY, HEADERS | {"webhook-signature": both}, new, now=AT) == ID
    assert verify(BODY, HEADERS, [new, SECRET], now=AT) == ID
    with pytest.raises(SignatureError, match="secret of ours"):
        verify(BODY, HEADERS, [old, new], now=AT)


def test_signatures_of_versions_that_we_do_not_know_are_passed_over() -> None:
    given = {"webhook-signature": f"v1a,AAAA v2,BBBB {SIGNATURE}"}

    assert verify(BODY, HEADERS | given, SECRET, now=AT) == ID


@pytest.mark.parametrize(
    ("change", "body"),
    [
        ({}, b'{"test": 2432232315}'),
        ({"webhook-id": "msg_other"}, BODY),
        ({"webhook-timestamp": str(AT + 1)}, BODY),
        ({"webhook-signature": "v1,"}, BODY),
        ({"webhook-signature": ""}, BODY),
        ({"webhook-signature": SIGNATURE.removeprefix("v1,")}, BODY),
        ({"webhook-signature": f"v2,{SIGNATURE.removeprefix('v1,')}"}, BODY),
    ],
)
def test_anything_changed_is_not_believed(change: dict[str, str], body: bytes) -> None:
    with pytest.raises(SignatureError, match="none of its signatures"):
        verify(body, HEADERS | change, SECRET, now=AT)


@pytest.mark.parametrize("away", [-301, 301])
def test_what_is_old_or_of_the_future_is_not_believed(away: int) -> None:
    assert timedelta(minutes=5) == TOLERANCE
    verify(BODY, HEADERS, SECRET, now=AT + away - (away > 0) + (away < 0))

    with pytest.raises(SignatureError, match="301 s away"):
        verify(BODY, HEADERS, SECRET, now=AT + away)


@pytest.mark.parametrize("missing", list(HEADERS))
def test_a_missing_header_is_named(missing: str) -> None:
    with pytest.raises(SignatureError, match=missing):
        verify(BODY, {name: it for name, it in HEADERS.items() if name != missing}, SECRET, now=AT)


@pytest.mark.parametrize("stamp", ["", "now", "-1614265330", "1614265330.5", "²", "9" * 20])
def test_a_timestamp_is_a_number(stamp: str) -> None:
    with pytest.raises(SignatureError, match="no number of seconds"):
        verify(BODY, HEADERS | {"webhook-timestamp": stamp}, SECRET, now=AT)


def test_comparing_takes_as_long_for_a_near_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(ours: bytes, theirs: bytes) -> bool:
        compared.append((ours, theirs))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    with pytest.raises(SignatureError):
        verify(BODY, HEADERS | {"webhook-signature": f"{SIGNATURE} {SIGNATURE}"}, [SECRET, SECRET], now=AT)

    assert len(compared) == 4  # every pair, by the function that takes its time


def test_a_new_secret_is_one() -> None:
    assert len(key_of(new_secret())) == 32
    assert new_secret() != new_secret()


@pytest.mark.parametrize(
    "secret",
    ["whsec_", "whsec_c2hvcnQ=", "whsec_!!!", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "whsec_" + "A" * 200],
)
def test_what_is_no_secret_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        key_of(secret)

    assert secret.removeprefix("whsec_") not in str(refused.value) or not secret.removeprefix("whsec_")


def test_a_host_has_its_own_secrets_or_those_of_all() -> None:
    secrets = Secrets.read([SECRET, f"Hooks.Example={new_secret()}"])

    assert secrets.for_host("other.example") == (key_of(SECRET),)
    assert secrets.for_host("hooks.example") != (key_of(SECRET),)
    assert len(secrets.for_host("hooks.example")) == 1


def test_no_secret_is_a_refusal_unless_somebody_asked_for_it() -> None:
    with pytest.raises(ConfigurationError, match="STEPFAST_WEBHOOK_SECRETS"):
        Secrets.read([]).for_host("hooks.example")

    assert Secrets.read(["none"]).for_host("hooks.example") == ()
