"""The task receiver accepts only signed webhooks, and saves each once."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from stepfast.errors import ConfigurationError
from stepfast.notifications.webhook import key_of, sign
from stepfast.tasks import receiver as task_receiver
from stepfast.tasks.receiver import LARGEST_BODY, TaskReceiver, latest_end, secrets_of_receiver
from tests.support import rows
from tests.support.events import hearing, named
from tests.support.http_receiver import SECRET

if TYPE_CHECKING:
    from stepfast import Stepfast
    from stepfast.database.connection import Transaction
    from stepfast.tasks.receiver import ReceivedEnd

TOLD = {
    "task_id": "t-1",
    "status": "completed",
    "result": {"n": 1},
    "client_id": "south",
    "task_type": "ingest",
}


def post(
    receiver: TaskReceiver,
    body: bytes | dict[str, Any],
    *,
    webhook_id: str = "w-1",
    secret: str | None = SECRET,
    method: str = "POST",
    path: str = "/",
) -> tuple[int, Any]:
    """What a server would hand on, in two parts."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    stamp = int(time.time())
    headers = {"webhook-id": webhook_id, "webhook-timestamp": str(stamp)}
    if secret is not None:
        headers["webhook-signature"] = sign([key_of(secret)], webhook_id, stamp, data)
    parts = [
        {"type": "http.request", "body": data[:10], "more_body": True},
        {"type": "http.request", "body": data[10:], "more_body": False},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    asyncio.run(receiver(scope, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])["status"]


@pytest.fixture
def receiver(app: Stepfast) -> TaskReceiver:
    return TaskReceiver(app.database, secrets=[SECRET])


def saved(app: Stepfast) -> list[tuple[str, str]]:
    found = rows.query(app, "SELECT task_id, status FROM stepfast_received ORDER BY id")
    return [(row["task_id"], row["status"]) for row in found]


def test_a_webhook_is_saved_once_however_often_it_comes(app: Stepfast, receiver: TaskReceiver) -> None:
    assert post(receiver, TOLD) == (200, "saved")
    assert post(receiver, TOLD) == (200, "saved before")

    assert saved(app) == [("t-1", "completed")]


def test_each_end_of_a_task_is_saved_and_the_latest_counts(app: Stepfast, receiver: TaskReceiver) -> None:
    failed = {"status": "failed", "error": {"type": "ValueError", "message": "no"}}
    post(receiver, TOLD | failed, webhook_id="w-1")
    rows.change(app, "UPDATE stepfast_received SET received_at = 1")
    post(receiver, TOLD, webhook_id="w-2")
    post(receiver, {"task_id": "t-1"} | failed, webhook_id="w-3")  # of nobody in particular

    with app.reading() as tx:
        found, default = latest_end(tx, "t-1", client="south"), latest_end(tx, "t-1")
        assert latest_end(tx, "t-2", client="south") is None
        assert latest_end(tx, "t-1", client="north") is None
    assert found is not None
    assert (found.status, found.result, found.webhook_id) == ("completed", {"n": 1}, "w-2")
    assert default is not None
    assert (default.client, default.status) == ("default", "failed")


@pytest.mark.parametrize("secret", [None, "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"])
def test_who_does_not_know_the_secret_is_not_believed(
    app: Stepfast, receiver: TaskReceiver, secret: str | None
) -> None:
    assert post(receiver, TOLD, secret=secret)[0] == 401

    assert saved(app) == []


def test_a_receiver_may_believe_anybody_if_it_is_told_so(app: Stepfast) -> None:
    receiver = TaskReceiver(app.database, secrets="none")

    assert post(receiver, TOLD, secret=None) == (200, "saved")
    with pytest.raises(ConfigurationError, match="needs the secret"):
        TaskReceiver(app.database, secrets=[])
    with pytest.raises(ConfigurationError, match="webhook secret"):
        TaskReceiver(app.database, secrets="hunter2")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"nonsense", 400),
        (b"[1]", 400),
        (b"{}", 400),
        (b'{"task_id": 1, "status": "completed"}', 400),
        (b'{"task_id": "", "status": "completed"}', 400),
        (b'{"task_id": "a\\u0000b", "status": "completed"}', 400),
        (b'{"task_id": "1", "status": "perhaps"}', 400),
        (b"\xff\xfe", 400),
        (b"x" * (LARGEST_BODY + 1), 413),
    ],
    ids=["words", "list", "empty", "number", "no-id", "nul", "status", "bytes", "large"],
)
def test_what_says_nothing_of_a_task_is_refused(
    app: Stepfast, receiver: TaskReceiver, body: bytes, code: int
) -> None:
    assert post(receiver, body)[0] == code

    assert saved(app) == []


