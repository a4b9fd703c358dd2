"""The version of a feed's rows: a number that grows with each change, so that caches of searches know when to forget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast import sql

if TYPE_CHECKING:
    from stepfast import Transaction


_BUMP = "INSERT INTO dataset_versions (feed, version, changed_at) VALUES (:feed, 1, {now})"
BUMP_VERSION = sql(
    _BUMP + " ON CONFLICT (feed) DO UPDATE SET version = dataset_versions.version + 1, changed_at = {now}",
    mariadb=_BUMP + " ON DUPLICATE KEY UPDATE version = version + 1, changed_at = {now}",
)
READ_VERSION = sql("SELECT version FROM dataset_versions WHERE feed = :feed")


def bump_version(tx: Transaction, feed: str) -> None:
    """Count a change of the feed's rows, in this transaction."""
    tx.run(BUMP_VERSION, feed=feed)


def dataset_version(tx: Transaction, feed: str) -> int:
    """The version of a feed's rows; 0 if none were published yet."""
    return int(tx.first(READ_VERSION, feed=feed) or 0)
