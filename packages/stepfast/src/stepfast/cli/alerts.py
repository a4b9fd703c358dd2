"""`stepfast alerts`: list alerts, and test where they go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from stepfast.cli.options import DatabaseUrl, Json, Limit, operating
from stepfast.cli.output import Listing, print_json, print_table

if TYPE_CHECKING:
    from stepfast.reports import AlertReport


app = typer.Typer(help="List alerts, and test where they go.", no_args_is_help=True)

ALERTS: Listing[AlertReport] = Listing(
    columns={
        "state": "state",
        "severity": "severity",
        "raised": "raised",
        "untold": "untold",
        "last (UTC)": "last_at",
        "told (UTC)": "notified_at",
        "cause": "cause",
        "title": "title",
        "error": "last_error",
    },
    empty="no alerts",
    less=("title", "told (UTC)", "untold", "severity", "last (UTC)"),
    cut=("cause", "title"),
)


@app.command("list")
def list_(
    ctx: typer.Context, *, limit: Limit = 50, json: Json = False, database_url: DatabaseUrl = None
) -> None:
    """List alerts by cause, the latest raised first."""
    with operating(ctx, database_url) as operator:
        ALERTS.show(operator.alerts(limit=limit), json=json)


@app.command("test")
def send_test(*, json: Json = False) -> None:
    """Send a test alert to every place in STEPFAST_ALERT_URLS, from here and now. Exits with 1 if one of them failed."""
    from stepfast.errors import ConfigurationError
    from stepfast.notifications.alert import AlertText, places, send
    from stepfast.notifications.settings import from_environment
    from stepfast.notifications.webhook import Failed

    urls = from_environment().alert_urls
    if not urls:
        raise ConfigurationError("STEPFAST_ALERT_URLS is not set: alerts are listed, and sent nowhere")
    text = AlertText("Stepfast test alert", "If you can read this, alerts reach you.", "info")
    outcomes = [(place, send(place, text, urls)) for place in places(urls)]
    rows = [(place, it.reason if isinstance(it, Failed) else None) for place, it in outcomes]
    if json:
        print_json([{"to": place, "sent": error is None, "error": error} for place, error in rows])
    else:
        print_table(
            ("to", "state", "error"),
            [(place, "fail" if error else "ok", error) for place, error in rows],
            empty="nowhere to send to",
        )
    if any(error for _, error in rows):
        raise typer.Exit(1)
