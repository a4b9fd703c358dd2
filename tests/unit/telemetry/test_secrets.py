"""What looks like a secret is hidden as a whole, and nothing beside it."""

from __future__ import annotations

from typing import Any

import pytest

from stepfast.telemetry.masking import masked_document, without_data, without_secrets


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        # Quoted, to the closing quote
        ("password='a b c' and more", "password='***' and more"),
        ('password="it\'s; b, c" and more', 'password="***" and more'),
        ("{'password': 'a\\'b c', 'n': 1}", "{'password': '***', 'n': 1}"),
        (r"{\"token\": \"a b\", \"n\": 1}", r"{\"token\": \"***\", \"n\": 1}"),
        ("password='never closed\nnext line", "password='***\nnext line"),
        ("password=b'a b' c", "password=b'***' c"),
        # In brackets, however deep
        ("{'secret': {'a': 'geheim'}}", "{'secret': ***}"),
        ("{'secret': {'a': {'b': ['}', 'geheim']}}, 'n': 1}", "{'secret': ***, 'n': 1}"),
        ('{"credentials": [{"a": "b"}], "n": 1}', '{"credentials": ***, "n": 1}'),
        ("connect(password=SecretStr('a b'), n=1)", "connect(password=***, n=1)"),
        # Names
        ("passphrase=abc", "passphrase=***"),
        ("DB_PASS=abc", "DB_PASS=***"),
        ("pass: abc", "pass: ***"),
        ("credential=abc", "credential=***"),
        ("private_key=abc", "private_key=***"),
        ("password == abc", "password == ***"),
        ("bearer: abc", "bearer: ***"),
        ("Cookie: session=abc; id=def\nHost: x", "Cookie: ***\nHost: x"),
        ("cookies={'session': 'abc'} x", "cookies=*** x"),
        ("Authorization: abc", "Authorization: ***"),
        ("'Authorization': 'Bearer abc'", "'Authorization': 'Bearer ***'"),
        ("Authorization: Digest username=a, response=b", "Authorization: ***"),
        # Addresses
        ("postgresql://u:pa@ss@h/x", "postgresql://u:***@h/x"),
        ("postgresql://u:p/a?s#s@h/x", "postgresql://u:***@h/x"),
        ("https://TOKEN@github.com/a", "https://***@github.com/a"),
        ("https://0123456789abcdef:x-oauth-basic@github.com/a", "https://***@github.com/a"),
        ("https://me:pw@github.com/a", "https://me:***@github.com/a"),
        ("https://a.example/?next=amqp://u:pw@h/x", "https://a.example/?next=amqp://u:***@h/x"),
        ('{"url":"redis://:pw@h","mail":"a@b.c"}', '{"url":"redis://:***@h","mail":"a@b.c"}'),
        (
            "https://hooks.slack.com/services/T0/B0/xyz is gone",
            "https://hooks.slack.com/services/*** is gone",
        ),
        ("https://discord.com/api/webhooks/1/xyz", "https://discord.com/api/webhooks/***"),
        ("https://api.telegram.org/bot1:xyz/sendMessage", "https://api.telegram.org/bot***"),
        # By their own shape
        ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln-_X here", "got eyJ*** here"),
        ("whsec_abc+def/ghi= here", "whsec_*** here"),
        ("glpat-abcdefgh", "glpat-***"),
        (
            "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----",
            "-----BEGIN PRIVATE KEY-----***-----END PRIVATE KEY-----",
        ),
    ],
)
def test_a_secret_is_hidden_to_its_end(text: str, shown: str) -> None:
    assert without_secrets(text) == shown
    assert without_secrets(shown) == shown


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens=512, tokens: 3",
        "the secretary: Bob",
        "bypass=1 compass: 2",
        "postgresql://me@host/name",
        "ssh://git@github.com/a/b",
        "https://a.example:8080/people/a@b.c",
        "https://medium.com/@somebody",
        "a passenger, a cookie, a signature",
        "the token is missing",
    ],
)
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        ({"user": "u", "password": "correct horse"}, {"user": "u", "password": "***"}),
        ({"a": [{"apiKey": "k", "n": 1}]}, {"a": [{"apiKey": "***", "n": 1}]}),
        ({"clientSecret": {"deep": [1]}}, {"clientSecret": "***"}),
        ({"access_token": 7, "max_tokens": 512}, {"access_token": "***", "max_tokens": 512}),
        ({"has_token": True, "token": None, "secret": ""}, {"has_token": True, "token": None, "secret": ""}),
        ({"note": "password='a b'"}, {"note": "password='***'"}),
        ({"Authorization": "Bearer x", "cookie": "a=b"}, {"Authorization": "***", "cookie": "***"}),
        ({"secretary": "Bob", "key": "order-1"}, {"secretary": "Bob", "key": "order-1"}),
        (["token", 1.5, None], ["token", 1.5, None]),
    ],
)
def test_fields_of_a_document_are_hidden_by_their_names(document: Any, shown: Any) -> None:
    assert masked_document(document) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Failing row contains (1, a\nb, 2).\nCONTEXT: x", "Failing row contains (***).\nCONTEXT: x"),
        ("Key (a)=(x\ny) already exists.", "Key (a)=(***) already exists."),
        ("Duplicate entry 'x\ny' for key 'z'", "Duplicate entry '***' for key 'z'"),
        ("Duplicate entry '" + "x" * 5_000, "Duplicate entry '***"),
        ("input_value='" + "x" * 5_000 + "', input_type=str", "input_value=***, input_type=str"),
    ],
)
def test_data_that_a_library_quotes_is_hidden_also_if_it_is_long_or_has_several_lines(
    text: str, shown: str
) -> None:
    assert without_data(text) == shown
