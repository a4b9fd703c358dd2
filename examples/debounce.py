"""A burst of calls becomes two jobs: one that runs, and one that collects the calls that come meanwhile.

python -m examples.debounce
"""

from __future__ import annotations

import sys
import tempfile
import threading

from stepfast import Stepfast

app = Stepfast(f"sqlite:///{tempfile.mkdtemp()}/search.db")
running, go_on = threading.Event(), threading.Event()
batches: list[list[int]] = []


@app.job(merge="append")
def reindex(ids: list[int]) -> None:
    batches.append(ids)
    running.set()
    go_on.wait(10)


def main() -> int:
    calls = [
        reindex.enqueue(ids=[n], key="reindex", debounce="100ms", at_most="1s", on_duplicate="merge")
        for n in range(5)
    ]
    with app.worker():
        running.wait(10)
        calls += [reindex.enqueue(ids=[n], key="reindex", on_duplicate="merge") for n in range(5, 8)]
        go_on.set()
        calls[-1].wait(timeout=10)

    print(f"{len(calls)} calls, {sum(call.created for call in calls)} jobs: {batches}")
    return 0 if batches == [[0, 1, 2, 3, 4], [5, 6, 7]] else 1


if __name__ == "__main__":
    sys.exit(main())
