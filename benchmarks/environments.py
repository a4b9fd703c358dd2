"""An environment for each peer, under .bench/, with the versions that the results name."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.processes import ROOT

FOLDER = ROOT / ".bench"
PINS = {
    "pgqueuer": ("pgqueuer[asyncpg]==1.6.0", "asyncpg==0.32.0", "uvloop==0.23.0"),
    "procrastinate": ("procrastinate==3.10.0", "psycopg[binary,pool]==3.3.8"),
}


def interpreter(peer: str) -> str:
    """The peer's Python; made when it is missing or its versions have changed."""
    return str(_environment(peer, PINS[peer]) / "bin" / "python")


def core_environment() -> Path:
    """Stepfast without extras, installed from a wheel as a user would get it; made anew each time."""
    folder = FOLDER / "core"
    shutil.rmtree(folder, ignore_errors=True)
    wheels = FOLDER / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    _pip(
        Path(sys.executable),
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(wheels),
        str(ROOT / "packages" / "stepfast"),
    )
    constraints = ROOT / "requirements" / "dev.txt"
    return _environment("core", ("--constraint", str(constraints), str(next(wheels.glob("*.whl")))))


def _environment(name: str, requirements: tuple[str, ...]) -> Path:
    folder = FOLDER / name
    stamp = folder / "requirements.txt"
    wanted = "\n".join(requirements)
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        _pip(folder / "bin" / "python", "install", *requirements)
        stamp.write_text(wanted)
    return folder


def _pip(python: Path, *arguments: str) -> None:
    command = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)} failed:\n{done.stderr}")
