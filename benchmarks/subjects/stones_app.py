"""A user's module: an app with the feed of stones."""

from __future__ import annotations

from benchmarks.subjects.stones import Stones
from holdfast import Holdfast

app = Holdfast()  # HOLDFAST_DATABASE_URL says where
app.feed(Stones())
