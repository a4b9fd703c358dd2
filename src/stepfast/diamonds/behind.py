"""Stones whose price is not of the rule set that counts: how many there are, and which of them somebody means."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast.database.statement import sql

if TYPE_CHECKING:
    from stepfast import Transaction

NEWEST: Final = 2_147_483_647  # a version that there will never be

LEFT = sql("SELECT count(*) FROM diamonds WHERE ruleset_version <> :version")
ENDS = sql("SELECT min(ruleset_version), max(ruleset_version) FROM diamonds")
IN_SCOPE: Final = """ruleset_version <> :version AND ruleset_version >= :oldest AND ruleset_version <= :newest
       AND updated_at >= :since AND (feed = :feed OR :feed = '')"""
LEFT_IN_SCOPE = sql(f"SELECT count(*) FROM diamonds WHERE {IN_SCOPE}")
ANY_IN_SCOPE = sql(f"SELECT 1 FROM diamonds WHERE {IN_SCOPE} LIMIT 1")


@dataclass(frozen=True)
class Scope:
    """Of the stones that are behind: those that this set has priced, for this feed, since then. None: any."""

    version: int | None = None
    feed: str | None = None
    since: int = 0

    @property
    def bounds(self) -> dict[str, Any]:
        """The parameters of `IN_SCOPE`."""
        return {
            "oldest": self.version or 0,
            "newest": self.version or NEWEST,
            "feed": self.feed or "",
            "since": self.since,
        }


ALL: Final = Scope()


def left_behind(tx: Transaction, version: int, scope: Scope = ALL) -> int:
    """How many stones are priced by another set than this."""
    if scope == ALL:
        return int(tx.first(LEFT, version=version))
    return int(tx.first(LEFT_IN_SCOPE, version=version, **scope.bounds))


def any_behind(tx: Transaction, version: int, scope: Scope = ALL) -> bool:
    """Whether there is one. Of all stones, the two ends of an index tell."""
    if scope != ALL:
        return tx.first(ANY_IN_SCOPE, version=version, **scope.bounds) is not None
    low, high = tx.rows(ENDS)[0]
    return low is not None and (int(low), int(high)) != (version, version)
