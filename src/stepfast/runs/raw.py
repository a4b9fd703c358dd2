"""Raw rows: the newest observation of every item of a feed, as the source gave it.

An observation carries the time at which its request began, on the source's clock. An older one never replaces a
newer one, whichever is written last. What is equal to what was consolidated is not consolidated again.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from stepfast.database.lists import as_document, as_parameter
from stepfast.database.statement import sql

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from stepfast.database.connection import Transaction

CHUNK = 500
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")

_INSERT = "INSERT INTO stepfast_raw (feed, item_id, observed_at, run_id, content_hash, payload)"
_NEWER = """
    ON CONFLICT (feed, item_id) DO UPDATE
       SET observed_at = excluded.observed_at, run_id = excluded.run_id, payload = excluded.payload,
           content_hash = excluded.content_hash, strikes = 0, gone_at = NULL,
           pending = CASE WHEN stepfast_raw.applied_hash = excluded.content_hash AND stepfast_raw.gone_at IS NULL
                          THEN 0 ELSE 1 END
     WHERE excluded.observed_at > stepfast_raw.observed_at
"""
# MariaDB assigns from left to right: what decides comes last.
_NEWER_ON_MARIADB = """
    ON DUPLICATE KEY UPDATE
        run_id = IF(VALUES(observed_at) > observed_at, VALUES(run_id), run_id),
        payload = IF(VALUES(observed_at) > observed_at, VALUES(payload), payload),
        content_hash = IF(VALUES(observed_at) > observed_at, VALUES(content_hash), content_hash),
        strikes = IF(VALUES(observed_at) > observed_at, 0, strikes),
        pending = IF(VALUES(observed_at) > observed_at,
                     IF(applied_hash <=> VALUES(content_hash) AND gone_at IS NULL, 0, 1), pending),
        gone_at = IF(VALUES(observed_at) > observed_at, NULL, gone_at),
        observed_at = GREATEST(VALUES(observed_at), observed_at)
"""
OBSERVE = sql(
    f"""
    {_INSERT}
    SELECT :feed, json_extract(value, '$[0]'), :observed_at, :run_id, json_extract(value, '$[1]'), json_extract(value, '$[2]')
      FROM json_each(:rows) WHERE true
    {_NEWER}
    """,
    postgresql=f"""
    {_INSERT}
    SELECT CAST(:feed AS TEXT), item.id, CAST(:observed_at AS BIGINT), CAST(:run_id AS TEXT), item.hash, item.payload
      FROM unnest(CAST(:ids AS TEXT[]), CAST(:hashes AS TEXT[]), CAST(:payloads AS TEXT[])) AS item (id, hash, payload)
    {_NEWER}
    """,
    mariadb=f"""
    {_INSERT}
    SELECT :feed, item.id, :observed_at, :run_id, item.hash, item.body
      FROM JSON_TABLE(:rows, '$[*]' COLUMNS (id VARCHAR(200) PATH '$[0]', hash VARCHAR(64) PATH '$[1]', body LONGTEXT PATH '$[2]')) AS item
    {_NEWER_ON_MARIADB}
    """,
)

SEEN = sql("""
    SELECT item_id, pass FROM stepfast_seen WHERE partition_id = :partition_id AND item_id {any_of:ids}
