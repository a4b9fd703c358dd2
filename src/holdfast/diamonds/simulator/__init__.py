"""A source that behaves like Nivoda's API, with all its bad habits, on loopback."""

from __future__ import annotations

from holdfast.diamonds.simulator.knobs import Knobs
from holdfast.diamonds.simulator.oracle import Happened, Truth
from holdfast.diamonds.simulator.server import Simulator

__all__ = ["Happened", "Knobs", "Simulator", "Truth"]
