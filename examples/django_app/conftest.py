"""The tests have a database of their own: the one that STEPFAST_DATABASE_URL names, else a file that is thrown away."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

with pytest.MonkeyPatch.context() as patch:
    if "STEPFAST_DATABASE_URL" not in os.environ:
        patch.setenv("STEPFAST_DATABASE_URL", f"sqlite:///{Path(tempfile.mkdtemp()) / 'shop.db'}")
    # Read when it is imported; afterwards the setting is free for others that are tested in the same run.
    import examples.django_app.settings  # noqa: F401
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "examples.django_app.settings")


@pytest.fixture(scope="session", autouse=True)
def shop() -> Iterator[None]:
    """Django, with all tables."""
    import django
    from django.core.management import call_command
    from django.db import connections

    django.setup()
    call_command("migrate", verbosity=0)
    yield
    from examples.django_app.shop.jobs import app

    app.close()
    connections.close_all()
