"""Jobs of the shop."""

from __future__ import annotations

import asyncio

from examples.fastapi_app.database import URL, Parcel
from stepfast import Step, Stepfast

app = Stepfast(URL)


@app.job(queue="shipping", timeout="30s")
async def ship(step: Step, order_id: str) -> str:
    """Ask the carrier for a label; the parcel is stored with the job's own commit, or not at all."""
    step.progress(10, "asking the carrier")
    label = await label_of(order_id, step.idempotency_key)
    step.upsert(Parcel.__tablename__, [{"order_id": order_id, "label": label}], key="order_id")
    return label


async def label_of(order_id: str, idempotency_key: str) -> str:
    """The carrier's service: the same key gives the same label."""
    await asyncio.sleep(0.01)
    return f"label of {order_id} ({idempotency_key[-1]})"
