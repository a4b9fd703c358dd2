"""The application of the demo: the diamond catalogue, as the environment says. `holdfast worker` loads it.

HOLDFAST_APP=holdfast.demo.application:app
"""

from __future__ import annotations

from holdfast import Holdfast
from holdfast.demo.source import MOVED
from holdfast.diamonds.feed import nivoda

app = Holdfast()
nivoda(app, natural=MOVED, labgrown=MOVED)
