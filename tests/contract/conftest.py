"""The application under test, on one database, and a table of the user's own beside it."""

from tests.support.application import another_app, app, in_mode, ledger

__all__ = ["another_app", "app", "in_mode", "ledger"]
