"""One database for the shop's rows and for its jobs, so that they can commit together."""

from __future__ import annotations

import os
from typing import Any
from urllib.parse import unquote, urlsplit

STEPFAST_DATABASE_URL = os.environ.get("STEPFAST_DATABASE_URL", "sqlite:///shop.db")


def database(url: str) -> dict[str, Any]:
    """The same database in Django's settings."""
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        # BEGIN IMMEDIATE: a transaction that begins by reading may not be able to write any more.
        options = {"transaction_mode": "IMMEDIATE", "timeout": 20}
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": parts.path[1:], "OPTIONS": options}
    return {
        "ENGINE": "django.db.backends.postgresql",  # with psycopg 3
        "NAME": parts.path.removeprefix("/"),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }


DATABASES = {"default": database(STEPFAST_DATABASE_URL)}
INSTALLED_APPS = ["examples.django_app.shop"]
ROOT_URLCONF = "examples.django_app.urls"
ALLOWED_HOSTS = ["*"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SECRET_KEY = "for this example only"  # noqa: S105 - nothing is signed with it
USE_TZ = True
