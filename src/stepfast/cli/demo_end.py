"""How the demo ends: the comparison, the rates, and commands that work on what it leaves behind."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from stepfast.database.drivers import sqlite_path
from stepfast.diamonds.feed import NATURAL
from stepfast.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from stepfast.admin.reports.runs import RunReport
    from stepfast.app import Stepfast
    from stepfast.cli.demo_telling import Telling
    from stepfast.demo.comparison import Comparison
    from stepfast.demo.place import Place

GOOD: Final = "green"
BAD: Final = "bold red"
# A hint is forgotten when it is sent: what is there was not, and whatever was read had been told of.
TOLD: Final = """
    SELECT (SELECT count(*) FROM stepfast_page) + (SELECT COALESCE(sum(rounds), 0) FROM stepfast_run) AS told,
           (SELECT count(*) FROM stepfast_outbox WHERE channel = 'broker' AND state <> 'sent') AS unsent
"""
PRICES: Final = "SELECT shape, count(*), min(feed_price), max(feed_price) FROM diamonds GROUP BY shape"


def show_comparison(telling: Telling, found: Comparison) -> None:
    """The table that the demo is about."""
    judged = (
        ("missing in the table", found.missing),
        ("doubled", found.doubled),
        ("stale: other values than the source has", found.stale),
        ("made up: never at the source", found.made_up),
    )
    rows = [
        ("stones that the feed should find", f"{found.source:,}", "for sale, with a picture or a film"),
        ("stones in the table", f"{found.table:,}", ""),
    ]
    rows += [(name, f"{count:,}", "WRONG" if count else "right") for name, count in judged]
    styles = ["", "", *(BAD if count else GOOD for _, count in judged)]
    if found.left:
        rows.append(
            (
                "sold or held since they were read",
                f"{found.left:,}",
                "the sweep marks them after two full runs",
            )
        )
        styles.append("dim")
    telling.table(rows, styles)
    if found.clean:
        telling.say("the table is the source: missing 0, doubled 0, stale 0", "bold green")
    else:
        telling.say("the table is not the source", BAD)


def show_rates(telling: Telling, runs: Sequence[RunReport], told: Mapping[str, int]) -> None:
    telling.chapter("The rates")
    rows = [(f"{it.kind} sync", _seconds(it.started_at, it.ended_at), rates(it)) for it in runs]
    good = told.get("status 200", 0)
    wrong = told["requests"] - good + told.get("truncated", 0)
    kinds = ((told.get("pages", 0), "page"), (told.get("counts", 0), "count"), (told["logins"], "login"))
    asked = ", ".join(counted(*it) for it in kinds)
    lost = f"{counted(wrong, 'answer')} {'was' if wrong == 1 else 'were'} lost or broken"
    rows.append(("the source", counted(told["requests"], "request"), f"{asked}; {lost}"))
    telling.table(rows)


def show_messages(telling: Telling, app: Stepfast) -> None:
    """What went over the broker."""
    with app.reading() as tx:
        (found,) = tx.query(TOLD)
    unsent = f"; {counted(int(found['unsent']), 'message')} could not be sent yet" if found["unsent"] else ""
    telling.say(f"messages told workers of {int(found['told']):,} pages and consolidations{unsent}")


def rates(run: RunReport) -> str:
    """Where the time of a run went."""
    planned, fetched = run.planned_at or run.started_at, run.fetched_at or run.started_at
    fetching = max(0.001, (fetched - planned).total_seconds())
    applying = max(0.001, ((run.ended_at or fetched) - fetched).total_seconds())
    return (
        f"plan {_seconds(run.started_at, planned)}; "
        f"fetch {fetching:.1f} s: {run.seen / fetching:,.0f} rows/s; "
        f"consolidate {applying:.1f} s: {run.applied / applying:,.0f} rows/s"
    )


def after_all(telling: Telling, place: Place, *, keep: bool) -> None:
    """Where to look next."""
    gone = not keep and place.inside
    telling.chapter("Where to look next")
    if gone:
        telling.say(f"{place.folder} is removed; without --remove it stays, with the database in it")
        return
    for it in look_next(place, program(), with_sqlite=shutil.which("sqlite3") is not None):
        telling.plain(it)
    if keep:
        telling.plain(f"rm -r {shlex.quote(str(place.folder))}")


def look_next(place: Place, stepfast: str, *, with_sqlite: bool) -> list[str]:
    """Commands that work on what is left."""
    secret = "" if place.shown_url == place.url else "  # with the password instead of ***"
    commands = [
        f"export STEPFAST_DATABASE_URL={shlex.quote(place.shown_url)}{secret}",
        f"{stepfast} runs list",
        f"{stepfast} runs show {NATURAL}",
        f"{stepfast} partitions list --run {NATURAL}",
        f"{stepfast} watermark show",
        f"{stepfast} workers list --all",
        f"{stepfast} doctor",
    ]
    if with_sqlite and place.url.startswith("sqlite:"):
        commands.append(f"sqlite3 {shlex.quote(sqlite_path(place.url))} {shlex.quote(PRICES)}")
    return commands


def program() -> str:
    """How to type it here: the shortest way to the program that is running."""
    ours = Path(sys.executable).with_name("stepfast")
    found = shutil.which("stepfast")
    if found is not None and Path(found).resolve() == ours.resolve():
        return "stepfast"
    if not ours.exists():
        return f"{shlex.quote(sys.executable)} -m stepfast"
    return shlex.quote(min(str(ours), os.path.relpath(ours), key=len))


def _seconds(begin: datetime, end: datetime | None) -> str:
    return f"{((end or begin) - begin).total_seconds():.1f} s"
