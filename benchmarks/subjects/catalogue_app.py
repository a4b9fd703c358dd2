"""A user's module: an app with the feeds of Nivoda, as fast as it goes."""

from __future__ import annotations

from holdfast import Holdfast
from holdfast.diamonds.feed import nivoda

app = Holdfast()  # HOLDFAST_DATABASE_URL says where, NIVODA_… how
nivoda(app)
