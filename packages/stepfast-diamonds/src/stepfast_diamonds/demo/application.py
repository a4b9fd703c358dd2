"""The application of the demo: the diamond catalogue, as the environment says. `stepfast worker` loads it.

STEPFAST_APP=stepfast_diamonds.demo.application:app
"""

from __future__ import annotations

from stepfast import Stepfast
from stepfast_diamonds.demo.source import FEED_OPTIONS
from stepfast_diamonds.feed import nivoda

app = Stepfast()
nivoda(app, natural=FEED_OPTIONS, labgrown=FEED_OPTIONS)
