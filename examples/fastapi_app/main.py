"""The web application, with a worker inside.

    uvicorn examples.fastapi_app.main:web

For more than one process set SHOP_WORKER=off and run workers by themselves:

    stepfast worker examples.fastapi_app.jobs:app
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from fastapi import FastAPI, HTTPException, status
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from examples.fastapi_app import jobs
from examples.fastapi_app.database import InTransaction, Order, create_tables, engine
from stepfast.errors import NotFoundError


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Tables first, then the worker; at the end it finishes what runs and gives back the rest."""
    await run_in_threadpool(create_tables)
    await run_in_threadpool(jobs.app.migrate)
    embedded = os.environ.get("SHOP_WORKER", "on") == "on"
    async with jobs.app.worker(concurrency=5, grace="10s") if embedded else nullcontext():
        yield
    jobs.app.close()
    engine.dispose()


web = FastAPI(title="Shop", lifespan=lifespan)


class NewOrder(BaseModel):
    id: str = Field(min_length=1, max_length=40)
    item: str = Field(min_length=1, max_length=100)


class Shipment(BaseModel):
    """The state of the job of an order."""

    job_id: str
    state: str
    progress: int | None = None
    label: str | None = None
    error: str | None = None


@web.post("/orders", status_code=status.HTTP_201_CREATED)
def place_order(order: NewOrder, session: InTransaction) -> Shipment:
    """Store the order and enqueue its shipping: both exist when this transaction commits, or neither does."""
    if session.get(Order, order.id) is not None:
        raise HTTPException(status.HTTP_409_CONFLICT, f"there is an order {order.id} already")
    session.add(Order(id=order.id, item=order.item))
    session.flush()
    job = jobs.ship.with_options(tx=session, key=f"ship:{order.id}").enqueue(order_id=order.id)
    if order.item == "nothing":  # refused after its job was enqueued: the rollback removes the job
        raise HTTPException(status.HTTP_422_UNPROCESSABLE_CONTENT, "nothing cannot be shipped")
    return Shipment(job_id=job.id, state="ready")


@web.get("/shipments/{job_id}")
def shipment(job_id: str) -> Shipment:
    """The state of the job now."""
    try:
        found = jobs.app.result_of(job_id)
    except NotFoundError:
        raise HTTPException(status.HTTP_404_NOT_FOUND, f"no job {job_id}") from None
    return Shipment(
        job_id=job_id,
        state=found.state,
        progress=found.progress,
        label=found.result if found.state == "done" else None,
        error=found.error,
    )


@web.get("/shipments/{job_id}/label")
async def wait_for_label(job_id: str) -> str:
    """Wait for the result without blocking a thread."""
    label: str = await jobs.app.enqueued(job_id).result(timeout="10s")
    return label
