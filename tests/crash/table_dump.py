"""All rows of a database, with ids, fences and instants replaced by words that two runs of the same case share.

Jobs get the numbers of their payloads, fences and incarnations are named in the order in which they appear, and an
instant is long ago, now, or later.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Stepfast

Dump = dict[str, list[dict[str, Any]]]

TABLES = (
    "job",
    "archive",
    "worker",
    "queue",
    "key",
    "log",
    "limit",
    "slot",
    "audit",
    "schedule",
    "outbox",
    "destination",
    "alert",
    "bookmark",
    "death",
    "dependency",
    "event_name",
    "event",
    "wait",
    "mask",
)
OWN_TABLES = ("effect",)
ALL_TABLES = (*(f"stepfast_{name}" for name in TABLES), *OWN_TABLES)

ACCIDENTAL = {"process", "host", "pid", "seq"}  # of the machine and of earlier tests
NUMBERED = {"stepfast_log", "stepfast_event", "stepfast_wait"}
TOKENS = {"fence", "committed_fence", "owner", "incarnation", "revision"}
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
EVENT_TIME = re.compile(r'"at":\d{13,}')  # in the cursor of a job whose event has come
MINUTE = 60 * rows.SECOND


def dump(app: Stepfast) -> Dump:
    """Everything that is committed now."""
    found = {table: rows.query(app, f"SELECT * FROM {table}") for table in ALL_TABLES}
    jobs = _names([*found["stepfast_job"], *found["stepfast_archive"]])
    now = rows.now(app)
    tokens: dict[int, str] = {0: "nobody"}
    dumped: Dump = {}
    for table, lines in found.items():
        named = [_renamed(table, line, jobs, now) for line in lines]
        named.sort(key=lambda line: _sort_key(line, tokens))
        dumped[table] = [_tokens_named(line, tokens) for line in named]
    return dumped


def _sort_key(line: rows.Row, tokens: dict[int, str]) -> tuple[str, list[str]]:
    """The sort key of a line; of lines that differ only in their tokens, the known ones come first."""
    words = {column: value for column, value in line.items() if column not in TOKENS}
    known = [tokens.get(line[column], "~") for column in sorted(TOKENS & line.keys())]
    return json.dumps(words, default=str), known


def _names(jobs: list[rows.Row]) -> dict[str, str]:
    return {str(row["id"]): f"job {json.loads(row['payload'])['n']}" for row in jobs}


def _renamed(table: str, line: rows.Row, jobs: dict[str, str], now: int) -> rows.Row:
    renamed: rows.Row = {}
    for column, value in line.items():
        if column in ACCIDENTAL or (table in NUMBERED and column == "id") or value is None:
            continue
        if (isinstance(value, int) and column.endswith(("_at", "_until", "until_at"))) or column == "at":
            renamed[column] = _when(value, now)
        elif isinstance(value, str):
            renamed[column] = _without_ids(value, jobs)
        else:
            renamed[column] = value
    return renamed


def _without_ids(text: str, jobs: dict[str, str]) -> str:
    for job_id, name in jobs.items():
        text = text.replace(job_id, name)
    return EVENT_TIME.sub('"at":0', UUID.sub("an id", text))


def _when(instant: int, now: int) -> str:
    if instant < now - MINUTE:
        return "long ago"
    return "later" if instant > now + MINUTE else "now"


def _tokens_named(line: rows.Row, tokens: dict[int, str]) -> rows.Row:
    """Replace tokens by names; equal tokens get equal names in all tables."""
    for column in sorted(TOKENS & line.keys()):
        line[column] = tokens.setdefault(line[column], f"token {len(tokens)}")
    return line
