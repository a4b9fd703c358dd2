"""`stepfast debts`: ranges that could not be verified, and must be read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stepfast.cli.options import (
    LARGEST_ID,
    SMALLEST_ID,
    By,
    DatabaseUrl,
    Json,
    Limit,
    OneFeed,
    Reason,
    RequiredReason,
    operating,
)
from stepfast.cli.output import Listing, answer

if TYPE_CHECKING:
    from stepfast.reports import DebtReport


app = typer.Typer(help="List ranges that must be read again, close or retry them.", no_args_is_help=True)

OneDebt = Annotated[int, typer.Argument(metavar="ID", min=SMALLEST_ID, max=LARGEST_ID, help="Which debt.")]

DEBTS: Listing[DebtReport] = Listing(
    columns={
        "id": "id",
        "feed": "feed",
        "state": "state",
        "tries": "tries",
        "from (UTC)": lambda debt: debt.window_from or "ever",
        "to (UTC)": "window_to",
        "opened (UTC)": "opened_at",
        "closed by": "closed_by",
        "range": "range",
        "reason": "reason",
    },
    empty="no open debts",
    less=("closed by", "opened (UTC)", "from (UTC)"),
    cut=("range",),
)


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    feed: OneFeed = None,
    everything: Annotated[bool, typer.Option("--all", help="Also closed debts.")] = False,
    limit: Limit = 50,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List debts, the latest first. A debt that was given up is read again only after `debts retry`."""
    with operating(ctx, database_url) as operator:
        found = operator.debts(feed, everything=everything, limit=limit)
    DEBTS.show(found, json=json, empty="no debts" if everything else None)


@app.command("close")
def close(
    ctx: typer.Context,
    debt_id: OneDebt,
    *,
    reason: RequiredReason,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Accept that a range may be incomplete in its window: no run reads it again for this debt."""
    with operating(ctx, database_url, by, reason) as operator:
        operator.close_debt(debt_id)
    answer({"id": debt_id, "state": "closed"}, f"debt {debt_id} is closed", json=json)


@app.command("retry")
def retry(
    ctx: typer.Context,
    debt_id: OneDebt,
    *,
    reason: Reason = None,
    by: By = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Let the next runs read the range again, with fresh tries; a closed debt is open again."""
    with operating(ctx, database_url, by, reason) as operator:
        operator.retry_debt(debt_id)
    answer({"id": debt_id, "state": "open"}, f"debt {debt_id} is read by the next run", json=json)
