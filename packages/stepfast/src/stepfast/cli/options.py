"""Options that many commands share; and from them the database, the application and the operator."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stepfast.cli.output import complain
from stepfast.config import database_url as chosen_url
from stepfast.errors import ConfigurationError, NotFoundError, SchemaError

if TYPE_CHECKING:
    from stepfast.admin.operator import Operator
    from stepfast.app import Stepfast
    from stepfast.database.database import Database
    from stepfast.runs.feeds import Feeds


URL_HELP: Final = (
    "Where the jobs are: sqlite:///work.db, postgresql://user@host/name or mysql://user@host/name; "
    "without it sqlite:///stepfast.db."
)
MOST_ROWS: Final = 10_000
LARGEST_ID: Final = 2**63 - 1  # that a database can count to
SMALLEST_ID: Final = -(2**63)

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url",
        metavar="URL",
        help="Where the jobs are; as the option before the command.",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Limit = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=MOST_ROWS, help="The most rows to show.")
]
Kind = Annotated[
    str | None, typer.Option("--kind", metavar="NAME", help="Only jobs of this kind.", show_default=False)
]
Queue = Annotated[
    str | None, typer.Option("--queue", metavar="NAME", help="Only jobs of this queue.", show_default=False)
]
OneFeed = Annotated[
    str | None, typer.Option("--feed", metavar="NAME", help="Only this feed.", show_default=False)
]
ErrorGroup = Annotated[
    str | None,
    typer.Option(
        "--error",
        metavar="TEXT",
        help="Only this group of errors, as `--by-error` prints it.",
        show_default=False,
    ),
]

By = Annotated[
    str | None,
    typer.Option(
        "--by",
        metavar="NAME",
        help="Name of the operator, kept in the audit log.",
        show_default="STEPFAST_OPERATOR, else user@host",
    ),
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="Reason, kept in the audit log.", show_default=False),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
RequiredReason = Annotated[
    str, typer.Option("--reason", metavar="TEXT", help="Reason, kept in the audit log.")
]

LogLevel = Annotated[
    str,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        envvar="STEPFAST_LOG_LEVEL",
        help="Lowest level to log: debug, info, warning or error; also STEPFAST_LOG_LEVEL.",
    ),
]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Only warnings and errors; the same as --log-level warning.")
]
LogFormat = Annotated[
    str,
    typer.Option(
        "--log-format",
        metavar="FORMAT",
        envvar="STEPFAST_LOG_FORMAT",
        help="Format of log lines: terminal (for people), console (name=value), json, or auto, which is terminal where "
        "stderr is one, else console; also STEPFAST_LOG_FORMAT.",
    ),
]
MetricsHost = Annotated[
    str | None,
    typer.Option(
        "--metrics-host",
        metavar="ADDRESS",
        envvar="STEPFAST_METRICS_HOST",
        help="Listen on this address; 0.0.0.0 serves other machines, too. Also STEPFAST_METRICS_HOST.",
        show_default="127.0.0.1",
    ),
]


def span(text: str | None) -> float | str | None:
    """A duration as it is typed: a bare number means seconds."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


@contextmanager
def usage(option: str | None = None) -> Iterator[None]:
    """A refusal in this block means wrong usage: exit code 2."""
    try:
        yield
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def url(ctx: typer.Context, given: str | None) -> str:
    """The URL given with the command, before it, in the environment, or the default."""
    return chosen_url(given or ctx.obj)


@contextmanager
def opened(ctx: typer.Context, given: str | None, *, checked: bool = True) -> Iterator[Database]:
    """The database, which must exist; if `checked`, with tables that this code knows. A look never creates one."""
    from stepfast.admin.operator import Operator
    from stepfast.database.drivers import open_database, sqlite_path
    from stepfast.database.migrate import require_current_schema, schema_version

    with closing(open_database(url(ctx, given))) as database:
        if database.dialect.name == "sqlite" and not (path := Path(sqlite_path(database.url))).exists():
            raise NotFoundError(
                f"there is no SQLite file {str(path)!r}; name the database with --database-url or "
                "STEPFAST_DATABASE_URL, or create it with `stepfast migrate`"
            )
        if checked:
            if schema_version(database) is None:
                raise SchemaError("the database has no Stepfast tables; run `stepfast migrate` once")
            require_current_schema(database)
            for rule in Operator(database).apply_masks():
                complain(
                    f"the masking rule {rule!r} in stepfast_mask cannot be used, and hides nothing; delete its row"
                )
        yield database


@contextmanager
def operating(
    ctx: typer.Context,
    given: str | None,
    by: str | None = None,
    reason: str | None = None,
    *,
    checked: bool = True,
    feeds: Feeds | None = None,
) -> Iterator[Operator]:
    """The operator of the database, for this actor; see `opened`. `feeds`: of the application, where it is known."""
    from stepfast.admin.operator import Operator

    with opened(ctx, given, checked=checked) as database:
        operator = Operator(database, feeds=feeds)
        yield operator if by is None and reason is None else operator.by(by or None, reason=reason)


# Commands that need the application's code

VARIABLE: Final = "STEPFAST_DATABASE_URL"

Target = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:APP",
        envvar="STEPFAST_APP",
        help="Where the app with the feed is, for example shop.sync:app; also STEPFAST_APP.",
        show_default=False,
    ),
]


@contextmanager
def loaded(ctx: typer.Context, target: str | None, url: str | None) -> Iterator[Stepfast]:
    """The app. A database URL that was given reaches apps that do not name a database themselves."""
    from stepfast.worker.process import load

    if target is None:
        raise ConfigurationError(
            "this needs the code of the feed: say where its app is with --app MODULE:APP, or STEPFAST_APP"
        )
    given = url or ctx.obj
    with _environment(chosen_url(given) if given else None):
        app: Any = load(target)
    if not hasattr(app, "runs"):
        raise ConfigurationError(f"{target} is no Stepfast app")
    yield app


@contextmanager
def _environment(url: str | None) -> Iterator[None]:
    """Set the database URL while the module is imported: that is when it makes its Stepfast()."""
    before = os.environ.get(VARIABLE)
    if url is not None:
        os.environ[VARIABLE] = url
    try:
        yield
    finally:
        if url is not None and before is None:
            del os.environ[VARIABLE]
        elif url is not None and before is not None:
            os.environ[VARIABLE] = before
