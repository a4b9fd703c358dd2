"""A user's module: an app with the feeds of Nivoda, as fast as it goes."""

from __future__ import annotations

from stepfast import Stepfast
from stepfast_diamonds.feed import nivoda

app = Stepfast()  # STEPFAST_DATABASE_URL says where, NIVODA_… how
nivoda(app)
