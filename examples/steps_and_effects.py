"""A catalogue of 95 rows is copied page by page; each page is a step with a transaction of its own.

At one page the shop does not answer; only the step of that page is tried again.

    python -m examples.steps_and_effects
"""

from __future__ import annotations

import sys
import tempfile

from stepfast import Continue, Done, Reject, Retry, Step, Stepfast

CATALOGUE = [{"sku": f"S-{n:03}", "price": n} for n in range(95)]
PAGE = 30

app = Stepfast(f"sqlite:///{tempfile.mkdtemp()}/catalogue.db")


@app.job(retry=Retry(attempts=3, first="10ms"), timeout="10s")
async def copy_catalogue(step: Step, shop: str) -> Continue | Done | Reject:
    offset = step.cursor or 0
    if shop != "corner-shop":
        return Reject(f"no such shop: {shop}")  # no retry can help: a dead letter at once
    if offset == 60 and step.attempt == 1:
        raise ConnectionError("the shop does not answer")  # tried again, this page only
    page = CATALOGUE[offset : offset + PAGE]
    step.upsert("product", page, key="sku")  # written when this step commits, with the new cursor
    step.progress(100 * (offset + len(page)) / len(CATALOGUE), f"{offset + len(page)} rows")
    step.log(f"page at {offset}: {len(page)} rows")
    return Continue(offset + PAGE) if offset + PAGE < len(CATALOGUE) else Done({"rows": len(CATALOGUE)})


def main() -> int:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE product (sku TEXT PRIMARY KEY, price INTEGER)")
    good, bad = copy_catalogue.enqueue(shop="corner-shop"), copy_catalogue.enqueue(shop="nowhere")

    with app.worker():
        good.wait(timeout="30s")
        bad.wait(timeout="30s")

    detail = app.operator.job(good.id)
    for line in detail.logs:
        print(f"step {line.step}  {line.level:5}  {line.message.splitlines()[0]}")
    print(f"{detail.job.state} after {detail.job.step + 1} steps, result {detail.result}")
    with app.transaction() as tx:
        rows = tx.query("SELECT count(*) AS n FROM product")[0]["n"]
    print(f"{rows} products; the other job is {app.operator.job(bad.id).job.state}")
    return 0 if rows == len(CATALOGUE) else 1


if __name__ == "__main__":
    sys.exit(main())
