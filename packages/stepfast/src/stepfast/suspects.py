"""The mark of a suspect: a job whose step had started on a worker that died, and which may have killed it.

A suspect runs apart from other jobs, whatever becomes of it meanwhile: it may be given back, snoozed, held by a limit or
hastened. So the mark is its `error_group`, and every statement that makes a job ready asks for it by `READY_STATE`.
`jobs/rescue.py` says how a job becomes a suspect, and what it is charged with.
"""

from __future__ import annotations

from typing import Final

CRASH_NOTE: Final = "Lease expired - worker crashed or timed out"
CRASH_GROUP: Final = CRASH_NOTE  # the error group of a live job that is a suspect, or was leased as one
READY_STATE: Final = f"CASE WHEN error_group = '{CRASH_GROUP}' THEN 'suspect' ELSE 'ready' END"
