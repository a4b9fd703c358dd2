"""`app.callbacks`: signed addresses, and the small ASGI application that receives what is posted to them.

    application.mount("/callbacks", stepfast.callbacks.asgi(app))

It needs no further package. A callback that is posted twice is answered twice, and the event is sent once.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast.clock import Duration, duration
from stepfast.database.lending import within
from stepfast.database.statement import sql
from stepfast.errors import DatabaseError, PermanentError, SignatureError
from stepfast.jobs import callbacks
from stepfast.jobs.events import REMEMBERED, SCOPE, SendEvent
from stepfast.jobs.keys import prolong_key
from stepfast.results.enqueued_job import EnqueuedJob
from stepfast.telemetry import happened

if TYPE_CHECKING:
    from stepfast.app_protocol import WholeApp
    from stepfast.database.connection import Transaction
    from stepfast.database.database import Database


MOST_BYTES: Final = 256 * 1024
Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

CALLBACK_TIME = sql("SELECT {now}")


class Received(StrEnum):
    """The answer to a callback."""

    ACCEPTED = "accepted"
    REPEATED = "received before"  # as good as accepted: the sender may stop
    EXPIRED = "expired"


class Callbacks:
    """Makes the addresses, and takes what is posted to them."""

    def __init__(self, database: Database, *, encrypted: bool = False) -> None:
        self._database = database
        self._encrypted = encrypted

    def sign(self, event: str | EnqueuedJob[Any], *, expires: Duration = "1d") -> str:
        """A token that sends this event once; of a job: the event `job:<its id>`."""
        return callbacks.sign(_name(event), duration(expires, "expires"))

    def url(self, event: str | EnqueuedJob[Any], *, expires: Duration = "1d") -> str:
        """The address that sends it: STEPFAST_CALLBACK_URL and the token."""
        return callbacks.url_of(_name(event), duration(expires, "expires"))

    def receive(self, token: str, payload: Any = None) -> Received:
        """Send the event of this token; raises `SignatureError` if it is none of ours.

        Its use is remembered for longer than it lasts, and than a token lasts that another try of the same step signed.
        """
        claim = callbacks.read(token)
        used = _single_use_id(claim.event, token)
        event = SendEvent.of(claim.event, payload, "30d", used, encrypted=self._encrypted)

        def take(tx: Transaction) -> Received:
            if (left := claim.until - int(tx.first(CALLBACK_TIME))) <= 0:
                return Received.EXPIRED
            remembered = REMEMBERED + max(left, claim.lasts)
            if not replace(event, remembered=remembered).send(tx).repeated:
                return Received.ACCEPTED
            # Of the addresses that one step handed out, this may last longer than the one that was used.
            prolong_key(tx, SCOPE, used, remembered)
            return Received.REPEATED

        answer = within(self._database, None, take)
        happened("callback.received", answer=answer.value)
        return answer


def _single_use_id(event: str, token: str) -> str:
    """The id under which this callback is remembered as used: that of its step, or else of the token."""
    if event.startswith("callback:"):
        return event
    return f"callback:{hashlib.sha256(token.partition('.')[0].encode()).hexdigest()}"


def _name(event: str | EnqueuedJob[Any]) -> str:
    return f"job:{event.id}" if isinstance(event, EnqueuedJob) else event


def asgi(
    app: WholeApp, *, most_bytes: int = MOST_BYTES
) -> Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]:
    """An ASGI application that takes POSTs at `…/<token>`, with a body of JSON or none."""

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _serve_lifespan(receive, send)
        elif scope["type"] == "http":
            status, sentence = await _answer(app, scope, receive, most_bytes)
            await _respond(send, status, sentence)

    return application


class _RefusedError(Exception):
    """A request that cannot be taken: its status and a sentence."""


async def _answer(app: WholeApp, scope: Scope, receive: Receive, most: int) -> tuple[int, str]:
    try:
        token, payload = await _read_request(scope, receive, most)
        received = await asyncio.to_thread(lambda: app.callbacks.receive(token, payload))
    except _RefusedError as refused:
        status, sentence = refused.args
        return status, sentence
    except SignatureError:
        return 404, "there is no such callback"  # a guess learns nothing
    except PermanentError:
        return 400, "the body cannot be stored"
    except DatabaseError:
        return 503, "not now; send it again"
    return (410 if received is Received.EXPIRED else 200), received.value


async def _read_request(scope: Scope, receive: Receive, most: int) -> tuple[str, Any]:
    """The token and the payload of a request."""
    if scope["method"] != "POST":
        raise _RefusedError(405, "post to this address")
    token = str(scope["path"]).rstrip("/").rpartition("/")[2]
    callbacks.read(token)  # a body is read only for a token of ours
    body = await _body(receive, most)
    try:
        payload = msgspec.json.decode(body) if body.strip() else None
    except RecursionError:
        raise _RefusedError(400, "the body is nested too deeply") from None
    except ValueError:
        raise _RefusedError(400, "the body is no JSON") from None
    return token, payload


async def _body(receive: Receive, most: int) -> bytes:
    """The body of a request. One that is too large is refused before it is all here, and half of one is not taken."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise _RefusedError(400, "the body is not complete")
        parts.append(message.get("body", b""))
        if sum(map(len, parts)) > most:
            raise _RefusedError(413, f"the body takes more than {most} bytes")
        if not message.get("more_body", False):
            return b"".join(parts)


async def _respond(send: Send, status: int, sentence: str) -> None:
    body = msgspec.json.encode({"status": sentence})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"cache-control", b"no-store"),
    ]
    if status == 405:  # noqa: PLR2004 - as HTTP counts
        headers.append((b"allow", b"POST"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _serve_lifespan(receive: Receive, send: Send) -> None:
    """Answer the server's start and stop: there is nothing to open or to close here."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
