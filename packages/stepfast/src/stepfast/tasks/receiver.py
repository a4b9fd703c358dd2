"""The receiver of webhooks about tasks: verify each, save what it says, answer. An ASGI application.

    app.mount("/stepfast", TaskReceiver("postgresql://…", secrets=["whsec_…"]))

It needs nothing but what Stepfast needs. A repeated webhook is answered as the first time, and saved once.

Webhooks are kept for a while, and up to a size. Whoever is allowed to send can send much: beyond that size new ones are
refused, so that none that was accepted is lost; the sender tries again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast.clock import Duration, duration, micros
from stepfast.config import Size, size, spoken_size
from stepfast.database.database import Database, persist
from stepfast.database.drivers import open_database
from stepfast.database.migrate import require_current_schema
from stepfast.database.statement import sql
from stepfast.errors import ConfigurationError, ConstraintError, DatabaseError, SignatureError
from stepfast.notifications.webhook import PREFIX, UNSIGNED, key_of, verify
from stepfast.tasks.envelope import DEFAULT_CLIENT
from stepfast.telemetry import happened, when_committed
from stepfast.telemetry.masking import storable
from stepfast.threads import in_own_thread

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction


LARGEST_BODY: Final = 512 * 1024  # twice what we send
LONGEST: Final = 200  # the widths of columns
LONGEST_WEBHOOK: Final = 128
STATUSES: Final = frozenset({"completed", "failed"})
KEEP: Final = "30d"
MOST: Final = "1GB"
PRUNING_EVERY: Final = 60.0  # seconds
MEASURING_EVERY: Final = 600.0  # seconds; and when there seems to be no room
PRUNING_BATCH: Final = 500

SAVE_WEBHOOK = sql("""
    INSERT INTO stepfast_received (id, task_id, client, task_type, status, received_at, body)
    VALUES (:id, :task_id, :client, :task_type, :status, {now}, :body)
""")
FIND_WEBHOOK = sql("SELECT 1 FROM stepfast_received WHERE id = :id")
WEBHOOKS_OF_TASK = sql("""
    SELECT id, body FROM stepfast_received
     WHERE task_id = :task_id AND client = :client ORDER BY received_at DESC, id DESC LIMIT :limit
""")

OLD_WEBHOOKS = sql("""
    SELECT id FROM stepfast_received WHERE received_at < {now} - :age ORDER BY received_at LIMIT :limit {skip_locked}
""")
FORGET_WEBHOOKS = sql("DELETE FROM stepfast_received WHERE id {any_of:ids} AND received_at < {now} - :age")
# Characters, where a database does not count bytes without reading every text: what is sent is mostly ASCII.
SIZE_OF_WEBHOOKS = sql(
    "SELECT COALESCE(SUM(LENGTH(body)), 0) FROM stepfast_received",
    postgresql="SELECT COALESCE(SUM(OCTET_LENGTH(body)), 0) FROM stepfast_received",
)


@dataclass(frozen=True)
class ReceivedEnd:
    """The end of a task, as its webhook says it."""

    webhook_id: str
    task_id: str
    client: str
    task_type: str
    status: str  # completed or failed
    result: Any
    error: Mapping[str, Any] | None
    body: str

    @staticmethod
    def read(webhook_id: str, body: bytes, fields: Mapping[str, Any]) -> ReceivedEnd:
        """Check the fields of a webhook's body; raises ValueError."""
        for name in ("task_id", "status"):
            if not isinstance(fields.get(name), str):
                raise ValueError(f"it has no {name}")  # noqa: TRY004 - of what was posted, not of an argument
        if fields["status"] not in STATUSES:
            raise ValueError(f"status {fields['status']!r:.40} is none of completed, failed")
        if not 0 < len(webhook_id) <= LONGEST_WEBHOOK or not 0 < len(fields["task_id"]) <= LONGEST:
            raise ValueError("its id, or that of its task, is empty or too long")
        if not (webhook_id.isprintable() and fields["task_id"].isprintable()):
            raise ValueError("its id, or that of its task, has characters that cannot be shown")
        error = fields.get("error")
        return ReceivedEnd(
            webhook_id=webhook_id,
            task_id=fields["task_id"],
            client=storable(str(fields.get("client_id") or DEFAULT_CLIENT))[:LONGEST],
            task_type=storable(str(fields.get("task_type", "")))[:LONGEST],
            status=fields["status"],
            result=fields.get("result"),
            error=error if isinstance(error, dict) else None,
            body=body.decode(),
        )


