"""For packages that build an application on Stepfast: their tables, and what their code needs besides `stepfast`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.database.migrate import Component
from stepfast.database.migrate import migrate as _migrate

if TYPE_CHECKING:
    from stepfast.app import Stepfast

__all__ = ["Component", "migrate"]


def migrate(app: Stepfast, component: Component) -> list[str]:
    """Bring the tables of an application up to date; returns the names of the migrations applied."""
    return _migrate(app.database, component)
