"""Where the demo works: a folder, a database that holds nothing else, and what its processes are told.

Nothing of the user's own surroundings reaches them: no database, no account, no address for alerts.
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
OURS: Final = ("STEPFAST_", "NIVODA_")
SHOWN: Final = 3


@dataclass(frozen=True)
class Place:
    """A folder for logs, and the database. `made`: nobody chose the folder, it is new and temporary."""

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


def choose(directory: Path | None, url: str | None) -> Place:
    """A place that holds nothing yet, or a sentence that says what is in the way. Writes nothing but the folder."""
    if url is not None:
        refuse_full(url)
    if directory is None:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    else:
        folder = directory.absolute()
        _make(folder)
    # Quoted: a folder may be called what a URL would read as something else.
    return Place(folder, url or f"sqlite:///{quote(str(folder / FILE))}", made=directory is None)


def refuse_full(url: str) -> None:
    """The demo fills the database that it is given: it takes only an empty one."""
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


def surroundings(url: str, account: NivodaSettings, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a worker: what is inherited, without anything that is meant for Stepfast, and our own."""
    kept = {name: value for name, value in inherited.items() if not name.startswith(OURS)}
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


def leave(place: Place, *, keep: bool) -> None:
    """What is to be kept stays; a folder of our own without anything in it is of no use to anybody."""
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
