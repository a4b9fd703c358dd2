"""Where the demo works: a folder, a database that holds nothing else, and the environment of its processes.

Nothing of the user's own settings reaches them: no database, no account, no address for alerts.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from stepfast.applications import masked_url, sqlite_path, table_names
from stepfast.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepfast_diamonds.settings import NivodaSettings


PREFIX: Final = "stepfast-demo-"
FILE: Final = "diamonds.db"
OUR_VARIABLES: Final = ("STEPFAST_", "NIVODA_")
SHOWN: Final = 3


@dataclass(frozen=True)
class DemoPlace:
    """A folder for logs, and the database. `made`: the folder is new and temporary."""

    folder: Path
    url: str
    made: bool

    @property
    def shown_url(self) -> str:
        """Without its password."""
        return masked_url(self.url)

    @property
    def inside(self) -> bool:
        """Whether the database is a file in the folder."""
        return self.url.startswith("sqlite:") and Path(sqlite_path(self.url)).parent == self.folder


def choose_place(directory: Path | None, url: str | None) -> DemoPlace:
    """An empty place, or an error that says what is in the way. Writes nothing but the folder."""
    if url is not None:
        refuse_used_database(url)
    if directory is None:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    else:
        folder = directory.absolute()
        _make(folder)
    # Quoted: a folder may be called what a URL would read as something else.
    return DemoPlace(folder, url or f"sqlite:///{quote(str(folder / FILE))}", made=directory is None)


def refuse_used_database(url: str) -> None:
    """Refuse a database that is not empty: the demo fills it."""
    if url.startswith("sqlite:"):
        path = Path(sqlite_path(url))
        if path.exists() and path.stat().st_size:
            raise ConfigurationError(
                f"the SQLite file {str(path)!r} is not empty; the demo wants one of its own: name a file that does not exist"
            )
        if not path.absolute().parent.is_dir():
            raise ConfigurationError(
                f"there is no folder {str(path.absolute().parent)!r}; create it, or name another file"
            )
        return
    found = table_names(url)
    if found:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise ConfigurationError(
            f"the database {masked_url(url)} is not empty: it holds {', '.join(found[:SHOWN])}{more}; "
            "the demo writes only into one of its own: create an empty database for it"
        )


def worker_environment(url: str, account: NivodaSettings, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker: the inherited one without variables for Stepfast, and the demo's."""
    kept = {name: value for name, value in inherited.items() if not name.startswith(OUR_VARIABLES)}
    username, password = account.credentials
    return kept | {
        "STEPFAST_DATABASE_URL": url,
        "STEPFAST_SECRET_KEY": account.secret_key or "",
        "NIVODA_URL": account.url,
        "NIVODA_USERNAME": username,
        "NIVODA_PASSWORD": password,
        "NIVODA_RATE": str(account.rate),
        "NIVODA_CONCURRENCY": str(account.concurrency),
        "NIVODA_PAGE_SIZE": str(account.page_size),
    }


def leave_place(place: DemoPlace, *, keep: bool) -> None:
    """Remove the folder unless it is to be kept; one of our own that is empty goes in any case."""
    if not keep:
        shutil.rmtree(place.folder, ignore_errors=True)
    elif place.made:
        with suppress(OSError):  # it holds something
            place.folder.rmdir()


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        full = any(folder.iterdir())
    except OSError as error:
        raise ConfigurationError(
            f"the folder {str(folder)!r} cannot be used ({os.strerror(error.errno or 0)}); choose another with --directory"
        ) from None
    if full:
        raise ConfigurationError(f"the folder {str(folder)!r} is not empty; choose another with --directory")
