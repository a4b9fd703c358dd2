"""What a worker process imports: Django is set up before the jobs, in this process and in those that it starts.

stepfast worker examples.django_app.worker:app
"""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_app.settings")
django.setup()

from examples.django_app.shop.jobs import app  # noqa: E402 - models exist from here on

__all__ = ["app"]
