"""Add to pinned requirements the hashes of all files that the index has of them: `python -m devtools.lock <frozen >locked`.

All files and not only ours: the lock holds on every platform. pip refuses a file whose hash is not listed.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from urllib.request import urlopen

INDEX = os.environ.get("STEPFAST_LOCK_INDEX", "https://pypi.org/simple")
PINNED = re.compile(r"([A-Za-z0-9._-]+)==([^\s;\\]+)")
FILE = re.compile(r'href="[^"]*/([^"/#]+)#sha256=([0-9a-f]{64})"')
ENDINGS = (".whl", ".tar.gz", ".zip")


def locked(frozen: Iterable[str], page_of: Callable[[str], str]) -> list[str]:
    """The requirements of `pip freeze`, each with its hashes."""
    pins = [(match[1], match[2]) for line in frozen if (match := PINNED.match(line))]
    with ThreadPoolExecutor(8) as threads:
        pages = threads.map(page_of, [name for name, _ in pins])
        return [_line(name, version, page) for (name, version), page in zip(pins, pages, strict=True)]


def _line(name: str, version: str, page: str) -> str:
    hashes = sorted({digest for file, digest in FILE.findall(page) if _is_of(file, name, version)})
    if not hashes:
        raise SystemExit(f"{INDEX} has no file of {name} {version}")
    return " \\\n".join([f"{name}=={version}", *(f"    --hash=sha256:{it}" for it in hashes)])


def _is_of(file: str, name: str, version: str) -> bool:
    """Whether this file is one of that version; wheels and archives begin with both."""
    stem = next((file.removesuffix(it) for it in ENDINGS if file.endswith(it)), None)
    if stem is None:
        return False
    own = f"{normal(name)}-{version}"
    start = normal(stem[: len(own)])
    return start == normal(own) and stem[len(own) : len(own) + 1] in {"", "-"}


def normal(name: str) -> str:
    """A name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def from_index(name: str) -> str:
    with urlopen(f"{INDEX}/{normal(name)}/", timeout=60) as answer:  # noqa: S310 - https, or what the environment names
        return str(answer.read().decode())


def main() -> None:
    sys.stdout.write("\n".join(locked(sys.stdin, from_index)) + "\n")


if __name__ == "__main__":
    main()
