"""A month is fetched in parts, loaded when all parts are done, and reported; then a part fails, and its tree is revived.

python -m examples.dependencies
"""

from __future__ import annotations

import sys
import tempfile

from stepfast import Retry, Step, Stepfast
from stepfast.testing import drain

app = Stepfast(f"sqlite:///{tempfile.mkdtemp()}/work.db")
broken: set[int] = set()


@app.job(retry=Retry(attempts=1))
def fetch(part: int) -> int:
    """The rows of one part. The first part adds another member to the group."""
    if part in broken:
        raise ConnectionError(f"part {part} does not answer")
    if part == 1:
        with app.group():
            fetch.enqueue(part=4)
    return part * 100


@app.job()
def load(step: Step, month: str) -> int:
    """Starts once, when all parts are done, and gets their results."""
    rows: int = sum(step.parents.values())
    print(f"{month}: loaded {rows} rows of {len(step.parents)} parts")
    return rows


@app.job()
def report(step: Step, month: str) -> None:
    print(f"{month}: reported {sum(step.parents.values())} rows")


def main() -> int:
    with app.group(load.with_args(month="May"), on_dead="fail") as may:
        fetch.enqueue_many([{"part": part} for part in (1, 2, 3)])
    report.enqueue(month="May", after=may.completion, on_dead="fail")
    drain(app)

    broken.add(3)
    with app.group(load.with_args(month="June"), on_dead="fail") as june:
        fetch.enqueue_many([{"part": part} for part in (1, 2, 3)])
    last = report.enqueue(month="June", after=june.completion, on_dead="fail")
    drain(app, raise_errors=False)
    print(f"June: {app.result_of(last.id).error}")

    broken.clear()
    app.operator.by("alice", reason="it answers again").retry(june.completion.id, tree=True)
    drain(app)
    print(f"June, after its tree was revived: {app.result_of(last.id).state}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
