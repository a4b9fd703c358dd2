"""An application with both feeds, for worker processes; the address of its source is in the environment."""

from __future__ import annotations

from stepfast import Stepfast
from stepfast_diamonds.feed import nivoda
from tests.diamonds.worlds import small_heatmap

app = Stepfast()
nivoda(app, natural={"settle": "0s", "partitioner": small_heatmap()}, labgrown={"settle": "0s"})
