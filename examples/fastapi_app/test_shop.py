"""The shop as its customers see it, and what is in its database afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from examples.fastapi_app import jobs
from examples.fastapi_app.database import Order, Parcel, engine
from examples.fastapi_app.main import web
from stepfast.testing import assert_enqueued, assert_not_enqueued


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """The application with its worker, from its start to its end."""
    with TestClient(web) as found:
        yield found


def test_an_order_is_shipped_after_the_request(client: TestClient) -> None:
    answer = client.post("/orders", json={"id": "A-1", "item": "lamp"})
    assert answer.status_code == 201
    job_id = answer.json()["job_id"]

    label = client.get(f"/shipments/{job_id}/label").json()

    assert label.startswith("label of A-1")
    shipment = client.get(f"/shipments/{job_id}").json()
    assert (shipment["state"], shipment["label"]) == ("done", label)
    with Session(engine) as session:
        assert session.get_one(Parcel, "A-1").label == label


def test_who_reads_that_the_order_is_there_finds_it(client: TestClient) -> None:
    client.post("/orders", json={"id": "A-2", "item": "lamp"})

    with Session(engine) as session:
        assert session.get_one(Order, "A-2").item == "lamp"
    assert_enqueued(jobs.app, jobs.ship, arguments={"order_id": "A-2"}, ended=True)


def test_an_order_that_is_refused_leaves_no_row_and_no_job(client: TestClient) -> None:
    answer = client.post("/orders", json={"id": "A-3", "item": "nothing"})

    assert answer.status_code == 422
    with Session(engine) as session:
        assert session.get(Order, "A-3") is None
    assert_not_enqueued(jobs.app, jobs.ship, arguments={"order_id": "A-3"}, ended=True)


def test_an_order_is_placed_once(client: TestClient) -> None:
    first = client.post("/orders", json={"id": "A-4", "item": "lamp"})
    second = client.post("/orders", json={"id": "A-4", "item": "chair"})

    assert (first.status_code, second.status_code) == (201, 409)
    assert_enqueued(jobs.app, jobs.ship, arguments={"order_id": "A-4"}, ended=True, count=1)


def test_a_job_that_nobody_asked_for_is_not_found(client: TestClient) -> None:
    assert client.get("/shipments/none").status_code == 404
