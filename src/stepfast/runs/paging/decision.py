"""What a page may mean. Each meaning carries the state after it: cursor and end are stored together, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

from stepfast.runs.paging.state import Ask, Verdict
from stepfast.runs.states import PartitionState

if TYPE_CHECKING:
    from stepfast.runs.paging.state import PageState


@dataclass(frozen=True, kw_only=True)
class Advance:
    """The rows of this page are kept; `state` says what to ask next."""

    state: PageState
    note: str
    got: int = 0
    fresh: int = 0  # rows the partition had not seen


@dataclass(frozen=True, kw_only=True)
class StepBack:
    """The page does not follow what was read: none of its rows is kept, and our place is looked for."""

    state: PageState
    note: str
    got: int = 0


@dataclass(frozen=True, kw_only=True)
class RestartPass:
    """Our place is lost: the next pass begins at the start. None of the page's rows is kept."""

    state: PageState
    note: str
    got: int = 0


@dataclass(frozen=True, kw_only=True)
class EndOfPass:
    """The pass is over, and perhaps the partition. The rows of this page are kept, unless it did not follow."""

    state: PageState
    verdict: Verdict
    note: str
    got: int = 0
    fresh: int = 0
    follows: bool = True


@dataclass(frozen=True, kw_only=True)
class Fail:
    """The partition cannot be read as its feed says: it fails, loudly."""

    state: PageState
    note: str
    got: int = 0


@dataclass(frozen=True, kw_only=True)
class Stale:
    """The answer to a request that was answered before. It ends nothing, moves nothing and writes nothing."""

    note: str


Decision = Advance | StepBack | RestartPass | EndOfPass | Fail | Stale


def keeps_rows(decision: Decision) -> bool:
    """Whether the page's rows are written and remembered as seen.

    Those of a page that was not accepted must not be remembered: they would pass for our place later.
    """
    return decision.follows if isinstance(decision, EndOfPass) else isinstance(decision, Advance)


def state_of_partition(decision: Decision) -> PartitionState | None:
    """The state that the partition has after it; None: nothing may be written."""
    match decision:
        case EndOfPass(verdict=Verdict.VERIFIED):
            return PartitionState.DONE
        case EndOfPass(verdict=Verdict.UNVERIFIED):
            return PartitionState.DONE_UNVERIFIED
        case Advance() | StepBack() | RestartPass() | EndOfPass():
            return PartitionState.RUNNING
        case Fail():
            return PartitionState.FAILED
        case Stale():
            return None
        case _:
            assert_never(decision)


def word(decision: Decision) -> str:
    """One word or two for the ledger."""
    match decision:
        case Advance():
            return "advance"
        case StepBack():
            return "step back"
        case RestartPass():
            return "restart"
        case EndOfPass(verdict=verdict):
            return verdict.value
        case Fail():
            return "fail"
        case Stale():
            return "stale"
        case _:
            assert_never(decision)


def explain(decision: Decision) -> str:  # noqa: PLR0911 - one line per meaning
    """What happened and what follows from it, as an operator reads it."""
    match decision:
        case Advance(state=state, note=note):
            return f"{note}; {_next(state)}"
        case StepBack(state=state, note=note):
            return f"{note}; looks for its place at offset {state.offset:,}"
        case RestartPass(state=state, note=note):
            return f"{note}; pass {state.pass_} begins at the start"
        case EndOfPass(state=state, verdict=Verdict.ANOTHER_PASS, note=note):
            return f"{note}; pass {state.pass_} begins"
        case EndOfPass(verdict=Verdict.UNVERIFIED, note=note):
            return f"unverified: {note}; what was read is kept, and the range is a debt that the next run reads again"
        case EndOfPass(note=note):
            return f"verified: {note}"
        case Fail(note=note):
            return f"failed: {note}"
        case Stale(note=note):
            return f"{note}; nothing was written"
        case _:
            assert_never(decision)


def _next(state: PageState) -> str:
    if state.ask is Ask.COUNT:
        return "asks the source for its count"
    return f"goes on at offset {state.offset:,}" if state.after is None else "goes on with the next page"
