"""The frontier of partitions that are known from the start. All there is to learn is how many rows each has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from stepfast.runs.partitioning.contract import Plan, Planned, checked
from stepfast.runs.ranges import Range

KIND: Final = "listed"


@dataclass(frozen=True, kw_only=True)
class Listed:
    """Partitions, and the counts of those that were counted."""

    ranges: tuple[Range, ...]
    domain: Range | None  # None: the list itself says what everything is
    at_once: int = 0  # ranges to count in one step; 0: nobody counts them
    answers: Mapping[str, int] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        return not self.ask()

    def ask(self) -> list[Range]:
        return [it for it in self.ranges if it.name not in self.answers][: self.at_once]

    def learn(self, counts: Mapping[str, int]) -> Listed:
        names = {it.name for it in self.ranges}
        new = {name: count for name, count in checked(counts).items() if name in names}
        return replace(self, answers={**self.answers, **new})

    def plan(self) -> Plan:
        partitions = tuple(Planned(it, self.answers.get(it.name)) for it in self.ranges)
        return Plan(partitions=partitions, domain=self.domain, requests=len(self.answers))

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": KIND,
            "ranges": [it.to_json() for it in self.ranges],
            "domain": None if self.domain is None else self.domain.to_json(),
            "at_once": self.at_once,
            "answers": dict(self.answers),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Listed:
        return cls(
            ranges=tuple(Range.from_json(it) for it in stored["ranges"]),
            domain=None if stored["domain"] is None else Range.from_json(stored["domain"]),
            at_once=stored["at_once"],
            answers=dict(stored["answers"]),
        )
