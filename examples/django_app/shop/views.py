"""Two views: place an order, look at it."""

from __future__ import annotations

import json

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse

from examples.django_app.shop.jobs import app, ship
from examples.django_app.shop.models import Order, Parcel


def place_order(request: HttpRequest) -> HttpResponse:
    """The order and its job exist when the block ends, or neither does."""
    wanted = json.loads(request.body)
    with transaction.atomic():
        job = ship.with_options(tx=connection, key=f"ship:{wanted['id']}").enqueue(order_id=wanted["id"])
        order = Order.objects.create(id=wanted["id"], item=wanted["item"], job_id=job.id)
        if order.item == "nothing":
            transaction.set_rollback(True)
            return JsonResponse({"error": "nothing cannot be shipped"}, status=422)
    return JsonResponse({"id": order.id, "job_id": job.id}, status=201)


def show_order(_: HttpRequest, order_id: str) -> HttpResponse:
    """Where the order stands: its job's state, and the parcel once there is one."""
    order = Order.objects.filter(id=order_id).first()
    if order is None:
        return JsonResponse({"error": f"no order {order_id}"}, status=404)
    parcel = Parcel.objects.filter(order_id=order_id).first()
    shipment = app.result_of(order.job_id)
    return JsonResponse({"id": order_id, "state": shipment.state, "label": parcel.label if parcel else None})
