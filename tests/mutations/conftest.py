"""The tests that must notice a mutation run on the application that they always run on."""

from tests.support.application import another_app, app, in_mode, ledger

__all__ = ["another_app", "app", "in_mode", "ledger"]
