"""Two customers, one with a hundred jobs and one with three: a limit by customer keeps them from blocking each other.

python -m examples.limits
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from stepfast import Concurrency, Stepfast


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        app = Stepfast(f"sqlite:///{Path(folder) / 'work.db'}")
        lock = threading.Lock()
        running: Counter[str] = Counter()
        most: Counter[str] = Counter()
        order: list[str] = []
        all_done = threading.Event()

        @app.job(limits=[Concurrency(2, by="customer")])
        def fetch(customer: str) -> None:
            with lock:
                running[customer] += 1
                most[customer] = max(most[customer], running[customer])
            time.sleep(0.01)
            with lock:
                running[customer] -= 1
                order.append(customer)
                if len(order) == 103:
                    all_done.set()

        fetch.enqueue_many([{"customer": "large"}] * 100)
        fetch.enqueue_many([{"customer": "small"}] * 3)
        with app.worker(concurrency=10):
            all_done.wait(30)
        app.close()

    last_small = max(place for place, customer in enumerate(order, 1) if customer == "small")
    print(f"at the same time: large {most['large']}, small {most['small']} (2 allowed)")
    print(
        f"the last job of small was number {last_small} of {len(order)}, although it was enqueued behind 100 others"
    )


if __name__ == "__main__":
    main()
