"""Leases by hand, for a program that is not a Stepfast worker: acquire, extend, release.

python -m examples.manual_lease
"""

from __future__ import annotations

import sys
import tempfile
import time

from stepfast import LeaseLostError, Stepfast

app = Stepfast(f"sqlite:///{tempfile.mkdtemp()}/work.db")


@app.job(queue="scans")
def scan(path: str) -> None:
    """Never called: only the name, the queue and the retry policy are used here."""


def main() -> int:
    first, second = (scan.enqueue(path=f"/scans/{n}.tif").id for n in (1, 2))

    # The usual way: acquire, extend while it takes long, release.
    if lease := app.acquire("scanner-1", lease="5m", queue="scans"):
        print(f"{lease.worker_id} has {lease.payload['path']} until {lease.until:%H:%M:%S}")
        lease = app.extend(lease, "10m")
        print(f"extended until {lease.until:%H:%M:%S}")
        app.release(lease, "done", result={"pages": 3})
        print(f"{first} is {state(first)}")

    # A scanner that stops: its lease runs out, and another one gets the job.
    silent = app.acquire("scanner-1", lease="1ms", queue="scans")
    time.sleep(0.05)
    print(f"reset {app.operator.reset_leases()} expired lease")  # running workers do this automatically
    successor = app.acquire("scanner-2", lease="5m", queue="scans")
    if silent is None or successor is None:
        return 1
    try:
        app.release(silent, "done")
    except LeaseLostError as error:
        print(f"scanner-1 comes back too late: {error}")
    app.release(successor, "failed", "the page is torn")
    print(f"{second} is {state(second)}")
    return 0 if (state(first), state(second)) == ("done", "dead") else 1


def state(job_id: str) -> str:
    return app.operator.job(job_id).job.state


if __name__ == "__main__":
    sys.exit(main())
