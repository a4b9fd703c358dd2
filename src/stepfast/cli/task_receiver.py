"""`stepfast tasks receiver`: the other side of a task's webhook, as a server of its own."""

from __future__ import annotations

import os
import re
import signal
from typing import Annotated

import typer

from stepfast.cli.options import DatabaseUrl, url
from stepfast.errors import ConfigurationError


def receiver(
    ctx: typer.Context,
    *,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Listen here.")
    ] = 8080,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="ADDRESS", help="Listen on this address; 0.0.0.0 lets other machines post."
        ),
    ] = "127.0.0.1",
    database_url: DatabaseUrl = None,
) -> None:
    """Receive webhooks until SIGTERM or Ctrl-C: verify each, and save what it says, once.

    STEPFAST_WEBHOOK_SECRETS has the secrets, as for the worker that signs; 'none' believes anybody.
    """
    from stepfast.tasks.receiver import TaskReceiver

    try:
        import uvicorn
    except ImportError as missing:
        raise ConfigurationError("the receiver needs an extra: pip install 'stepfast[tasks]'") from missing
    given = re.split(r"[\s,]+", os.environ.get("STEPFAST_WEBHOOK_SECRETS", "").strip())
    secrets = [
        (it.partition("=whsec_")[2] and f"whsec_{it.partition('=whsec_')[2]}") or it for it in given if it
    ]
    served = TaskReceiver(url(ctx, database_url), secrets=secrets)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(
            number, lambda *_: None
        )  # raised once more by the server that has heeded it: a good end
    uvicorn.run(served, host=host, port=port, log_level="info", access_log=False, server_header=False)
