"""The tests have a database of their own: the one that HOLDFAST_DATABASE_URL names, else a file that is thrown away."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ.setdefault("HOLDFAST_DATABASE_URL", f"sqlite:///{Path(tempfile.mkdtemp()) / 'shop.db'}")
