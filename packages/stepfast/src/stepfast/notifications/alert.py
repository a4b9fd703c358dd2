"""Send an alert once, by Apprise: e-mail (SMTP, Resend), Slack, and a hundred others.

Where alerts go is configuration, and full of secrets. So a message only holds the name of its place: the URL with
everything that Apprise takes for private left out.
"""

from __future__ import annotations

import logging
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import unquote, urlsplit

from stepfast.errors import ConfigurationError, install_hint
from stepfast.notifications.webhook import Delivered, Delivery, Failed, Patience
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from collections.abc import Mapping


Severity = Literal["info", "warning", "failure"]
SEVERITIES: Final = ("info", "warning", "failure")
LONGEST_REASON: Final = 300
LONGEST_NAME: Final = 150
SHORTEST_SECRET: Final = 4  # a shorter word of a URL is no secret, and would black out half the text


@dataclass(frozen=True)
class AlertText:
    """The text of an alert, as a person reads it."""

    title: str
    body: str
    severity: str


def places(urls: Sequence[str]) -> list[str]:
    """The names of the places where alerts go, fit to be stored and shown; raises if Apprise cannot read a URL."""
    return list(_plugins(tuple(urls)))


def send(place: str, text: AlertText, urls: Sequence[str]) -> Delivery:
    """Send an alert once. Everything that may go wrong is an answer, not an exception."""
    try:
        plugin = _plugins(tuple(urls)).get(place)
    except ConfigurationError as error:
        return Failed(str(error), Patience.FREE)
    if plugin is None:
        return Failed("this place is not among STEPFAST_ALERT_URLS of the worker that tried", Patience.FREE)
    with _listening() as said:
        try:
            sent = bool(
                plugin.notify(title=text.title, body=text.body, notify_type=text.severity, body_format="text")
            )
        except Exception as error:  # noqa: BLE001 - of a hundred plug-ins, any may raise anything
            said.append(f"{type(error).__name__}: {error}")
            sent = False
    if sent:
        return Delivered()
    reason = _without(" / ".join(said) or "the service did not take it", urls)
    return Failed(reason[:LONGEST_REASON])


@lru_cache(maxsize=4)  # one set of URLs per process; reading them loads the plug-ins
def _plugins(urls: tuple[str, ...]) -> Mapping[str, Any]:
    if not urls:
        return {}
    try:
        from apprise import Apprise
    except ImportError as missing:
        raise ConfigurationError(f"alerts need an extra: {install_hint('alerts')}") from missing

    found: dict[str, Any] = {}
    for number, url in enumerate(urls, 1):
        # It would log what it cannot read, passwords included; and its plug-ins use modules that Python will drop.
        with _listening(), warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            plugin: Any = Apprise.instantiate(url, suppress_exceptions=True)
        if plugin is None:
            scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*(?=://)", url)
            raise ConfigurationError(
                f"STEPFAST_ALERT_URLS: number {number} ({scheme[0] if scheme else 'no scheme'}://…) is no URL that Apprise can read"
            )
        name = _name(plugin.url(privacy=True))
        same = sum(it == name or it.startswith(f"{name} #") for it in found)
        found[f"{name} #{same + 1}" if same else name] = plugin
    return found


def _name(private: str) -> str:
    """Scheme and host of a URL from which Apprise took the secrets: a path may be one, too."""
    parts = urlsplit(private)
    return f"{parts.scheme}://{parts.netloc}"[:LONGEST_NAME]


@contextmanager
def _listening() -> Iterator[list[str]]:
    """Catch what Apprise logs in this thread: reasons are only in its log, and must not reach ours unmasked."""
    said: list[str] = []
    thread = threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        if record.thread != thread:
            return True
        if record.levelno >= logging.WARNING:
            said.append(record.getMessage())
        return False

    log = logging.getLogger("apprise")
    requests_log = logging.getLogger("urllib3")  # at debug level it writes paths, and some of them are tokens
    log.addFilter(keep)
    if requests_log.level == logging.NOTSET:
        requests_log.setLevel(logging.INFO)
    try:
        yield said
    finally:
        log.removeFilter(keep)


def _without(text: str, urls: Sequence[str]) -> str:
    """The text without any word of the URLs that their names do not show."""
    shown = " ".join(places(urls))
    for url in urls:
        for word in re.split(r"[:/@?&=,;#]+", url):
            for form in {word, unquote(word)}:
                if len(form) >= SHORTEST_SECRET and form not in shown:
                    text = text.replace(form, "***")
    return without_secrets(" ".join(text.split()))
