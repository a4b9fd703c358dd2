"""What tasks need of an application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepfast.database.database import Database
    from stepfast.notifications.settings import NotificationSettings
    from stepfast.schedules.definition import Definition
    from stepfast.steps.kinds import Kinds


class App(Protocol):
    """A `Stepfast`, without what is not needed here."""

    @property
    def database(self) -> Database: ...
    @property
    def kinds(self) -> Kinds: ...
    @property
    def notifications(self) -> NotificationSettings: ...
    @property
    def declared(self) -> Mapping[str, Definition]: ...
