"""A case is something the engine writes: `prepare` sets the database up and returns the call that is killed.

Each module of this folder has a registry of its own, `CASES`; `registry.py` puts them together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.crash.kill_points import Action
from tests.crash.setup import Setup

Prepare = Callable[[Setup], Action]


@dataclass(frozen=True)
class Case:
    name: str
    prepare: Prepare
    repeated: bool  # the caller, having got no answer, calls again


class Cases(dict[str, Case]):
    """The cases of one module, by name, in their order.

    `@CASES.once` registers a call that is not repeated after a crash, `@CASES.repeated` one that its caller makes again.
    """

    def once(self, prepare: Prepare) -> Prepare:
        return self._add(prepare, repeated=False)

    def repeated(self, prepare: Prepare) -> Prepare:
        return self._add(prepare, repeated=True)

    def _add(self, prepare: Prepare, *, repeated: bool) -> Prepare:
        name = prepare.__name__
        assert name not in self
        self[name] = Case(name, prepare, repeated)
        return prepare
