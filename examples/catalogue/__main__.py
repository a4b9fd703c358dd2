"""A catalogue of 1,000 items is synced while items are sold and requests are throttled or fail; in the end the table is right.

python -m examples.catalogue
"""

from __future__ import annotations

import logging
import sys
import tempfile
from typing import TYPE_CHECKING, Any

from examples.catalogue.feed import Catalogue
from examples.catalogue.shop import OPENED, Shop
from stepfast import Stepfast

if TYPE_CHECKING:
    from stepfast.reports import RunReport

TABLE = "CREATE TABLE item (id VARCHAR(20) NOT NULL PRIMARY KEY, price INTEGER NOT NULL, gone_at BIGINT)"

logging.getLogger("stepfast").setLevel(logging.CRITICAL)  # this program prints its own report

shop = Shop(1_000)
app = Stepfast(f"sqlite:///{tempfile.mkdtemp()}/catalogue.db")
app.feed(Catalogue(shop))


def main() -> int:
    with app.transaction() as tx:
        tx.execute(TABLE)
    shop.put("A-0007", None, OPENED)  # a row that cannot be mapped

    with app.worker():
        heading("The first run reads everything, and one part of the shop answers nonsense.")
        first = wait(app.runs.start("catalogue").id)
        for partition in app.runs.partitions(first.id, failed=True):
            print(
                f"   partition {partition.number} ({partition.name}) after {partition.seen} rows: {partition.last_error}"
            )
        print(f"   published: {len(table())} items; watermark: {first.watermark_after}")

        heading("The shop is repaired. A retry goes on where each partition stopped.")
        shop.broken = False
        again = app.runs.retry(first.id)
        print(f"   read again: {', '.join(again.partitions)}")
        first = wait(first.id)
        print(
            f"   the shop sold {shop.sold} items meanwhile and wanted fewer requests {shop.throttled} times"
        )
        print(f"   in quarantine: {first.quarantined}; watermark: {first.watermark_after}")
        missed = set(shop.prices()) - set(table())
        print(f"   items that the shop has and we do not: {len(missed)}")

        heading("Three prices change. The next run reads what changed since the watermark.")
        for number in (100, 200, 300):
            shop.put(f"A-{number:04}", 1)
        requests = shop.requests
        second = wait(app.runs.start("catalogue").id)
        print(f"   {second.kind}: {second.seen} rows in {shop.requests - requests} pages")

        heading("Only a full run notices sold items. It marks them as gone.")
        third = wait(app.runs.start("catalogue", "full").id)
        print(f"   gone: {third.gone}, the shop sold {shop.sold}")

    right = table() == shop.prices()
    heading(f"The table and the shop are {'the same' if right else 'DIFFERENT'}: {len(table())} items.")
    for row in query(
        "SELECT run_type, completed_workers, expected_workers, failed_workers FROM run_metadata"
    ):
        print(
            f"   {row['run_type']}: {row['completed_workers']}/{row['expected_workers']}, {row['failed_workers']} failed"
        )
    return 0 if right and not missed else 1


def wait(run_id: str) -> RunReport:
    """Wait until the run has ended, and print how."""
    for _ in app.runs.watch(run_id):
        pass
    run = app.runs.show(run_id).run
    why = f"; {run.reason}" if run.reason else ""
    print(f"   run {run.state}: {run.completed} of {run.partitions} partitions, {run.seen} rows{why}")
    return run


def table() -> dict[str, int]:
    return {row["id"]: row["price"] for row in query("SELECT id, price FROM item WHERE gone_at IS NULL")}


def query(text: str) -> list[dict[str, Any]]:
    with app.transaction() as tx:
        return tx.query(text)


def heading(text: str) -> None:
    print(f"\n{text}")


if __name__ == "__main__":
    sys.exit(main())
