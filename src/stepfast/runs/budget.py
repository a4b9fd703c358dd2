"""How many rows of a run may be in quarantine before the run is not to be trusted. Pure.

Once a run has read everything, the number of its rows stands; so as soon as more of them are refused than the budget
allows, nothing that follows can change the verdict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stepfast.runs.declaration import Declaration
    from stepfast.runs.run import Run

FEW: Final = 10  # rows that do not stop a small run, as long as they are not most of it


def rows_of(run: Run) -> int:
    """How many rows the budget is a share of. A run may also consolidate what earlier ones left."""
    return max(run.seen + run.rejected, run.applied + run.quarantined)


def overspent(declared: Declaration, rows: int, bad: int) -> str | None:
    """What is wrong if so many of these rows are bad; None: they are within the budget."""
    if bad > _allowed(declared.error_budget, rows):
        return f"{bad:,} of {rows:,} rows are in quarantine, more than the error budget of {declared.error_budget:.1%}"
    if declared.error_limit is not None and bad > declared.error_limit:
        return f"{bad:,} rows are in quarantine, more than the error limit of {declared.error_limit:,}"
    return None


def _allowed(share: float, rows: int) -> float:
    """One bad row of four says little about the other three: it must not hold a small feed for ever."""
    return max(share * rows, min(FEW, rows / 2)) if share else 0
