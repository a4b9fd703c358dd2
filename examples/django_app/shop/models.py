"""The shop's rows. A parcel is written by a job's commit, never by a view."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    id = models.CharField(max_length=40, primary_key=True)
    item = models.CharField(max_length=100)
    job_id = models.CharField(max_length=128)

    def __str__(self) -> str:
        return f"order {self.id}: {self.item}"


class Parcel(models.Model):
    order_id = models.CharField(max_length=40, primary_key=True)
    label = models.CharField(max_length=100)

    def __str__(self) -> str:
        return f"parcel of order {self.order_id}"
