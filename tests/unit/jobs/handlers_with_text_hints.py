"""Handlers as many people write them: every hint is a text, and `Step` is imported for the type checker only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence  # noqa: F401 - for those who look

    from stepfast import Step


@dataclass
class Order:
    id: str
    copies: int = 1


def plain(step: Step, order: Order, note: str | None = None) -> None: ...


def nested(step: Step, orders: list[Order], by_name: dict[str, Order]) -> None: ...


def unresolvable(step: Step, order: Missing) -> None: ...  # type: ignore[name-defined]  # noqa: F821 - the point