""")

# In which pass of its partition an item was read last.
REMEMBER_SEEN = sql(
    """
    INSERT INTO stepfast_seen (partition_id, item_id, pass)
    SELECT :partition_id, value, :pass FROM json_each(:rows) WHERE true
    ON CONFLICT (partition_id, item_id) DO UPDATE SET pass = excluded.pass
    """,
    postgresql="""
    INSERT INTO stepfast_seen (partition_id, item_id, pass)
    SELECT CAST(:partition_id AS TEXT), item_id, CAST(:pass AS INTEGER) FROM unnest(CAST(:ids AS TEXT[])) AS seen (item_id)
    ON CONFLICT (partition_id, item_id) DO UPDATE SET pass = excluded.pass
    """,
    mariadb="""
    INSERT INTO stepfast_seen (partition_id, item_id, pass)
    SELECT :partition_id, seen.id, :pass FROM JSON_TABLE(:rows, '$[*]' COLUMNS (id VARCHAR(200) PATH '$')) AS seen
    ON DUPLICATE KEY UPDATE pass = VALUES(pass)
    """,
)

# The same where all of them are supposed to be new: one that was known makes the count of rows wrong, and everything
# is rolled back. (MariaDB counts a row twice that it changes, and once if it leaves it as it is.)
REMEMBER_NEW = sql(
    """
    INSERT INTO stepfast_seen (partition_id, item_id, pass)
    SELECT :partition_id, value, :pass FROM json_each(:rows) WHERE true
    ON CONFLICT (partition_id, item_id) DO NOTHING
    """,
    postgresql="""
    INSERT INTO stepfast_seen (partition_id, item_id, pass)
    SELECT CAST(:partition_id AS TEXT), item_id, CAST(:pass AS INTEGER) FROM unnest(CAST(:ids AS TEXT[])) AS seen (item_id)
    ON CONFLICT (partition_id, item_id) DO NOTHING
    """,
    mariadb="""
    INSERT INTO stepfast_seen (partition_id, item_id, pass)
    SELECT :partition_id, seen.id, :pass FROM JSON_TABLE(:rows, '$[*]' COLUMNS (id VARCHAR(200) PATH '$')) AS seen
    ON DUPLICATE KEY UPDATE pass = pass + 1
    """,
)


class Observation(NamedTuple):
    """One item as a page showed it."""

    item_id: str
    content_hash: str
    payload: str


def observed(item_id: str, item: Any, volatile: Collection[str] = ()) -> Observation:
    """An item with the hash of what matters: `volatile` top-level fields do not make it a new one.

    Its identity matters, too: no two items ever have one hash, so that a row can be told by it alone.
    """
    hashed = payload = _ENCODER.encode(item)
    if volatile and isinstance(item, dict):
        hashed = _ENCODER.encode({name: value for name, value in item.items() if name not in volatile})
    digest = hashlib.blake2b(f"{item_id}\0".encode() + hashed, digest_size=20).hexdigest()
    # What Observation(…) does in the end, without its Python: thousands are made in a second.
    return tuple.__new__(Observation, (item_id, digest, payload.decode()))


def observe(
    tx: Transaction, feed: str, run_id: str, observed_at: int, observations: Sequence[Observation]
) -> None:
    """Write them in the order of their ids, one statement per chunk. Each id at most once."""
    tx.run_many(OBSERVE, observing(tx, feed, run_id, observed_at, observations))


def observing(
    tx: Transaction, feed: str, run_id: str, observed_at: int, observations: Sequence[Observation]
) -> list[dict[str, Any]]:
    """What OBSERVE is given for them, once per chunk."""
    shared = {"feed": feed, "run_id": run_id, "observed_at": observed_at}
    rows = sorted(observations)
    chunks = [rows[at : at + CHUNK] for at in range(0, len(rows), CHUNK)]
    if not tx.takes_lists:
        return [{**shared, "rows": as_document(chunk)} for chunk in chunks]
    columns = [[as_parameter(list(it), tx.dialect) for it in zip(*chunk, strict=True)] for chunk in chunks]
    return [
        {**shared, "ids": ids, "hashes": hashes, "payloads": payloads} for ids, hashes, payloads in columns
    ]


def already_seen(tx: Transaction, partition_id: str, ids: Sequence[str]) -> dict[str, int]:
    """Which of these items the partition has read before, and in which pass last."""
    found: dict[str, int] = {}
    for start in range(0, len(ids), CHUNK):
        chunk = list(ids[start : start + CHUNK])
        found.update((row[0], row[1]) for row in tx.rows(SEEN, partition_id=partition_id, ids=chunk))
    return found


def remember_seen(tx: Transaction, partition_id: str, ids: Collection[str], pass_: int) -> None:
    if ids:
        tx.run(REMEMBER_SEEN, **remembering(tx, partition_id, ids, pass_))


def remembering(tx: Transaction, partition_id: str, ids: Collection[str], pass_: int) -> dict[str, Any]:
    """What REMEMBER_SEEN and REMEMBER_NEW are given."""
    listed = sorted(ids)
    rows = {"ids": as_parameter(listed, tx.dialect)} if tx.takes_lists else {"rows": as_document(listed)}
    return {"partition_id": partition_id, "pass": pass_, **rows}
