"""A user's module: an app with the feed of stones."""

from __future__ import annotations

from benchmarks.subjects.stones import Stones
from stepfast import Stepfast

app = Stepfast()  # STEPFAST_DATABASE_URL says where
app.feed(Stones())
