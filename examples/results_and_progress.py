"""Wait for a job, watch another, wait for many results at once, and read the audit.

python -m examples.results_and_progress
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from dataclasses import dataclass

from stepfast import JobCancelledError, Retry, Step, Stepfast
from stepfast.reports import Ended, Logged, Progressed, StateChanged

app = Stepfast(f"sqlite:///{tempfile.mkdtemp()}/work.db")


@dataclass
class Report:
    month: str
    rows: int


@app.job(retry=Retry(attempts=3, first="10ms"), result_ttl="1h")
def report(step: Step, month: str) -> Report:
    """Fails once, and reports its progress."""
    step.log(f"reading {month}, try {step.attempt}")
    for percent in (30, 60):
        step.progress(percent, f"{percent // 3} rows")
        time.sleep(0.1)
    if step.attempt == 1:
        raise ConnectionError("the archive is busy")
    return Report(month, rows=30)


@app.job()
async def square(n: int) -> int:
    await asyncio.sleep(0.01)
    return n * n


def main() -> int:
    with app.worker():
        # Watch one job: its states, its progress, its log, through the retry to its end.
        for update in report.enqueue(month="May").watch(timeout="30s"):
            match update:
                case Logged(message=message):
                    print(f"  log       {message.splitlines()[0]}")
                case Progressed(percent, note):
                    print(f"  progress  {percent} %, {note}")
                case StateChanged():
                    print(f"  state     {update.state}, try {update.attempts}")
                case Ended(outcome):
                    print(f"  end       {outcome.state}: {outcome.result}")

        # Wait for one, blocking; the result has the type that the handler returns.
        rows = report.enqueue(month="June").wait(timeout="30s").result.rows
        print(f"June has {rows} rows")

        # Wait for many, without a thread for each.
        total = asyncio.run(sum_of_squares(100))
        print(f"the sum of 100 squares is {total}")

    # An operator cancels a job: the wait raises with the reason, and the audit has the name.
    job = report.enqueue(month="July")
    app.operator.by("alice", reason="July is not over").cancel(job.id)
    try:
        print(job.wait(timeout="30s").result)
    except JobCancelledError as error:
        print(error)
    (entry,) = app.operator.audit()
    print(f"{entry.who} did {entry.what}, because: {entry.why}")
    app.close()
    return 0 if (rows, total, entry.who) == (30, 328_350, "alice") else 1


async def sum_of_squares(count: int) -> int:
    jobs = square.enqueue_many([{"n": n} for n in range(count)])
    return sum(await asyncio.gather(*(job.result(timeout="30s") for job in jobs)))


if __name__ == "__main__":
    sys.exit(main())
