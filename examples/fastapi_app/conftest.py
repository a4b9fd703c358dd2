"""The tests have a database of their own: the one that STEPFAST_DATABASE_URL names, else a file that is thrown away."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

with pytest.MonkeyPatch.context() as patch:
    if "STEPFAST_DATABASE_URL" not in os.environ:
        patch.setenv("STEPFAST_DATABASE_URL", f"sqlite:///{Path(tempfile.mkdtemp()) / 'shop.db'}")
    # Read when it is imported; afterwards the setting is free for others that are tested in the same run.
    import examples.fastapi_app.database  # noqa: F401
