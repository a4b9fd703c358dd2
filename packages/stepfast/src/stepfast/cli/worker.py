"""`stepfast worker`: run an application's jobs until told to stop."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from stepfast.cli.options import DatabaseUrl, LogFormat, LogLevel, MetricsHost, Quiet, span


def worker(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP", help="Where the Stepfast app is, for example shop.jobs:app."),
    ],
    *,
    queues: Annotated[
        str | None,
        typer.Option(
            "--queues", metavar="A,B", help="Serve only these queues; '*' is all of them.", show_default="all"
        ),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--concurrency", metavar="N", help="Steps that may run at once.", show_default="10"),
    ] = None,
    processes: Annotated[
        int, typer.Option("--processes", metavar="N", min=1, help="Worker processes to run.")
    ] = 1,
    poll_interval: Annotated[
        str | None,
        typer.Option(
            "--poll-interval",
            metavar="DURATION",
            help="How often an idle worker looks for jobs when nothing wakes it.",
            show_default="1s where the database wakes it up, else 50ms",
        ),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(
            "--lease",
            metavar="DURATION",
            help="How long a worker without a heartbeat counts as alive; then its jobs are rescued. A worker renews its "
            "lease by itself, so a job may take much longer.",
            show_default="10s",
        ),
    ] = None,
    renew_at: Annotated[
        int | None,
        typer.Option(
            "--renew-at",
            metavar="PERCENT",
            help="Renew the lease when this share of it has passed.",
            show_default="50",
        ),
    ] = None,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace",
            metavar="DURATION",
            help="How long running steps may finish after SIGTERM.",
            show_default="30s",
        ),
    ] = None,
    worker_id: Annotated[
        str | None,
        typer.Option(
            "--worker-id",
            metavar="NAME",
            help="Name of this worker, at most 100 characters.",
            show_default="host, pid and random digits",
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch",
            metavar="N",
            help="The most jobs to take at once, when they are fast.",
            show_default="1000",
        ),
    ] = None,
    crash_limit: Annotated[
        int | None,
        typer.Option(
            "--crash-limit",
            metavar="N",
            help="A job that killed its worker this often becomes a dead letter.",
            show_default="3",
        ),
    ] = None,
    ageing: Annotated[
        str | None,
        typer.Option(
            "--ageing",
            metavar="DURATION",
            help="A job that waits this long behind more urgent ones rises by one priority.",
            show_default="never",
        ),
    ] = None,
    retention: Annotated[
        str | None,
        typer.Option(
            "--retention",
            metavar="DURATION",
            help="How long finished jobs are kept; dead letters always.",
            show_default="7d",
        ),
    ] = None,
    results_kept: Annotated[
        str | None,
        typer.Option(
            "--results-kept",
            metavar="DURATION",
            help="How long results are kept, unless their kind says otherwise.",
            show_default="1d",
        ),
    ] = None,
    audit_kept: Annotated[
        str | None,
        typer.Option(
            "--audit-kept",
            metavar="DURATION",
            help="How long audit entries are kept.",
            show_default="400d",
        ),
    ] = None,
    runs_kept: Annotated[
        str | None,
        typer.Option(
            "--runs-kept",
            metavar="DURATION",
            help="How long runs are listed after their end.",
            show_default="90d",
        ),
    ] = None,
    max_age: Annotated[
        str | None,
        typer.Option(
            "--max-age",
            metavar="DURATION",
            help="A process of this age finishes its steps and restarts.",
            show_default="never",
        ),
    ] = None,
    max_memory: Annotated[
        str | None,
        typer.Option(
            "--max-memory",
            metavar="SIZE",
            help="A process that uses this much memory, such as 512MB or 2GiB, does the same.",
            show_default="never",
        ),
    ] = None,
    log_level: LogLevel = "info",
    quiet: Quiet = False,
    log_format: LogFormat = "auto",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            envvar="STEPFAST_METRICS_PORT",
            help="Serve /metrics (Prometheus) and /healthz here, for all processes together; also STEPFAST_METRICS_PORT.",
            show_default="no port",
        ),
    ] = None,
    metrics_host: MetricsHost = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Run jobs until SIGTERM or Ctrl-C; then finish running steps, give back other jobs, and exit with 0.

    A second signal ends it at once. While the database is away it waits.

    A --database-url reaches apps that do not name a database themselves.
    """
    from stepfast.config import size
    from stepfast.worker.process import run_worker

    if given := database_url or ctx.obj:
        os.environ["STEPFAST_DATABASE_URL"] = (
            given  # read when the module makes its Stepfast(), here and in children
        )
    options = {
        "queues": queues,
        "concurrency": concurrency,
        "poll_interval": span(poll_interval),
        "lease": span(lease),
        "renew_at": renew_at,
        "grace": span(grace),
        "worker_id": worker_id,
        "batch": batch,
        "crash_limit": crash_limit,
        "ageing": span(ageing),
        "retention": span(retention),
        "results_kept": span(results_kept),
        "audit_kept": span(audit_kept),
        "runs_kept": span(runs_kept),
        "max_age": span(max_age),
        "max_memory": None if max_memory is None else size(max_memory, "--max-memory"),
        "log_level": "warning" if quiet else log_level,
        "log_format": log_format,
        "metrics_port": metrics_port,
        "metrics_host": metrics_host,
    }
    code = run_worker(
        target, {name: value for name, value in options.items() if value is not None}, processes
    )
    raise typer.Exit(code)
