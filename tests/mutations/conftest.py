"""Tests that must notice a mutation run with the fixtures that they always have."""

from tests.support.application import another_app, app, in_mode, ledger
from tests.transports.conftest import broker, runner

__all__ = ["another_app", "app", "broker", "in_mode", "ledger", "runner"]
