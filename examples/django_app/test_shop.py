"""The shop as its customers see it, and what is in its database afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from stepfast.errors import ConfigurationError
from stepfast.testing import assert_enqueued, assert_not_enqueued, drain

ROOT = Path(__file__).parents[2]


def post(order_id: str, item: str) -> tuple[int, dict[str, Any]]:
    from django.test import Client

    answer = Client().post("/orders", {"id": order_id, "item": item}, content_type="application/json")
    return answer.status_code, answer.json()


def get(order_id: str) -> dict[str, Any]:
    from django.test import Client

    found: dict[str, Any] = Client().get(f"/orders/{order_id}").json()
    return found


def test_an_order_is_shipped_by_a_worker() -> None:
    from examples.django_app.shop.jobs import app
    from examples.django_app.shop.models import Parcel

    code, _ = post("A-1", "lamp")
    before = get("A-1")

    drain(app)

    assert code == 201
    assert (before["state"], before["label"]) == ("ready", None)
    assert get("A-1") == {"id": "A-1", "state": "done", "label": "lamp for A-1"}
    assert Parcel.objects.get(order_id="A-1").label == "lamp for A-1"


def test_an_order_that_is_refused_leaves_no_row_and_no_job() -> None:
    from examples.django_app.shop.jobs import app, ship
    from examples.django_app.shop.models import Order

    code, _ = post("A-2", "nothing")

    assert code == 422
    assert not Order.objects.filter(id="A-2").exists()
    assert_not_enqueued(app, ship, arguments={"order_id": "A-2"}, ended=True)


def test_an_inner_block_that_fails_takes_its_job_with_it() -> None:
    from django.db import connection, transaction

    from examples.django_app.shop.jobs import app, ship

    def sell_what_is_not_there() -> None:
        with transaction.atomic():
            ship.enqueue(order_id="A-4", tx=connection)
            raise RuntimeError("out of stock")

    with transaction.atomic():
        ship.enqueue(order_id="A-3", tx=connection)
        with pytest.raises(RuntimeError):
            sell_what_is_not_there()

    assert_enqueued(app, ship, arguments={"order_id": "A-3"}, count=1)
    assert_not_enqueued(app, ship, arguments={"order_id": "A-4"}, ended=True)


def test_outside_a_transaction_the_connection_is_refused() -> None:
    from django.db import connection

    from examples.django_app.shop.jobs import ship

    with pytest.raises(ConfigurationError, match=r"transaction\.atomic"):
        ship.enqueue(order_id="A-5", tx=connection)


def test_a_transaction_that_has_failed_is_refused() -> None:
    from django.db import connection, transaction

    from examples.django_app.shop.jobs import ship

    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(ConfigurationError, match="has failed"):
            ship.enqueue(order_id="A-6", tx=connection)


def test_the_command_works_until_it_is_told_to_stop() -> None:
    from django.conf import settings

    post("A-7", "chair")
    command = [sys.executable, "-m", "examples.django_app.manage", "work", "--concurrency", "2"]

    same_database = os.environ | {"STEPFAST_DATABASE_URL": settings.STEPFAST_DATABASE_URL}

    worker = subprocess.Popen(command, cwd=ROOT, env=same_database, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 30
        while get("A-7")["state"] != "done" and time.monotonic() < deadline:
            time.sleep(0.05)
        worker.terminate()
        code = worker.wait(timeout=20)
    finally:
        worker.kill()

    assert get("A-7")["label"] == "chair for A-7"
    assert code == 0
