"""What a handler may answer, and how a step may end. `commit` turns each ending into rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from holdfast.clock import Duration, duration
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from holdfast.database.connection import Transaction


class Effect(Protocol):
    """A change that happens in the step's own transaction or not at all."""

    def apply(self, tx: Transaction, /) -> None: ...


@dataclass(frozen=True)
class Call:
    """An effect made of a function of the transaction. It may run again after a deadlock: no I/O in it."""

    function: Callable[[Transaction], object]

    def apply(self, tx: Transaction, /) -> None:
        self.function(tx)


def effects_of(outcome: Done | Continue | Snooze) -> list[Effect]:
    """What an outcome brings along; a function of the transaction is an effect, too."""
    given = outcome.effects
    if callable(given) or hasattr(given, "apply"):
        given = [given]  # one, forgotten to be put into a list
    return [as_effect(it) for it in given]


def as_effect(given: Effect | Callable[[Transaction], object]) -> Effect:
    if hasattr(given, "apply"):
        return given
    if callable(given):
        return Call(given)
    raise ConfigurationError(
        f"an effect is a function of the transaction or has apply(tx), not {given!r:.80}"
    )


@dataclass(frozen=True)
class Done:
    """The job is finished; `result` is kept with it."""

    result: Any = None
    effects: Sequence[Effect | Callable[[Transaction], object]] = field(default=(), kw_only=True)


@dataclass(frozen=True)
class Continue:
    """This step is finished; the job goes on at `cursor` as a new step, with attempts of its own."""

    cursor: Any
    effects: Sequence[Effect | Callable[[Transaction], object]] = field(default=(), kw_only=True)
    delay: Duration = field(default=0, kw_only=True)
    # Microseconds in which only those may take the next step who were told of it by name. Ours: a broker's worker is.
    head_start: int = field(default=0, kw_only=True, repr=False)


@dataclass(frozen=True)
class Snooze:
    """Not yet: run this step again later. Costs no attempt."""

    delay: Duration
    effects: Sequence[Effect | Callable[[Transaction], object]] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        duration(self.delay, "Snooze")


@dataclass(frozen=True)
class Reject:
    """Never: no retry can help. The job goes to the dead letters at once."""

    reason: str


Outcome = Done | Continue | Snooze | Reject


@dataclass(frozen=True)
class Again:
    """The step failed and may try again."""

    delay: timedelta
    error: str
    group: str
    charged: bool = True  # whether it costs an attempt


@dataclass(frozen=True)
class Bury:
    """The step failed for good: its job becomes a dead letter."""

    error: str
    group: str


@dataclass(frozen=True)
class Stop:
    """Somebody asked the job to stop, and it has."""

    reason: str


@dataclass(frozen=True)
class GiveBack:
    """Unfinished, through no fault of the job: it keeps its place and its attempts."""


Ending = Done | Continue | Snooze | Reject | Again | Bury | Stop | GiveBack
