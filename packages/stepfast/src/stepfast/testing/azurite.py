"""Azure's own storage emulator, started on free ports: queues and blobs for tests and for trying things out.

    with Azurite() as azurite:
        azurite.connection_string

`python -m stepfast.testing.azurite` starts one, prints its connection string and runs until it is interrupted.
Azurite is a Node program: `npm install azurite@3.35.0`, in the folder where the tests run or globally. It ends with the
process that started it, however that one ends.
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from stepfast.errors import ConfigurationError, StepfastError

ACCOUNT: Final = "devstoreaccount1"
# Azurite's own, printed in its manual: not a secret.
KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
PROGRAM: Final = "STEPFAST_AZURITE"  # names azurite.js where it is not found by itself
SCRIPT: Final = Path("node_modules/azurite/dist/src/azurite.js")
START_SECONDS: Final = 60.0
SERVICES: Final = ("blob", "queue", "table")
# Node ends when we do: our end of its input closes, however we ended.
_END_WITH_US: Final = "data:text/javascript,process.stdin.on('end',()=>process.exit(0)).resume()"
_LISTENS: Final = re.compile(
    r"Azurite (\w+) service is successfully listening at (https?)://127\.0\.0\.1:(\d+)"
)


class AzuriteMissingError(ConfigurationError):
    """Node or Azurite is not on this machine; the sentence says how to get it."""


def find_azurite(folders: Sequence[Path] | None = None) -> Path:
    """The path of azurite.js: STEPFAST_AZURITE, else installed here or under tests/azurite, else globally."""
    if shutil.which("node") is None:
        raise AzuriteMissingError(
            "Azurite needs Node 18 or newer, and there is no program 'node' on the PATH"
        )
    if (named := os.environ.get(PROGRAM)) is not None:
        places = [Path(named)]
    else:
        here = [Path.cwd(), Path.cwd() / "tests/azurite"] if folders is None else folders
        places = [it / SCRIPT for it in here]
        if (command := shutil.which("azurite")) is not None:
            places.append(Path(command).resolve())
    for place in places:
        if place.is_file():
            return place
    raise AzuriteMissingError(
        f"there is no Azurite here: npm install azurite@3.35.0, or set {PROGRAM} to its azurite.js"
    )


class Azurite:
    """One emulator, with everything in memory. With `certificate` and `key` (PEM files) it serves TLS and accepts tokens."""

    def __init__(self, *, certificate: Path | None = None, key: Path | None = None, port: int = 0) -> None:
        program = find_azurite()
        self._tls = certificate is not None
        self._command = [
            "node",
            f"--import={_END_WITH_US}",
            str(program),
            "--inMemoryPersistence",
            "--silent",
        ]
        self._command += ["--skipApiVersionCheck", "--disableTelemetry"]  # SDKs are newer than Azurite
        for service in SERVICES:
            self._command += [
                f"--{service}Host",
                "127.0.0.1",
                f"--{service}Port",
                str(port if service == "queue" else 0),
            ]
        if certificate is not None:
            self._command += ["--cert", str(certificate), "--key", str(key), "--oauth", "basic"]
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.ports: dict[str, int] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def connection_string(self) -> str:
        return self.connection_string_through()

    def connection_string_through(self, queue_port: int | None = None, blob_port: int | None = None) -> str:
        """The connection string by way of other ports, such as those of a proxy."""
        return (
            f"DefaultEndpointsProtocol={'https' if self._tls else 'http'};AccountName={ACCOUNT};AccountKey={KEY};"
            f"BlobEndpoint={self.endpoint('blob', blob_port)};QueueEndpoint={self.endpoint('queue', queue_port)};"
        )

    def endpoint(self, service: str, port: int | None = None) -> str:
        scheme = "https" if self._tls else "http"
        return f"{scheme}://127.0.0.1:{port or self.ports[service]}/{ACCOUNT}"

    def start(self) -> None:
        """Start the emulator; returns when all services listen, after about two seconds."""
        self._process = subprocess.Popen(  # noqa: S603 - what was found above
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        threading.Thread(target=self._read, args=(self._process,), name="azurite", daemon=True).start()
        said: list[str] = []
        deadline = time.monotonic() + START_SECONDS
        while len(self.ports) < len(SERVICES):
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                self.stop()
                raise StepfastError("Azurite did not start:\n" + "".join(said[-20:]))
            said.append(line)
            if found := _LISTENS.search(line):
                self.ports[found[1].lower()] = int(found[3])

    def stop(self) -> None:
        """Stop the emulator; its content is lost."""
        process, self._process = self._process, None
        self.ports.clear()
        if process is None:
            return
        process.kill()  # on SIGTERM it would wait for the last connection, and there is nothing to save
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def wait(self) -> None:
        """Wait until the emulator ends by itself."""
        if self._process is not None:
            self._process.wait()

    def _read(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is not None:
            with process.stdout:
                for line in process.stdout:
                    if len(self.ports) < len(SERVICES):  # later lines are not read
                        self._lines.put(line)
        self._lines.put(None)


def main() -> None:
    """Start an emulator, print its connection string, and keep it until an interrupt."""
    with Azurite() as azurite:
        sys.stdout.write(azurite.connection_string + "\n")
        sys.stdout.flush()
        try:
            azurite.wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
