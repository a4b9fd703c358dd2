"""Jobs of the shop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.conf import settings
from django.db import close_old_connections

from examples.django_app.shop.models import Order, Parcel
from stepfast import Step, Stepfast

app = Stepfast(settings.STEPFAST_DATABASE_URL)


@app.job(queue="shipping", timeout="30s")
def ship(step: Step, order_id: str) -> str:
    """Read with Django's ORM; write with the step, so that the parcel and the end of the job commit together."""
    with as_in_a_request():
        order = Order.objects.get(id=order_id)
    label = f"{order.item} for {order_id}"
    step.upsert(Parcel._meta.db_table, [{"order_id": order_id, "label": label}], key="order_id")  # noqa: SLF001 - Django's name
    return label


@contextmanager
def as_in_a_request() -> Iterator[None]:
    """Check Django's connection of this thread, as Django does between requests; a worker has no requests."""
    close_old_connections()  # one that broke meanwhile
    try:
        yield
    finally:
        close_old_connections()  # with CONN_MAX_AGE = 0, this one
