"""The shop's tables, and those of Stepfast beside them: `manage.py migrate` makes both."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("item", models.CharField(max_length=100)),
                ("job_id", models.CharField(max_length=128)),
            ],
        ),
        migrations.CreateModel(
            name="Parcel",
            fields=[
                ("order_id", models.CharField(max_length=40, primary_key=True, serialize=False)),
                ("label", models.CharField(max_length=100)),
            ],
        ),
    ]
