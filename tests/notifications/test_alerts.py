"""One attempt to deliver an alert, against real servers, without a secret in any message."""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys
import threading

import pytest

from stepfast.errors import ConfigurationError, install_hint
from stepfast.notifications.alert import AlertText, places, send
from stepfast.notifications.webhook import Delivered, Delivery, Failed
from tests.support.http_receiver import Answer, HttpReceiver
from tests.support.mail_receiver import PASSWORD, receiving_mail

TEXT = AlertText("Consolidation skipped", "Run r-7 failed.\n\n3 of 12 workers.", "failure")


def first(*urls: str) -> Delivery:
    return send(places(urls)[0], TEXT, urls)


def test_a_mail_arrives_with_its_lines() -> None:
    with receiving_mail() as box:
        assert first(box.url) == Delivered()

    assert box.subjects == ["Consolidation skipped"]
    assert box.text().splitlines()[:3] == ["Run r-7 failed.", "", "3 of 12 workers."]
    assert box.mails[0]["to"] == "ops@shop.example"
    assert box.passwords == [PASSWORD]


def test_a_mail_that_is_refused_is_a_failure_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with receiving_mail() as box:
        box.refuse = True
        refused = first(box.url)
    nobody = first(box.url)

    assert isinstance(refused, Failed)
    assert "Sending email" in refused.reason
    assert isinstance(nobody, Failed)
    assert "Connection error" in nobody.reason
    assert PASSWORD not in refused.reason + nobody.reason + caplog.text


def test_resend_gets_the_key_and_nobody_else_does(
    receiver: HttpReceiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG)
    url = "resend://re_hunter2hunter2:stepfast@shop.example/ops@shop.example"
    (name,) = places([url])
    plugin = importlib.import_module("apprise.plugins.resend").NotifyResend
    monkeypatch.setattr(plugin, "notify_url", receiver.url("/emails/re_hunter2hunter2"))

    receiver.answer = lambda _: Answer(200)
    delivered = send(name, TEXT, [url])
    receiver.answer = lambda _: Answer(401, b"bad key re_hunter2hunter2")
    failed = send(name, TEXT, [url])

    assert delivered == Delivered()
    assert "hunter2" in receiver.received[0].headers["authorization"]
    assert receiver.received[0].json["subject"] == TEXT.title
    assert isinstance(failed, Failed)
    told = name + failed.reason + caplog.text + json.dumps([vars(it) for it in caplog.records], default=str)
    assert "hunter2" not in told


def test_a_slack_hook_is_masked_although_it_is_all_path(receiver: HttpReceiver) -> None:
    url = f"json://127.0.0.1:{receiver.port}/T0SECRET/B0SECRET"

    assert places([url]) == [f"json://127.0.0.1:{receiver.port}"]
    assert first(url) == Delivered()
    assert receiver.received[0].path == "/T0SECRET/B0SECRET"
    assert places(["slack://T0SECRETA/B0SECRETB/C0SECRETCCCCCCCCCCCCCCCCC/#ops"])[0].count("SECRET") == 0


def test_places_that_look_alike_are_numbered() -> None:
    urls = [f"json://ops:{it}@hooks.example" for it in ("one-secret", "other-secret")]

    assert places(urls) == ["json://ops:****@hooks.example", "json://ops:****@hooks.example #2"]


def test_a_place_that_is_no_longer_configured_is_a_failure() -> None:
    failed = send("json://gone.example", TEXT, ["json://here.example"])

    assert isinstance(failed, Failed)
    assert "not among STEPFAST_ALERT_URLS" in failed.reason


@pytest.mark.parametrize("url", ["nonsense://hunter2", "mailto://", "hunter2"])
def test_a_url_that_apprise_cannot_read_is_refused_and_not_repeated(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    with pytest.raises(ConfigurationError, match=r"number 2 .* is no URL that Apprise can read") as refused:
        places(["json://fine.example", url])

    assert "hunter2" not in str(refused.value) + caplog.text


def test_a_plug_in_that_raises_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "json://ops:hunter2@hooks.example"
    (name,) = places([url])
    plugin = importlib.import_module("apprise.plugins.custom_json").NotifyJSON

    def burst(*_: object, **__: object) -> None:
        raise RuntimeError("cannot post to json://ops:hunter2@hooks.example")

    monkeypatch.setattr(plugin, "send", burst)

    failed = send(name, TEXT, [url])

    assert isinstance(failed, Failed)
    assert "RuntimeError" in failed.reason
    assert "hunter2" not in failed.reason


def test_what_others_say_by_apprise_is_left_to_them(
    receiver: HttpReceiver, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    log = logging.getLogger("apprise")

    def speak() -> None:
        thread = threading.Thread(target=log.warning, args=("said by the program itself",))
        thread.start()
        thread.join()

    receiver.answer = lambda _: Answer(before=speak)

    assert first(f"json://127.0.0.1:{receiver.port}") == Delivered()
    assert [it.getMessage() for it in caplog.records if it.name == "apprise"] == [
        "said by the program itself"
    ]


def test_without_the_extra_the_sentence_names_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apprise", None)

    with pytest.raises(ConfigurationError, match=re.escape(install_hint("alerts"))):
        places(["json://never-asked-before.example"])
