"""Options of a MariaDB URL: each is understood or refused."""

from __future__ import annotations

import pytest

from stepfast.admin.doctor.finding import Level
from stepfast.admin.doctor.tls import judge_link
from stepfast.database.drivers import open_database
from stepfast.database.tls import Link, TlsMode, read_options
from stepfast.errors import ConfigurationError


@pytest.mark.parametrize(
    ("query", "mode"),
    [
        ("", TlsMode.PREFERRED),
        ("ssl_mode=DISABLED", TlsMode.DISABLED),
        ("ssl-mode=Preferred", TlsMode.PREFERRED),
        ("ssl_mode=REQUIRED", TlsMode.REQUIRED),
        ("ssl_mode=VERIFY_CA", TlsMode.VERIFY_CA),
        ("ssl_mode=VERIFY_IDENTITY", TlsMode.VERIFY_IDENTITY),
        ("sslmode=disable", TlsMode.DISABLED),
        ("sslmode=allow", TlsMode.PREFERRED),
        ("sslmode=prefer", TlsMode.PREFERRED),
        ("sslmode=require", TlsMode.REQUIRED),
        ("sslmode=require&sslrootcert=ca.pem", TlsMode.VERIFY_CA),
        ("sslmode=verify-ca", TlsMode.VERIFY_CA),
        ("sslmode=verify-full", TlsMode.VERIFY_IDENTITY),
        ("ssl_ca=ca.pem", TlsMode.VERIFY_CA),
        ("ssl_ca=ca.pem&ssl_verify_cert=no", TlsMode.REQUIRED),
        ("ssl_cert=me.pem&ssl_key=me.key", TlsMode.REQUIRED),
        ("ssl_verify_cert=ON", TlsMode.VERIFY_CA),
        ("ssl_verify_identity=True", TlsMode.VERIFY_IDENTITY),
        ("ssl_verify_cert=0&ssl_verify_identity=1", TlsMode.VERIFY_IDENTITY),
        ("ssl_verify_cert=off", TlsMode.PREFERRED),
        ("ssl_disabled=YES", TlsMode.DISABLED),
        ("ssl_disabled=0", TlsMode.PREFERRED),
        ("unix_socket=/run/mysqld.sock", TlsMode.DISABLED),
    ],
)
def test_the_options_of_a_url_mean_one_mode(query: str, mode: TlsMode) -> None:
    assert read_options(query, "db.example.com").mode is mode


def test_a_server_on_this_machine_is_spoken_to_in_plain_text_unless_the_url_says_otherwise() -> None:
    assert read_options("", "localhost").mode is TlsMode.DISABLED
    assert read_options("sslmode=require", "localhost").mode is TlsMode.REQUIRED


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("tls=true", r"'tls', which MariaDB URLs do not have; there are ssl_mode, ssl_ca"),
        ("ssl=true", "'ssl', which MariaDB URLs do not have"),
        ("pooler=none", "'pooler', which MariaDB URLs do not have"),
        ("ssl_mode=verify", "ssl_mode='verify': write DISABLED, .*VERIFY_IDENTITY"),
        ("sslmode=", "ssl_mode without a value"),
        ("ssl_verify_identity=", "ssl_verify_identity without a value"),
        ("ssl_verify_cert=required", "ssl_verify_cert='required': say on or off"),
        ("sslmode=require&ssl_mode=DISABLED", "ssl_mode twice"),
        ("ssl_mode=REQUIRED&ssl_verify_identity=1", "leave ssl_verify_identity out"),
        ("ssl_mode=PREFERRED&ssl_ca=ca.pem", "ssl_ca would protect nothing"),
        ("ssl_disabled=1&ssl_ca=ca.pem", "contradict"),
        ("ssl_disabled=1&ssl_verify_cert=1", "contradict"),
        ("ssl_key=me.key", "name that too"),
        ("charset=latin1", "always uses utf8mb4"),
        ("connect_timeout=soon", "whole seconds"),
    ],
)
def test_an_option_that_nothing_reads_is_refused_when_the_database_is_opened(
    query: str, sentence: str
) -> None:
    with pytest.raises(ConfigurationError, match=sentence):
        open_database(f"mysql://me@db.example.com/shop?{query}")


def test_the_value_of_an_unknown_option_is_not_shown() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        open_database("mysql://me@db.example.com/shop?passwort=hunter2")

    assert "hunter2" not in str(refusal.value)


def test_a_file_that_is_not_there_is_named() -> None:
    database = open_database("mysql://me@127.0.0.1:1/shop?ssl_ca=/missing/ca.pem")

    with pytest.raises(ConfigurationError, match=r"ssl_ca='/missing/ca.pem': cannot be read"):
        database.connect()


def test_the_doctor_warns_about_plain_text_that_leaves_the_machine() -> None:
    plain = judge_link(Link(encrypted=False, checked=False, local=False), "write sslmode=verify-full")
    unchecked = judge_link(Link(encrypted=True, checked=False, local=False), "write sslmode=verify-full")
    checked = judge_link(Link(encrypted=True, checked=True, local=False), "")

    assert (plain.level, plain.cure) == (Level.WARN, "write sslmode=verify-full")
    assert "not encrypted" in plain.found
    assert (unchecked.level, checked.level) == (Level.WARN, Level.OK)
