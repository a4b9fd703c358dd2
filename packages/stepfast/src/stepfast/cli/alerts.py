"""`stepfast alerts`: what people should know, whether they were told, and whether they can be."""

from __future__ import annotations

import typer

from stepfast.cli.options import DatabaseUrl, Json, Limit, opened
from stepfast.cli.output import print_json, print_table

app = typer.Typer(help="Alerts: list them, test where they go.", no_args_is_help=True)


@app.command("list")
def list_(
    ctx: typer.Context, *, limit: Limit = 50, json: Json = False, database_url: DatabaseUrl = None
) -> None:
    """List alerts by cause, the latest raised first."""
    from stepfast.admin.outbox import list_alerts

    with opened(ctx, database_url) as database, database.reading() as tx:
        found = list_alerts(tx, limit=limit)
    if json:
        print_json(found)
        return
    print_table(
        ("state", "severity", "raised", "untold", "last (UTC)", "told (UTC)", "cause", "title", "error"),
        [
            (
                it.state,
                it.severity,
                it.raised,
                it.untold,
                it.last_at,
                it.notified_at,
                it.cause,
                it.title,
                it.last_error,
            )
            for it in found
        ],
        empty="no alerts",
        less=("title", "told (UTC)", "untold", "severity", "last (UTC)"),
        cut=("cause", "title"),
    )


@app.command("test")
def send_test(*, json: Json = False) -> None:
    """Send a test alert to every place in STEPFAST_ALERT_URLS, from here and now. Exits with 1 if one did not get it."""
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
