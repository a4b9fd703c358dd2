"""What the subjects of the consolidation benchmark work on: numbered stones, their table, and the statements that do in
SQL alone what a mapper does."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from stepfast import Feed, Keyset, Page, Range, Stepfast, Window
from stepfast.database.statement import sql
from stepfast.runs.lifecycle import end_fetching
from stepfast.runs.run import create_run

FEED = "stones"
COLUMNS = (
    "id",
    "shape",
    "carats",
    "color",
    "clarity",
    "cut",
    "lab",
    "certificate",
    "price",
    "available",
    "updated",
    "image",
)
TABLE = """
    CREATE TABLE bench_stone (
        id VARCHAR(40) NOT NULL PRIMARY KEY, shape VARCHAR(20), carats DECIMAL(8, 3), color VARCHAR(4), clarity VARCHAR(6),
        cut VARCHAR(10), lab VARCHAR(10), certificate VARCHAR(30), price BIGINT, available INTEGER, updated VARCHAR(40),
        image VARCHAR(200)
    )
"""


def stone(number: int, version: int = 0) -> dict[str, Any]:
    """About 300 bytes of JSON."""
    return {
        "id": f"s{number:08}",
        "shape": "ROUND",
        "carats": "1.023",
        "color": "G",
        "clarity": "VS1",
        "cut": "EX",
        "certificate": {"lab": "GIA", "number": f"22{number:08}"},
        "price": number % 100_000 + version,
        "availability": "AVAILABLE",
        "updated": "2026-06-01T12:00:00Z",
        "image": f"https://images.example/{number:08}/round-brilliant-top-view.jpg",
    }


def mapped(item: dict[str, Any]) -> dict[str, Any]:
    certificate = item["certificate"]
    return {
        "id": item["id"],
        "shape": item["shape"],
        "carats": item["carats"],
        "color": item["color"],
        "clarity": item["clarity"],
        "cut": item["cut"],
        "lab": certificate["lab"],
        "certificate": certificate["number"],
        "price": item["price"],
        "available": 1 if item["availability"] == "AVAILABLE" else 0,
        "updated": item["updated"],
        "image": item["image"],
    }


class Stones(Feed):
    """A feed whose rows have been read; only its mapper is used."""

    name = FEED
    paging = Keyset()
    table = "bench_stone"

    def plan(self, window: Window, /) -> list[Range]:  # noqa: ARG002 - nothing is read
        return []

    def fetch(self, *_: Any) -> Page:
        return Page([])

    def identify(self, item: Any, /) -> str:
        return str(item["id"])

    def map(self, item: Any, /) -> dict[str, Any]:
        return mapped(item)


FETCHED = sql(
    "UPDATE stepfast_run SET state = 'fetching', seen = :seen WHERE id = :id AND state = 'planning'"
)


def begin(app: Stepfast, rows: int) -> None:
    """Start the consolidation of a run that has read this many rows."""
    app.feed(Stones())
    with app.transaction() as tx:
        run = create_run(tx, FEED, "full", Window(None, datetime.now(UTC)), watermark=None)
        tx.run(FETCHED, id=run.id, seen=rows)
        end_fetching(tx, app.feeds.get(FEED), run.id)


_WAITING = "feed = 'stones' AND pending = 1 AND item_id > '{after}'"
NEXT = f"SELECT max(item_id) FROM (SELECT item_id FROM stepfast_raw WHERE {_WAITING} ORDER BY item_id LIMIT 2000) AS batch"
MARK = (
    f"UPDATE stepfast_raw SET pending = 0, applied_hash = content_hash, applied_at = 1 WHERE {_WAITING}"
    " AND item_id <= '{last}'"
)


def insert_select(product: str) -> str:
    """The rows of a batch from the raw table into the target, by the database alone."""
    whole = "SIGNED" if product == "mariadb" else "BIGINT"

    def of(path: str) -> str:
        match product:
            case "postgresql":
                return "document #>> '{" + path.replace(".", ",") + "}'"
            case "mariadb":
                return f"JSON_VALUE(payload, '$.{path}')"
            case _:
                return f"json_extract(payload, '$.{path}')"

    values = (
        "item_id",
        of("shape"),
        f"CAST({of('carats')} AS DECIMAL(8, 3))",
        of("color"),
        of("clarity"),
        of("cut"),
        of("certificate.lab"),
        of("certificate.number"),
        f"CAST({of('price')} AS {whole})",
        f"CASE WHEN {of('availability')} = 'AVAILABLE' THEN 1 ELSE 0 END",
        of("updated"),
        of("image"),
    )
    source = f"stepfast_raw WHERE {_WAITING} AND item_id <= '{{last}}' ORDER BY item_id"
    if product == "postgresql":  # parsed once for a row, not once for a column
        source = f"(SELECT item_id, CAST(payload AS JSONB) AS document FROM {source} OFFSET 0) AS batch"
    kept = ", ".join(
        f"{name} = VALUES({name})" if product == "mariadb" else f"{name} = excluded.{name}"
        for name in COLUMNS[1:]
    )
    end = "ON DUPLICATE KEY UPDATE" if product == "mariadb" else "ON CONFLICT (id) DO UPDATE SET"
    insert = f"INSERT INTO bench_stone ({', '.join(COLUMNS)}) SELECT {', '.join(values)} FROM {source}"
    return _escaped(f"{insert} {end} {kept}")


def _escaped(text: str) -> str:
    """Braces of JSON paths stay when the text is formatted."""
    return (
        text.replace("'{", "'{{")
        .replace("}'", "}}'")
        .replace("'{{after}}'", "'{after}'")
        .replace("'{{last}}'", "'{last}'")
    )
