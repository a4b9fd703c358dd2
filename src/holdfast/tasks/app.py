"""What tasks need of an application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.database.database import Database
    from holdfast.notifications.settings import NotificationSettings
    from holdfast.schedules.definition import Definition
    from holdfast.steps.kinds import Kinds


class App(Protocol):
    """A `Holdfast`, without what is not needed here."""

    @property
    def database(self) -> Database: ...
    @property
    def kinds(self) -> Kinds: ...
    @property
    def notifications(self) -> NotificationSettings: ...
    @property
    def declared(self) -> Mapping[str, Definition]: ...
