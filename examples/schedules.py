"""A report every second, fired by three workers: every tick becomes one job.

python -m examples.schedules
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

from stepfast import Stepfast


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        app = Stepfast(f"sqlite:///{Path(folder) / 'work.db'}")
        ticks: list[datetime] = []
        enough = threading.Event()

        @app.job()
        def report(at: datetime, region: str = "all") -> None:
            print(f"report of {at:%H:%M:%S} for {region}")
            if region == "all":
                ticks.append(at)
            if len(ticks) >= 3:
                enough.set()

        # In code: a worker that starts writes it into the table.
        app.schedule("every-second", report, every="1s", tick_as="at")

        with ExitStack() as workers:
            for _ in range(3):
                workers.enter_context(app.worker())
            enough.wait(30)

            # At run time: pause it, add another one, trigger that one.
            app.schedules.pause("every-second", "that is enough")
            app.schedules.add(
                "nightly",
                report,
                cron="30 2 * * *",
                tz="Europe/Paris",
                arguments={"region": "France"},
                tick_as="at",
                missed="all",
            )
            app.schedules.trigger("nightly").wait(30)

        for line in app.schedules.all():
            print(f"{line.name}: {line.when} ({line.tz}), {line.state}")
        for tick in app.schedules.show("nightly").ahead[:2]:
            print(f"nightly fires at {tick.local:%H:%M} in Paris, {tick.utc:%H:%M} UTC")
        doubled = [at for at, count in Counter(ticks).items() if count > 1]
        print(f"{len(set(ticks))} ticks, {len(doubled)} of them twice")
        early = [at for at in ticks if at > datetime.now(UTC)]
        app.close()
    return 1 if doubled or early else 0


if __name__ == "__main__":
    sys.exit(main())
