"""Something the engine writes: first its scene is arranged, then the act that is returned gets cut short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.crash.kill_points import Act
from tests.crash.setup import Scene

Arrange = Callable[[Scene], Act]


@dataclass(frozen=True)
class Operation:
    name: str
    arrange: Arrange
    repeated: bool  # whoever asked for it asks again when no answer came


class Operations(dict[str, Operation]):
    """By name, in the order of a module."""

    def once(self, arrange: Arrange) -> Arrange:
        return self._add(arrange, repeated=False)

    def repeated(self, arrange: Arrange) -> Arrange:
        return self._add(arrange, repeated=True)

    def _add(self, arrange: Arrange, *, repeated: bool) -> Arrange:
        name = arrange.__name__
        assert name not in self
        self[name] = Operation(name, arrange, repeated)
        return arrange
