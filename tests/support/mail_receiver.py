"""A real SMTP server on loopback that keeps what it gets, or refuses it."""

from __future__ import annotations

import asyncio
import email
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import EmailMessage
from email.policy import default
from typing import Any

from aiosmtpd.smtp import SMTP, AuthResult, Envelope, Session
from apprise.plugins.base import NotifyBase

PASSWORD = "hunter2-of-the-mailbox"


class MailReceiver:
    """Keeps mails in the order of arrival; `refuse` makes it answer with an error."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.passwords: list[str] = []
        self.refuse = False
        self.port = 0

    @property
    def url(self) -> str:
        """Where alerts go, as Apprise writes it."""
        return (
            f"mailto://ops:{PASSWORD}@127.0.0.1:{self.port}"
            "?smtp=127.0.0.1&from=stepfast@shop.example&to=ops@shop.example"
        )

    @property
    def subjects(self) -> list[str]:
        return [str(it["subject"]) for it in self.mails]

    def text(self, number: int = -1) -> str:
        part = self.mails[number].get_body(("plain", "html"))
        assert part is not None
        return str(part.get_content())

    async def handle_DATA(self, _server: SMTP, _session: Session, envelope: Envelope) -> str:  # noqa: N802 - its name there
        if self.refuse:
            return "451 out of order"
        assert isinstance(envelope.content, bytes)
        mail = email.message_from_bytes(envelope.content, policy=default)
        assert isinstance(mail, EmailMessage)
        self.mails.append(mail)
        return "250 kept"

    def authenticate(self, *arguments: Any) -> AuthResult:
        self.passwords.append(arguments[-1].password.decode())
        return AuthResult(success=True)


@contextmanager
def receiving_mail() -> Iterator[MailReceiver]:
    NotifyBase.request_rate_per_sec = 0  # else Apprise rests for 5.5 s between two mails, as a courtesy
    box = MailReceiver()
    loop = asyncio.new_event_loop()

    def session() -> SMTP:
        return SMTP(box, authenticator=box.authenticate, auth_require_tls=False, loop=loop)

    server = loop.run_until_complete(loop.create_server(session, "127.0.0.1", 0))
    box.port = server.sockets[0].getsockname()[1]
    thread = threading.Thread(target=loop.run_forever, name="mailbox", daemon=True)
    thread.start()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Session.login_data is deprecated")  # its own business
            yield box
    finally:
        loop.call_soon_threadsafe(server.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
