"""`manage.py work`: run the jobs until SIGTERM or Ctrl-C."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from stepfast.applications import run_worker


class Command(BaseCommand):
    help = "Run the jobs of the shop until told to stop."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--concurrency", type=int, default=10, help="jobs that may run at once")
        parser.add_argument("--processes", type=int, default=1, help="worker processes")

    def handle(self, *_: Any, **options: Any) -> None:
        sys.exit(
            run_worker(
                "examples.django_app.worker:app",
                {"concurrency": options["concurrency"]},
                options["processes"],
            )
        )
