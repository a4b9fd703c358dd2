"""A mutation takes one guard out of the code; the test that it names must then fail.

A test that passes whatever the code says is worse than none. Each list of mutations in this folder covers one subject.

Mutations name what they change by a target, a string: `stepfast.jobs.commit:RETRY` is a name of a module,
`stepfast.worker.claimer:Claimer.stop` one of a class. When the code moves, the target is the one line to change:
a target that is gone fails its own mutation, and `test_every_target_exists`, with the name of the mutation.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from stepfast.database.dialects import SQLITE
from stepfast.database.statement import Statement

if TYPE_CHECKING:
    import pytest

    from stepfast.database.dialects import Dialect

SERVERS = ("postgresql", "mariadb")
EVERYWHERE = ("sqlite", *SERVERS)

Change = Callable[["pytest.MonkeyPatch", "Dialect"], None]


@dataclass(frozen=True)
class Break:
    """A change of the code for the time of one test, and the targets that it changes."""

    targets: tuple[str, ...]
    change: Change


@dataclass(frozen=True)
class Mutation:
    """`break_it` takes a guard away; then `noticed_by` must fail. The name is the id: a sentence, unique among all."""

    name: str
    break_it: Break
    noticed_by: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    only_on: tuple[str, ...] = EVERYWHERE
    or_with: tuple[type[Exception], ...] = ()  # another way in which the test may fail

    def check_targets(self) -> None:
        """Fail with this mutation's name if the code no longer has one of its targets."""
        for path in self.break_it.targets:
            try:
                target(path)
            except (ImportError, AttributeError) as gone:
                raise TargetGoneError(self.name, path) from gone

    def apply(self, patch: pytest.MonkeyPatch, dialect: Dialect = SQLITE) -> None:
        """Take the guard away, until `patch` is undone."""
        self.check_targets()
        self.break_it.change(patch, dialect)

    def run(self, **fixtures: Any) -> Any:
        """Call the test with the fixtures that it asks for."""
        wanted = inspect.signature(self.noticed_by).parameters
        given = {name: fixture for name, fixture in fixtures.items() if name in wanted}
        return self.noticed_by(**given, **self.arguments)


class TargetGoneError(LookupError):
    """The code has no such name any more: change the target of the mutation to where it is now."""

    def __init__(self, mutation: str, path: str) -> None:
        super().__init__(
            f"mutation {mutation!r}: {path} does not exist; it was renamed or moved: change the target to its new name"
        )


def target(path: str) -> Any:
    """The object that a target names, as it is now."""
    return resolve_name(path)


def without(path: str, part: str | Callable[[Dialect], str], instead: str = "") -> Break:
    """A statement with `part` of its text taken out, or replaced by `instead`."""

    def change(patch: pytest.MonkeyPatch, dialect: Dialect) -> None:
        statement: Statement = target(path)
        text = statement.overrides.get(dialect.name, statement.text)
        taken = part if isinstance(part, str) else part(dialect)
        assert taken in text, f"nothing to take out of {path} on {dialect.name}: {text}"
        broken = text.replace(taken, instead)
        patch.setitem(statement.overrides, dialect.name, broken)  # read where a test moved the clock
        patch.setitem(statement._rendered, dialect.name, Statement(broken).render(dialect))

    return Break((path,), change)


def replacing(path: str, value: Any) -> Break:
    """A function, method, constant or class replaced by `value`."""
    owner, name = _owner(path)

    return Break((path,), lambda patch, _: patch.setattr(target(owner), name, value))


def replacing_item(path: str, key: str, value: Any) -> Break:
    """One entry of a dict replaced by `value`."""
    return Break((path,), lambda patch, _: patch.setitem(target(path), key, value))


def both(*breaks: Break) -> Break:
    """Guards that stand in for each other, taken away together."""

    def change(patch: pytest.MonkeyPatch, dialect: Dialect) -> None:
        for each in breaks:
            each.change(patch, dialect)

    return Break(tuple(path for each in breaks for path in each.targets), change)


def _owner(path: str) -> tuple[str, str]:
    """Split `module:Class.name` into `module:Class` and `name`, and `module:name` into `module` and `name`."""
    module, _, names = path.partition(":")
    owner, _, name = names.rpartition(".")
    return (f"{module}:{owner}" if owner else module), name
