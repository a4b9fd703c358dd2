"""Options that many commands share, and the database they lead to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stepfast.config import database_url as chosen_url
from stepfast.errors import ConfigurationError, NotFoundError, SchemaError

if TYPE_CHECKING:
    from stepfast.admin.audit import Actor
    from stepfast.app import Stepfast
    from stepfast.database.database import Database


URL_HELP: Final = (
    "Where the jobs are: sqlite:///work.db, postgresql://user@host/name or mysql://user@host/name; "
    "without it sqlite:///stepfast.db."
)
MOST_ROWS: Final = 10_000

DatabaseUrl = Annotated[
    str | None,
    typer.Option(
        "--database-url", metavar="URL", help="As before the command: where the jobs are.", show_default=False
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Limit = Annotated[
    int, typer.Option("--limit", metavar="N", min=1, max=MOST_ROWS, help="Show at most so many.")
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
        help="Who does this; written down with it.",
        show_default="STEPFAST_OPERATOR, else user@host",
    ),
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", metavar="TEXT", help="Why; written down with it.", show_default=False),
]
Why = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; written down with it.")]


def actor(by: str | None, reason: str | None = None) -> Actor:
    """Who acts, and why."""
    from stepfast.admin.audit import whoever

    return whoever(by, reason)


def span(text: str | None) -> float | str | None:
    """A duration as it is typed: a bare number means seconds."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


@contextmanager
def usage(option: str | None = None) -> Iterator[None]:
    """What is refused in this block was typed wrong: exit code 2."""
    try:
        yield
    except ConfigurationError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def url(ctx: typer.Context, given: str | None) -> str:
    """The URL given with the command, before it, in the environment, or the default."""
    return chosen_url(given or ctx.obj)


@contextmanager
def opened(ctx: typer.Context, given: str | None, *, checked: bool = True) -> Iterator[Database]:
    """The database, which must be there; if `checked`, with tables this code knows. Looking never creates one."""
    from stepfast.admin.masks import follow
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
            with database.reading() as tx:
                follow(tx)  # what the applications of this database hide
        yield database


# Commands that need the user's code: where the app is, and how it is loaded.

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
    """For as long as the module is imported: that is when it makes its Stepfast()."""
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
