"""Emulators of services that tests should not need an account for."""
