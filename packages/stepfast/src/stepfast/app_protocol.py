"""What the parts of Stepfast need of the application that they belong to: `Stepfast` is one.

They are imported by `stepfast.app`, so they cannot import it; and tests may hand them less than a whole application.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepfast.callbacks import Callbacks
    from stepfast.database.database import Database
    from stepfast.jobs.kinds import Kinds
    from stepfast.notifications.settings import NotificationSettings
    from stepfast.runs.feeds import Feeds
    from stepfast.schedules.definition import Definition


class AppLike(Protocol):
    """What jobs and results need: the database, and the kinds that this process knows."""

    @property
    def database(self) -> Database: ...
    @property
    def kinds(self) -> Kinds: ...


class WholeApp(AppLike, Protocol):
    """What a process needs that serves an application: a worker, an intake of tasks, a receiver of callbacks."""

    @property
    def unchecked_database(self) -> Database: ...
    @property
    def notifications(self) -> NotificationSettings: ...
    @property
    def declared(self) -> Mapping[str, Definition]: ...
    @property
    def feeds(self) -> Feeds: ...
    @property
    def callbacks(self) -> Callbacks: ...
    def use(self, database: Database, /) -> Database: ...
