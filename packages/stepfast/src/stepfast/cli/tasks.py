"""`stepfast tasks`: work on tasks from a queue, send tasks, and list them with their ends."""

from __future__ import annotations

import os
import re
import signal
from typing import TYPE_CHECKING, Annotated, Final

import typer

from stepfast.cli.options import DatabaseUrl, Json, Limit, LogFormat, LogLevel, MetricsHost, operating, url
from stepfast.cli.output import Listing, answer, print_facts, print_json
from stepfast.errors import ConfigurationError, install_hint
from stepfast.telemetry.masking import visible

if TYPE_CHECKING:
    from stepfast.reports import TaskDetail, TaskSummary


# The receiver: the other side of a task's webhook, as a server of its own.


def receiver(
    ctx: typer.Context,
    *,
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Port to listen on.")
    ] = 8080,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="ADDRESS", help="Listen on this address; 0.0.0.0 serves other machines, too."
        ),
    ] = "127.0.0.1",
    host_name: Annotated[
        str | None,
        typer.Option(
            "--host-name",
            metavar="NAME",
            help="Name under which senders know this receiver: webhooks are verified with the secrets of this host.",
            show_default="secrets without a host",
        ),
    ] = None,
    keep: Annotated[
        str,
        typer.Option(
            "--keep",
            metavar="DURATION",
            envvar="STEPFAST_RECEIVED_RETENTION",
            help="How long webhooks are kept; also STEPFAST_RECEIVED_RETENTION.",
        ),
    ] = "30d",
    most: Annotated[
        str,
        typer.Option(
            "--most",
            metavar="SIZE",
            envvar="STEPFAST_RECEIVED_SIZE",
            help="Size of all webhooks that are kept; at this size new ones are refused, and come again. "
            "Also STEPFAST_RECEIVED_SIZE.",
        ),
    ] = "1GB",
    database_url: DatabaseUrl = None,
) -> None:
    """Receive webhooks until SIGTERM or Ctrl-C: verify each, and save it once.

    STEPFAST_WEBHOOK_SECRETS has the secrets. Those without a host count, or with --host-name those of that host; 'none'
    accepts unsigned webhooks.
    """
    from stepfast.tasks.receiver import TaskReceiver, secrets_of_receiver

    try:
        import uvicorn
    except ImportError as missing:
        raise ConfigurationError(f"the receiver needs an extra: {install_hint('tasks')}") from missing
    given = re.split(r"[\s,]+", os.environ.get("STEPFAST_WEBHOOK_SECRETS", "").strip())
    secrets, others = secrets_of_receiver([it for it in given if it], host_name)
    if others:
        hint = "start it with --host-name if one of them is this receiver"
        named = ", ".join(name or "no host" for name in others)
        typer.echo(f"secrets of {named} are not believed here; {hint}", err=True)
    served = TaskReceiver(url(ctx, database_url), secrets=secrets, keep=keep, most=most)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(
            number, lambda *_: None
        )  # raised once more by the server that has heeded it: a good end
    uvicorn.run(served, host=host, port=port, log_level="info", access_log=False, server_header=False)


app = typer.Typer(help="Work on tasks from queues, send and list them.", no_args_is_help=True)
app.command("receiver", short_help="Receive the webhooks of tasks, and save them.")(receiver)

SHOWN: Final = 60  # characters of an error; `show` has all of it

Client = Annotated[
    str | None,
    typer.Option(
        "--client", metavar="NAME", help="Client of the task.", show_default="CLIENT_ID, else default"
    ),
]
OfClient = Annotated[
    str | None,
    typer.Option(
        "--client",
        metavar="NAME",
        help="Only tasks of this client; each has ids of its own.",
        show_default="CLIENT_ID, else all",
    ),
]
TASKS: Listing[TaskSummary] = Listing(
    columns={
        "task": "task_id",
        "type": "task_type",
        "client": "client",
        "state": "state",
        "received (UTC)": "received_at",
        "job": "job_id",
        "error": lambda task: (task.error or "")[:SHOWN],
    },
    empty="no tasks",
    less=("received (UTC)", "client"),
)
EnvFile = Annotated[
    str | None,
    typer.Option(
        "--env-file",
        metavar="FILE",
        help="File with variables that the environment does not have.",
        show_default=False,
    ),
]