Saved = Callable[["Transaction", ReceivedEnd], object]


def save(tx: Transaction, end: ReceivedEnd, saved: Saved | None = None) -> bool:
    """Save a webhook, unless it came before; whether it was new."""
    if tx.rows(FIND_WEBHOOK, id=end.webhook_id):
        return False
    facts = {"task_id": end.task_id, "client": end.client, "task_type": end.task_type, "status": end.status}
    try:
        with tx.savepoint():
            tx.run(SAVE_WEBHOOK, id=end.webhook_id, body=end.body, **facts)
    except ConstraintError:
        return False  # saved at this very moment by another process
    if saved is not None:
        saved(tx, end)
    when_committed(tx, "webhook.saved", task_id=end.task_id, status=end.status)
    return True


def latest_end(tx: Transaction, task_id: str, *, client: str = DEFAULT_CLIENT) -> ReceivedEnd | None:
    """The last webhook about a task of this client; None if there is none."""
    rows = tx.rows(WEBHOOKS_OF_TASK, task_id=task_id, client=client, limit=1)
    if not rows:
        return None
    body = str(rows[0][1])
    return ReceivedEnd.read(str(rows[0][0]), body.encode(), msgspec.json.decode(body, type=dict[str, Any]))


def prune_received(tx: Transaction, age: int, limit: int) -> int:
    """Delete one batch of webhooks that were received longer than `age` ago; returns how many."""
    ids = [row[0] for row in tx.rows(OLD_WEBHOOKS, age=age, limit=limit)]
    return tx.run(FORGET_WEBHOOKS, ids=ids, age=age) if ids else 0


def secrets_of_receiver(given: Sequence[str], host: str | None = None) -> tuple[list[str], list[str]]:
    """Of the secrets in STEPFAST_WEBHOOK_SECRETS those that a receiver believes, and the hosts whose secrets it does not.

    As a worker signs: with the secrets of the receiver's host, or if it has none with those without a host. The receiver
    of another host knows the secrets of that host, and could sign for it.
    """
    of_host: dict[str, list[str]] = {}
    for text in given:
        name, found, secret = text.rpartition(f"={PREFIX}")
        of_host.setdefault(name.lower(), []).append(f"{PREFIX}{secret}" if found else text)
    own = (host or "").lower()
    believed = of_host.pop(own if own in of_host else "", [])
    return believed, sorted(of_host)


class ReceivedStore:
    """The webhooks that are kept: old ones are deleted now and then, and no more than `most` bytes are accepted."""

    def __init__(self, database: Database, keep: Duration, most: Size) -> None:
        self.most = size(most, "most")
        self._database = database
        self._age = micros(duration(keep, "keep"))
        self._size = 0  # when it was measured last, and what came since
        self._pruned = self._measured = -MEASURING_EVERY
        self._full = False
        self._lock = threading.Lock()

    def has_room(self, body: str) -> bool:
        """Whether one more is accepted. Deletes old ones and measures the rest first, if that was not done for a while."""
        with self._lock:
            now = time.monotonic()
            if now - self._pruned > PRUNING_EVERY:
                self._prune()
                late = now - self._measured > MEASURING_EVERY or self._size + len(body) > self.most
                self._size = self._measure() if late else self._size
                self._pruned, self._measured = now, now if late else self._measured
            full = self._size + len(body) > self.most
            if full and not self._full:
                happened("receiver.filled", size=self._size)
            self._full = full
            self._size += 0 if full else len(body)
            return not full

    def _prune(self) -> None:
        total = 0
        while removed := persist(self._database, lambda tx: prune_received(tx, self._age, PRUNING_BATCH)):
            total += removed
        if total:
            happened("received.pruned", webhooks=total)

    def _measure(self) -> int:
        with self._database.reading() as tx:
            return int(tx.first(SIZE_OF_WEBHOOKS))


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

