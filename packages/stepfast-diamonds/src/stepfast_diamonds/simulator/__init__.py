"""A source that behaves like Nivoda's API, with all its bad habits, on loopback."""

from __future__ import annotations

from stepfast_diamonds.simulator.faults import Knobs
from stepfast_diamonds.simulator.oracle import Happened, Truth
from stepfast_diamonds.simulator.server import Simulator

__all__ = ["Happened", "Knobs", "Simulator", "Truth"]
