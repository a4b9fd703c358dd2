"""Django's connection, as in `tx=django.db.connection` or `tx=connections["shop"]`: the driver's own is inside it."""

from __future__ import annotations

from typing import Any

from stepfast.errors import ConfigurationError


def inside_django(connection: Any) -> Any | None:
    """The driver's connection, if this is one of Django's, and in a transaction; None if it is somebody else's."""
    if not _is_django(type(connection)):
        return None
    connection.ensure_connection()
    if not connection.in_atomic_block and connection.get_autocommit():
        raise ConfigurationError(
            f"tx: Django's connection {connection.alias!r} is outside a transaction; enqueue inside `with "
            "transaction.atomic():`, or set ATOMIC_REQUESTS so that each view is"
        )
    if connection.needs_rollback:
        raise ConfigurationError(
            f"tx: the transaction on Django's connection {connection.alias!r} has failed; leave its atomic block first"
        )
    return connection.connection


def _is_django(kind: type) -> bool:
    """By the names of its classes: other packages subclass Django's wrapper, and we do not import Django."""
    return any(
        it.__module__.startswith("django.db.backends.") or it.__module__ == "django.utils.connection"
        for it in kind.__mro__
    )
