"""A revived job waits again for what it comes after, as far as that is not done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepfast.database.statement import sql
from stepfast.steps.dependants import let_go, locked_waiting
from stepfast.steps.dependencies import look_at, mark

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepfast.database.connection import Transaction

UNMET = sql("""
    SELECT DISTINCT parent_id FROM stepfast_dependency WHERE child_id {any_of:ids} AND state <> 'met'
""")
REOPEN = sql("""
    UPDATE stepfast_dependency SET state = 'open'
     WHERE child_id {any_of:ids} AND parent_id {any_of:parents} AND state = 'broken'
""")
MEET = sql("""
    UPDATE stepfast_dependency SET state = 'met'
     WHERE child_id {any_of:ids} AND parent_id {any_of:parents} AND state <> 'met'
""")


def wait_again(tx: Transaction, ids: Sequence[str]) -> None:
    """Look again at the parents of these jobs, which are live in this transaction for the first time.

    A parent that is dead is waited for, whatever the policy was: whoever revives a job knows about it, and revives the
    parent as well. One that was forgotten counts as done: nobody can revive it.
    """
    waiting = locked_waiting(tx, ids)
    if not waiting:
        return
    # Whoever ends a parent now does not see our children yet. It ends before we look at the edges, or after we hold it.
    children = [it.id for it in waiting]
    parents = {str(row[0]) for row in tx.rows(UNMET, ids=children)}
    standing = look_at(tx, sorted(parents))
    over = sorted(it for it in parents if standing.get(it, "done") == "done")
    if over:
        tx.run(MEET, ids=children, parents=over)
    if waited_for := sorted(parents.difference(over)):
        tx.run(REOPEN, ids=children, parents=waited_for)
    mark(tx, standing)
    let_go(tx, waiting)
