"""Commands that need the user's code: where the app is, and how it is loaded."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from stepfast.config import database_url as chosen_url
from stepfast.errors import ConfigurationError

if TYPE_CHECKING:
    from stepfast.app import Stepfast

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
    from stepfast.worker.command import load

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
