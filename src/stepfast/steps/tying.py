"""Store jobs that come after others, or into a group: what `enqueue` does where one of both is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from stepfast.errors import ConfigurationError
from stepfast.steps.dependencies import ON_DEAD, After, OnDead, enqueue_after
from stepfast.steps.groups import join

if TYPE_CHECKING:
    from stepfast.database.connection import Transaction
    from stepfast.steps.groups import Joining
    from stepfast.steps.job import Enqueued, NewJob

Store = Callable[["NewJob"], list["Enqueued"]]


class HasId(Protocol):
    """A job, as an enqueue returned it."""

    @property
    def id(self) -> str: ...


Parents = HasId | str | Iterable[HasId | str]


def after_of(after: Parents | None, on_dead: str) -> After | None:
    """What was given as `after` and `on_dead`; None where it names nobody."""
    choice = checked_policy(on_dead)
    if after is None:
        return None
    given: Iterable[Any] = [after] if isinstance(after, str) or hasattr(after, "id") else after
    ids = dict.fromkeys(_id(it) for it in given)  # once each, in their order
    return After(tuple(ids), choice) if ids else None


def checked_policy(on_dead: str) -> OnDead:
    for choice in ON_DEAD:
        if on_dead == choice:
            return choice
    raise ConfigurationError(f"on_dead={on_dead!r}: use 'wait', 'fail' or 'run'")


def _id(given: Any) -> str:
    found = given if isinstance(given, str) else getattr(given, "id", None)
    if not isinstance(found, str) or not found:
        raise ConfigurationError(f"after={given!r:.80}: give jobs as enqueue returned them, or their ids")
    return found


def store_tied(
    tx: Transaction, job: NewJob, after: After | None, group: Joining | None, store: Store
) -> list[Enqueued]:
    """Store jobs like this one; they come after others, join a group, or both."""
    stored = store(job) if after is None else enqueue_after(tx, job, after, store)
    if group is not None:
        join(tx, group.group_id, stored, group.on_dead, free=after is None)
    return stored
