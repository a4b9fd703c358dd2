"""Settings of notifications: read from the environment, refused with a sentence, silent about secrets."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from stepfast.errors import ConfigurationError
from stepfast.notifications.settings import NotificationSettings, from_environment
from stepfast.notifications.webhook import new_secret


def test_an_empty_environment_means_the_defaults() -> None:
    assert from_environment({}) == NotificationSettings()
    assert from_environment({"STEPFAST_ALERT_URLS": "  "}) == NotificationSettings()


def test_every_setting_has_a_variable() -> None:
    one, two = new_secret(), new_secret()

    found = from_environment(
        {
            "STEPFAST_WEBHOOK_SECRETS": f"{one} hooks.example={two}",
            "STEPFAST_WEBHOOK_ALLOW": "hooks.internal,10.0.0.0/8",
            "STEPFAST_WEBHOOK_TIMEOUT": "5",
            "STEPFAST_ALERT_URLS": "mailto://u:p@host?to=a@b.example,c@d.example slack://A/B/C,json://x",
            "STEPFAST_ALERT_COOLDOWN": "10m",
            "STEPFAST_ALERT_DEATHS": "off",
            "STEPFAST_OUTBOX_RELAY": "no",
            "STEPFAST_OUTBOX_ATTEMPTS": "3",
            "STEPFAST_OUTBOX_AGE": "1d",
            "STEPFAST_OUTBOX_RETENTION": "2h",
        }
    )

    assert found == NotificationSettings(
        webhook_secrets=(one, f"hooks.example={two}"),
        webhook_allow=("hooks.internal", "10.0.0.0/8"),
        webhook_timeout=timedelta(seconds=5),
        alert_urls=("mailto://u:p@host?to=a@b.example,c@d.example", "slack://A/B/C", "json://x"),
        alert_cooldown=timedelta(minutes=10),
        alert_deaths=False,
        outbox_relay=False,
        outbox_attempts=3,
        outbox_age=timedelta(days=1),
        outbox_retention=timedelta(hours=2),
    )


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("STEPFAST_ALERT_DEATHS", "perhaps", "on or off"),
        ("STEPFAST_OUTBOX_ATTEMPTS", "many", "whole number"),
        ("STEPFAST_OUTBOX_ATTEMPTS", "0", "between 1 and 1000"),
        ("STEPFAST_WEBHOOK_TIMEOUT", "1h", "=1:00:00: must lie between 1s and 30s"),
        ("STEPFAST_WEBHOOK_TIMEOUT", "soon", "STEPFAST_WEBHOOK_TIMEOUT"),
        ("STEPFAST_WEBHOOK_ALLOW", "10.0.0.1/8", "10.0.0.1/8"),
        ("STEPFAST_WEBHOOK_SECRETS", "whsec_c2VjcmV0LXRoYXQtaXMtc2hvcnQ=x", "base64"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(name: str, text: str, word: str) -> None:
    with pytest.raises(ConfigurationError, match=word) as refused:
        from_environment({name: text})

    assert str(refused.value).startswith(name)
    assert "whsec_c2" not in str(refused.value)


def test_one_text_instead_of_a_list_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a list of texts"):
        NotificationSettings(webhook_allow="10.0.0.0/8")  # type: ignore[arg-type]


def test_secrets_are_not_shown() -> None:
    settings = NotificationSettings(webhook_secrets=(new_secret(),), alert_urls=("slack://A/B/C",))

    assert "whsec_" not in repr(settings)
    assert "slack" not in repr(settings)


def test_a_program_may_say_durations_as_the_environment_does() -> None:
    said: dict[str, Any] = {
        "webhook_timeout": "10s",
        "alert_cooldown": 600,
        "outbox_age": "3d",
        "webhook_allow": ["10.0.0.0/8"],
    }

    settings = NotificationSettings(**said)

    assert (settings.webhook_timeout, settings.alert_cooldown) == (
        timedelta(seconds=10),
        timedelta(minutes=10),
    )
    assert (settings.outbox_age, settings.webhook_allow) == (timedelta(days=3), ("10.0.0.0/8",))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("webhook_timeout", "soon"),
        ("outbox_attempts", "x"),
        ("outbox_attempts", True),
        ("webhook_allow", ["*"]),
    ],
)
def test_what_a_program_cannot_mean_is_refused_in_words(name: str, value: object) -> None:
    said: dict[str, Any] = {name: value}

    with pytest.raises(ConfigurationError, match=name):
        NotificationSettings(**said)