@app.command("work", short_help="Work on tasks: the one in TASK_DATA, or those of a queue.")
def work(
    ctx: typer.Context,
    target: Annotated[
        str,
        typer.Argument(metavar="MODULE:APP", help="Where the Stepfast app is, for example shop.jobs:app."),
    ],
    *,
    once: Annotated[
        bool, typer.Option("--once", help="Take one message from the queue, work on it, and exit.")
    ] = False,
    env_file: EnvFile = None,
    log_level: LogLevel = "info",
    log_format: LogFormat = "auto",
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            envvar="STEPFAST_METRICS_PORT",
            help="Serve /metrics (Prometheus) and /healthz here while polling; also STEPFAST_METRICS_PORT.",
            show_default="no port",
        ),
    ] = None,
    metrics_host: MetricsHost = None,
    database_url: DatabaseUrl = None,
) -> None:
    """Work on tasks. With TASK_DATA set: exactly that one, then exit with 0 if it completed, 1 if it failed.

    Otherwise take tasks from the queue <CLIENT_ID>-tasks until SIGTERM or Ctrl-C; then finish running tasks and exit with
    0. All settings are variables of the environment; `stepfast config` shows them.
    """
    from stepfast.tasks.command import run_tasks

    _surroundings(ctx, database_url, env_file)
    options = {
        "log_level": log_level,
        "log_format": log_format,
        "metrics_port": metrics_port,
        "metrics_host": metrics_host,
    }
    given = {name: value for name, value in options.items() if value is not None}
    raise typer.Exit(run_tasks(target, given, lambda text: typer.echo(visible(text), err=True), once=once))


@app.command("send")
def send(
    ctx: typer.Context,
    task_type: Annotated[str, typer.Argument(metavar="TYPE", help="Which type of task, such as ingest.")],
    *,
    payload: Annotated[
        str, typer.Option("--payload", metavar="JSON", help="Payload of the task, a JSON object.")
    ] = "{}",
    task_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Id of the task.", show_default="a new one")
    ] = None,
    webhook_url: Annotated[
        str | None,
        typer.Option(
            "--webhook-url",
            metavar="URL",
            help="Where the webhook about its end is sent.",
            show_default=False,
        ),
    ] = None,
    client: Client = None,
    env_file: EnvFile = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Send a task to the client's queue."""
    from stepfast.tasks.send import send_task
    from stepfast.telemetry.logs import leave_out_others

    leave_out_others()
    _surroundings(ctx, database_url, env_file)
    sent = send_task(task_type, payload, task_id=task_id, webhook_url=webhook_url, client=client)
    answer(sent, f"task {sent.task_id} is in queue {sent.queue} ({sent.transport})", json=json)


@app.command("list")
def list_(
    ctx: typer.Context,
    *,
    client: OfClient = None,
    state: Annotated[
        str | None,
        typer.Option(
            "--state", metavar="STATE", help="Only tasks whose jobs are in this state.", show_default=False
        ),
    ] = None,
    limit: Limit = 50,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """List tasks, the latest first."""
    client = client or _own_client()
    with operating(ctx, database_url) as operator:
        found = operator.tasks(client=client, state=state, limit=limit)
    TASKS.show(found, json=json, empty=None if client is None else f"no tasks of client {client}")


@app.command("show")
def show(
    ctx: typer.Context,
    task_id: Annotated[str, typer.Argument(metavar="ID", help="The task's id, or that of its job.")],
    *,
    client: OfClient = None,
    json: Json = False,
    database_url: DatabaseUrl = None,
) -> None:
    """Show a task: its job, its end, its webhooks, and those that a receiver on this database got."""
    with operating(ctx, database_url) as operator:
        found = operator.task(task_id, client=client or _own_client())
    if json:
        print_json(found)
    else:
        _print(found)


def _print(found: TaskDetail) -> None:
    task = found.task
    webhooks = [
        f"{webhook.state} to {webhook.address} after {webhook.attempts} tries" for webhook in found.webhooks
    ]
    received = [f"{end.status} at {end.received_at:%Y-%m-%d %H:%M:%S} UTC" for end in found.received]
    print_facts(
        [
            ("task", task.task_id),
            ("type", task.task_type),
            ("client", task.client),
            ("state", task.state),
            ("job", task.job_id),
            ("received", task.received_at),
            ("from", task.source),
            ("finished", task.finished_at),
            ("error", task.error),
            ("result", found.result),
            *(("webhook", text) for text in webhooks),
            *(("told here", text) for text in received),
        ]
    )


def _own_client() -> str | None:
    return os.environ.get("CLIENT_ID", "").strip() or None


def _surroundings(ctx: typer.Context, database_url: str | None, env_file: str | None) -> None:
    if given := database_url or ctx.obj:
        os.environ["STEPFAST_DATABASE_URL"] = given  # read when the module makes its Stepfast()
    if env_file is not None:
        from stepfast.tasks.settings import read_env_file

        read_env_file(env_file)