_body: Final = msgspec.json.Decoder(dict[str, Any])


class TaskReceiver:
    """Takes POST at any path below it. `saved` is called in the transaction that saves: your rows and ours, or neither.

    Webhooks are deleted when they are older than `keep`; new ones are refused while all of them have the size `most`.
    """

    def __init__(
        self,
        database: str | Database,
        *,
        secrets: str | Sequence[str],
        saved: Saved | None = None,
        keep: Duration = KEEP,
        most: Size = MOST,
    ) -> None:
        self._database = open_database(database) if isinstance(database, str) else database
        self._store = ReceivedStore(self._database, keep, most)
        self._secrets = [secrets] if isinstance(secrets, str) else list(secrets)
        self._saved = saved
        self._checked = False
        if not self._secrets:
            raise ConfigurationError(
                "a receiver needs the secret that webhooks are signed with (STEPFAST_WEBHOOK_SECRETS of the worker), "
                f"or the word '{UNSIGNED}' to believe anybody"
            )
        if self._secrets != [UNSIGNED]:
            for secret in self._secrets:
                key_of(secret)  # refused here rather than with every webhook

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return  # no web sockets here
        status, text = await self._answer(scope, receive)
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", b"application/json"), (b"cache-control", b"no-store")],
            }
        )
        await send({"type": "http.response.body", "body": msgspec.json.encode({"status": text})})

    async def _answer(self, scope: Scope, receive: Receive) -> tuple[int, str]:  # noqa: PLR0911 - one per answer
        if scope["method"] in {"GET", "HEAD"} and scope["path"].rstrip("/").endswith("/healthz"):
            return 200, "ok"
        if scope["method"] != "POST":
            return 405, "only POST"
        body = await _read(receive)
        if body is None:
            return 413, f"more than {LARGEST_BODY} bytes"
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            webhook_id = self._verified(body, headers)
        except SignatureError as error:
            happened("webhook.refused", error=error)
            return 401, "not signed by us"
        try:
            end = ReceivedEnd.read(webhook_id, body, _body.decode(body))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return 400, str(error)[:300]
        try:
            new = await in_own_thread(self._save, end)
        except DatabaseError as error:
            happened("database.lost", error=error, note="a webhook was not saved; it comes again")
            return 503, "try again"
        if new is None:
            return 503, f"{spoken_size(self._store.most)} are kept already; try again later"
        return 200, "saved" if new else "saved before"

    def _verified(self, body: bytes, headers: dict[str, str]) -> str:
        if self._secrets != [UNSIGNED]:
            return verify(body, headers, self._secrets)
        webhook_id = {name.lower(): value for name, value in headers.items()}.get("webhook-id", "")
        if not webhook_id:
            raise SignatureError("the header webhook-id is missing")
        return webhook_id

    def _save(self, end: ReceivedEnd) -> bool | None:
        """Whether it was new; None if there is no room for it."""
        if not self._checked:
            require_current_schema(self._database)
            self._checked = True
        if not self._store.has_room(end.body):
            with self._database.reading() as tx:
                return False if tx.rows(FIND_WEBHOOK, id=end.webhook_id) else None
        return persist(self._database, lambda tx: save(tx, end, self._saved))


async def _read(receive: Receive) -> bytes | None:
    """The whole body; None if it is too large."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b""
        part = message.get("body", b"")
        size += len(part)
        if size > LARGEST_BODY:
            return None
        parts.append(part)
        if not message.get("more_body"):
            return b"".join(parts)


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
