"""The application of the demo: the diamond catalogue, as the environment says. `stepfast worker` loads it.

STEPFAST_APP=stepfast.demo.application:app
"""

from __future__ import annotations

from stepfast import Stepfast
from stepfast.demo.source import MOVED
from stepfast.diamonds.feed import nivoda

app = Stepfast()
nivoda(app, natural=MOVED, labgrown=MOVED)
