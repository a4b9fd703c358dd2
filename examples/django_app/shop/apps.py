from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate


class Shop(AppConfig):
    name = "examples.django_app.shop"
    label = "shop"

    def ready(self) -> None:
        """`manage.py migrate` brings Stepfast's tables up to date, too."""
        post_migrate.connect(migrate_jobs, sender=self)


def migrate_jobs(**_: Any) -> None:
    from examples.django_app.shop.jobs import app

    app.migrate()
