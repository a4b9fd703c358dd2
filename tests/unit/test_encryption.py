"""Encrypted texts open with their key and for their purpose only."""

from __future__ import annotations

import json
import re
import secrets
import sys
from collections.abc import Callable

import pytest

from stepfast.encryption import Keyring, is_sealed, key_id, opened, split
from stepfast.errors import ConfigurationError, PlainTextError, SealedError, TransientError, install_hint

OLD, NEW = "the old key that nobody can guess: 40+", "the new key that nobody can guess: 40+"


def test_a_sealed_text_is_a_document_that_names_its_key_and_nothing_else() -> None:
    sealed = Keyring([OLD]).seal('{"card": 4111}', "payload of x")

    document = json.loads(sealed)
    assert document["stepfast.sealed"] == f"1.{key_id(OLD)}"
    assert is_sealed(sealed)
    assert "4111" not in sealed
    assert OLD not in sealed
    assert Keyring([OLD]).open(sealed, "payload of x") == '{"card": 4111}'


def test_the_same_text_is_sealed_differently_each_time() -> None:
    keys = Keyring([OLD])

    assert len({keys.seal("x", "p") for _ in range(100)}) == 100


def test_the_first_key_seals_and_all_open() -> None:
    before = Keyring([OLD]).seal("x", "p")
    rotating = Keyring([NEW, OLD])

    assert rotating.open(before, "p") == "x"
    after = rotating.reencrypt(before, "p")
    assert Keyring([NEW]).open(after, "p") == "x"
    assert rotating.reencrypt(after, "p") == after


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda it: it.replace('"text":"', '"text":"AAAA'), "changed"),
        (lambda it: it[:-6] + '"}', "damaged|changed"),
        (lambda it: it.replace("1.", "3."), "newer version"),
        (lambda it: it.replace("1.", "2."), "it was changed"),
        (lambda it: it.replace(key_id(OLD), "00000000"), "needs key 00000000"),
        (lambda _: '{"stepfast.sealed":"1.x"}', "damaged"),
    ],
)
def test_what_was_changed_does_not_open(spoil: Callable[[str], str], why: str) -> None:
    sealed = spoil(Keyring([OLD]).seal("x", "p"))

    with pytest.raises(SealedError, match=why):
        Keyring([OLD]).open(sealed, "p")


def test_it_opens_for_its_purpose_only() -> None:
    keys = Keyring([OLD])

    with pytest.raises(SealedError, match="not what it is taken for"):
        keys.open(keys.seal("x", "payload of a"), "payload of b")


@pytest.mark.parametrize("given", ["", " , ", "short", f"{OLD},short"])
def test_keys_that_can_be_guessed_are_refused(given: str) -> None:
    with pytest.raises(ConfigurationError, match="at least 32"):
        Keyring(split(given))


@pytest.mark.parametrize(
    "weak",
    [
        "a" * 40,
        "ab" * 20,
        "password" * 5,
        "0123456789" * 4,
        "1111222233334444" * 3,
        "abcdefghijklmno" * 3 + "abc",
    ],
)
def test_keys_that_repeat_a_few_characters_are_refused(weak: str) -> None:
    with pytest.raises(ConfigurationError, match="repeats a few characters") as refusal:
        Keyring([OLD, weak])

    assert weak not in str(refusal.value)


def test_random_keys_are_good() -> None:
    for make in (secrets.token_hex, secrets.token_urlsafe):
        for _ in range(200):
            Keyring([make(24)])


def test_it_opens_for_its_owner_only() -> None:
    keys = Keyring([OLD])
    sealed = keys.seal("x", "payload of a", "job-1")

    assert json.loads(sealed)["stepfast.sealed"] == f"2.{key_id(OLD)}"
    assert keys.open(sealed, "payload of a", "job-1") == "x"
    for spoiled, purpose, owner in (
        (sealed, "payload of a", "job-2"),
        (sealed, "payload of a", None),
        (sealed, "payload of b", "job-1"),
        (sealed.replace("2.", "1."), "payload of a", "job-1"),
    ):
        with pytest.raises(SealedError, match="not what it is taken for"):
            keys.open(spoiled, purpose, owner)


def test_a_document_of_before_opens_and_gets_an_owner_when_it_is_reencrypted() -> None:
    keys = Keyring([OLD])
    before = keys.seal("x", "payload of a")

    assert keys.open(before, "payload of a", "job-1") == "x"
    after = keys.reencrypt(before, "payload of a", "job-1")
    assert after != before
    assert keys.reencrypt(after, "payload of a", "job-1") == after
    with pytest.raises(SealedError):
        keys.open(after, "payload of a", "job-2")


def test_plain_text_is_refused_where_only_sealed_text_is_wanted() -> None:
    with pytest.raises(PlainTextError, match="payload of a is stored in plain text"):
        opened("plain", "payload of a", "job-1", plain=False)


def test_without_a_key_what_is_sealed_can_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = Keyring([OLD]).seal("x", "p")
    monkeypatch.delenv("STEPFAST_SECRET_KEY", raising=False)

    assert opened("plain", "p") == "plain"
    with pytest.raises(TransientError, match="STEPFAST_SECRET_KEY is not set"):
        opened(sealed, "p")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)

    with pytest.raises(ConfigurationError, match=re.escape(install_hint("encryption"))):
        Keyring([OLD]).seal("x", "p")


def test_a_signature_is_for_its_text_its_purpose_and_its_keys() -> None:
    signature = Keyring([OLD]).sign("x", "callback")

    assert Keyring([NEW, OLD]).signed("x", signature, "callback")
    assert not Keyring([OLD]).signed("y", signature, "callback")
    assert not Keyring([OLD]).signed("x", signature, "other")
    assert not Keyring([NEW]).signed("x", signature, "callback")