def test_a_webhook_without_an_id_is_refused(app: Stepfast, receiver: TaskReceiver) -> None:
    assert post(receiver, TOLD, webhook_id="")[0] == 400

    assert saved(app) == []


def test_names_that_no_database_takes_are_spelled_out(receiver: TaskReceiver) -> None:
    assert post(receiver, TOLD | {"client_id": "a\0", "task_type": "b\0"}) == (200, "saved")


def test_only_posts_are_taken_and_a_look_tells_that_it_lives(receiver: TaskReceiver) -> None:
    assert post(receiver, b"", method="GET")[0] == 405
    assert post(receiver, b"", method="GET", path="/api/healthz") == (200, "ok")


@pytest.mark.usefixtures("ledger")
def test_rows_of_the_frontend_are_written_with_ours_or_not_at_all(app: Stepfast) -> None:
    def book(tx: Transaction, end: ReceivedEnd) -> None:
        tx.execute(
            "INSERT INTO ledger (id, amount) VALUES (:id, :n)", {"id": end.task_id, "n": end.result["n"]}
        )

    def fail(_: Transaction, __: ReceivedEnd) -> None:
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        post(TaskReceiver(app.database, secrets=SECRET, saved=fail), TOLD)
    assert saved(app) == []

    post(TaskReceiver(app.database, secrets=SECRET, saved=book), TOLD)
    post(TaskReceiver(app.database, secrets=SECRET, saved=book), TOLD)

    assert rows.query(app, "SELECT id, amount FROM ledger") == [{"id": "t-1", "amount": 1}]


def test_the_same_webhook_at_the_same_time_is_saved_once(app: Stepfast) -> None:
    calls: list[str] = []
    receiver = TaskReceiver(app.database, secrets=SECRET, saved=lambda _, end: calls.append(end.task_id))
    start = threading.Barrier(4)

    def race() -> None:
        start.wait()
        assert post(receiver, TOLD)[0] == 200

    threads = [threading.Thread(target=race) for _ in range(4)]
    for it in threads:
        it.start()
    for it in threads:
        it.join()

    assert saved(app) == [("t-1", "completed")]


# Which secrets, how long, and how much


def test_a_receiver_believes_the_secrets_that_webhooks_to_it_are_signed_with() -> None:
    given = ["whsec_a", "whsec_b", "Partner.example=whsec_c", "ours.example=whsec_d"]

    assert secrets_of_receiver(given) == (["whsec_a", "whsec_b"], ["ours.example", "partner.example"])
    assert secrets_of_receiver(given, "OURS.example") == (["whsec_d"], ["", "partner.example"])
    assert secrets_of_receiver(given[:3], "ours.example") == (["whsec_a", "whsec_b"], ["partner.example"])
    assert secrets_of_receiver(["none"]) == (["none"], [])
    assert secrets_of_receiver(["partner.example=whsec_c"]) == ([], ["partner.example"])


def test_old_webhooks_are_deleted_and_young_ones_stay(app: Stepfast) -> None:
    first = TaskReceiver(app.database, secrets=[SECRET], keep="1d")
    for n in range(3):
        post(first, TOLD | {"task_id": f"t-{n}"}, webhook_id=f"w-{n}")
    rows.change(
        app,
        "UPDATE stepfast_received SET received_at = received_at - :day WHERE id < 'w-2'",
        day=2 * rows.DAY,
    )

    with hearing() as told:
        post(TaskReceiver(app.database, secrets=[SECRET], keep="1d"), TOLD, webhook_id="w-9")

    assert [task_id for task_id, _ in saved(app)] == ["t-2", "t-1"]
    assert named(told, "received.pruned") == [{"webhooks": 2}]


def test_a_full_receiver_refuses_what_is_new_and_loses_nothing(
    app: Stepfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_receiver, "PRUNING_EVERY", -1.0)
    size = len(json.dumps(TOLD))
    receiver = TaskReceiver(app.database, secrets="none", most=2 * size + 1)

    with hearing() as told:
        answers = [post(receiver, TOLD, webhook_id=f"w-{n}", secret=None) for n in range(4)]
        again = post(receiver, TOLD, webhook_id="w-0", secret=None)

    assert [status for status, _ in answers] == [200, 200, 503, 503]
    assert again == (200, "saved before")
    assert len(saved(app)) == 2
    assert [facts["size"] for facts in named(told, "receiver.filled")] == [2 * size]
    rows.change(app, "UPDATE stepfast_received SET received_at = 1 WHERE id = 'w-0'")
    assert post(receiver, TOLD, webhook_id="w-5", secret=None) == (200, "saved")


@pytest.mark.parametrize(("option", "value"), [("keep", "soon"), ("most", "much"), ("most", 0)])
def test_a_limit_that_is_none_is_refused(app: Stepfast, option: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=option):
        TaskReceiver(app.database, secrets="none", **{option: value})
