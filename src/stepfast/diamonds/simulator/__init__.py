"""A source that behaves like Nivoda's API, with all its bad habits, on loopback."""

from __future__ import annotations

from stepfast.diamonds.simulator.faults import Knobs
from stepfast.diamonds.simulator.oracle import Happened, Truth
from stepfast.diamonds.simulator.server import Simulator

__all__ = ["Happened", "Knobs", "Simulator", "Truth"]
