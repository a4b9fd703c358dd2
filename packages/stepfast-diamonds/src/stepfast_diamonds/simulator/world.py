"""Everything that exists in a simulation, put together from a profile and a number."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from stepfast_diamonds.simulator.catalogue import Catalogue
from stepfast_diamonds.simulator.history import History, Mutations
from stepfast_diamonds.simulator.profile import parse_profile
from stepfast_diamonds.simulator.search import Search
from stepfast_diamonds.simulator.session import Sessions, Throttle
from stepfast_diamonds.simulator.vocabulary import Dimension

if TYPE_CHECKING:
    from stepfast_diamonds.simulator.faults import Knobs
    from stepfast_diamonds.simulator.virtual_clock import VirtualClock


@dataclass
class World:
    """One catalogue with its life, its clock, its guards and what has been told so far."""

    seed: int
    knobs: Knobs
    clock: VirtualClock
    catalogue: Catalogue
    history: History
    search: Search
    mutations: Mutations
    sessions: Sessions
    throttle: Throttle = field(default_factory=Throttle)
    told: Counter[str] = field(default_factory=Counter)

    def look(self) -> int:
        """Let happen what should have happened by now, let searches see what they should see, and say what time it is."""
        now = self.clock.now()
        self.mutations.catch_up(now, self.knobs.churn_per_minute)
        self.history.reveal(now - int(self.knobs.index_lag_s * 1_000_000))
        return now


def make_world(profile: str, seed: int, knobs: Knobs, clock: VirtualClock) -> World:
    """The same world for the same numbers; only the stamps follow the clock's start."""
    catalogue = Catalogue(seed)
    dice = Random(seed)
    for part in parse_profile(profile):
        catalogue.grow(part, dice, clock.start)
    history = History(catalogue)
    history.index.order(Dimension.PER_CARAT)  # what everybody asks for first
    return World(
        seed,
        knobs,
        clock,
        catalogue,
        history,
        Search(history, seed),
        Mutations(history, seed, clock.start),
        Sessions(seed),
    )
