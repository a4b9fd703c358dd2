"""Every feed's dataset has a number that grows with each change, so that whoever caches searches knows when to forget."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast import sql

if TYPE_CHECKING:
    from stepfast import Transaction


_BUMP = "INSERT INTO dataset_versions (feed, version, changed_at) VALUES (:feed, 1, {now})"
BUMP = sql(
    _BUMP + " ON CONFLICT (feed) DO UPDATE SET version = dataset_versions.version + 1, changed_at = {now}",
    mariadb=_BUMP + " ON DUPLICATE KEY UPDATE version = version + 1, changed_at = {now}",
)
VERSION = sql("SELECT version FROM dataset_versions WHERE feed = :feed")
FEEDS = sql("SELECT feed FROM dataset_versions ORDER BY feed")


def bump(tx: Transaction, feed: str) -> None:
    """The dataset changes with this transaction."""
    tx.run(BUMP, feed=feed)


def bump_all(tx: Transaction) -> None:
    """All of them, in the order in which everybody takes them."""
    for (feed,) in tx.rows(FEEDS):
        bump(tx, str(feed))


def dataset_version(tx: Transaction, feed: str) -> int:
    """0: nothing of this feed was published yet."""
    return int(tx.first(VERSION, feed=feed) or 0)
