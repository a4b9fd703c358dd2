"""`python -m stepfast` is the program `stepfast`."""

from __future__ import annotations

from stepfast.cli import main

main()
