"""`python -m holdfast` is the program `holdfast`."""

from __future__ import annotations

from holdfast.cli import main

main()
