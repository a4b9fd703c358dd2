"""Count what a frontier asks for, a few ranges at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.runs.asking import answer_of

if TYPE_CHECKING:
    from holdfast.runs.declaration import Declaration
    from holdfast.runs.feed import Window
    from holdfast.runs.partitioning.contract import Frontier


async def count_next(declared: Declaration, window: Window, frontier: Frontier) -> tuple[Frontier, int]:
    """The frontier with the answers, and how many requests that took. A limited source is asked once per step."""
    asked = frontier.ask()
    if declared.limits:
        asked = asked[:1]
    counts = {it.name: await answer_of(declared.feed.count, it, window) for it in asked}
    return frontier.learn(counts), len(counts)
