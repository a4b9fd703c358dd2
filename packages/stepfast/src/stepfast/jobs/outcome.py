"""What a handler may answer, and how a step may end. `commit` turns each ending into rows."""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from stepfast.clock import Duration, duration, micros
from stepfast.errors import ConfigurationError
from stepfast.jobs.wait import checked_event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import timedelta

    from stepfast.database.connection import Transaction


class Effect(Protocol):
    """A change that happens in the step's own transaction or not at all."""

    def apply(self, tx: Transaction, /) -> None: ...


_DECLARED: Final = "__stepfast_effect__"  # an attribute of what was declared as an effect
D = TypeVar("D", bound="Callable[..., Any]")


def effect(declared: D) -> D:
    """Declare a function of the transaction, or a dataclass with `apply(tx)`, as an effect that isolated handlers may ask for.

    Their worker applies it, and applies nothing else for them. In the worker's own process effects need no declaration.
    """
    if isinstance(declared, type) and not (is_dataclass(declared) and hasattr(declared, "apply")):
        raise ConfigurationError(f"@effect: {declared.__qualname__} must be a dataclass with apply(tx)")
    setattr(declared, _DECLARED, declared)
    return declared


def is_declared(it: object) -> bool:
    """Whether this very function or class was declared as an effect; a subclass was not."""
    return getattr(it, _DECLARED, None) is it


@dataclass(frozen=True)
class Call:
    """An effect made of a function of the transaction. It may run again after a deadlock: no I/O in it."""

    function: Callable[[Transaction], object]

    def apply(self, tx: Transaction, /) -> None:
        self.function(tx)


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


@dataclass(frozen=True)
class ReservedContinue(Continue):
    """The `Continue` of a run over a broker: for a moment the next step is reserved for the worker that gets its message."""

    head_start: int = field(kw_only=True)  # microseconds


@dataclass(frozen=True)
class Snooze:
    """Not yet: run this step again later. Costs no attempt."""

    delay: Duration
    effects: Sequence[Effect | Callable[[Transaction], object]] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        duration(self.delay, "Snooze")


@dataclass(frozen=True)
class Wait:
    """This step is finished; the job goes on at `cursor` when the event has come, or `timeout` is over.

    Meanwhile it costs no worker. The next step finds the event in `step.event`; None: the time was over first.
    Without a name it waits for the callback of this step (`step.callback_url()`).
    """

    event: str | None = None
    timeout: Duration = field(kw_only=True)
    cursor: Any = field(default=None, kw_only=True)
    effects: Sequence[Effect | Callable[[Transaction], object]] = field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if micros(duration(self.timeout, "Wait(timeout=…)")) <= 0:
            raise ConfigurationError("Wait(timeout=0): give it time, such as timeout='1h'")
        if self.event is not None:
            checked_event(self.event)


@dataclass(frozen=True)
class Reject:
    """Never: no retry can help. The job goes to the dead letters at once."""

    reason: str


Outcome = Done | Continue | Snooze | Wait | Reject


@dataclass(frozen=True)
class Again:
    """The step failed and may try again."""

    delay: timedelta
    error: str
    group: str
    charged: bool = True  # whether it costs an attempt
    crashed: bool = False  # its process died under it: counted as a crash, not as a failure


@dataclass(frozen=True)
class Bury:
    """The step failed for good: its job becomes a dead letter."""

    error: str
    group: str
    crashed: bool = False


@dataclass(frozen=True)
class Stop:
    """The job was asked to stop, and it has."""

    reason: str


@dataclass(frozen=True)
class GiveBack:
    """The step did not finish, through no fault of the job: it keeps its place and its attempts."""


Ending = Done | Continue | Snooze | Wait | Reject | Again | Bury | Stop | GiveBack
