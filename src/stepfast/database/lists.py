"""A list as one parameter: each database has its own way to take it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from stepfast.database.dialects import Dialect

BORDER: Final = "\x1f"


def as_parameter(values: list[Any], dialect: Dialect) -> Any:
    """What `{any_of}` and unnest read."""
    match dialect.name:
        case "sqlite":
            return as_document(values)
        case "postgresql":
            return _array(values)
        case _:
            return tuple(values) if values else (None,)  # `IN ()` is no SQL; nothing equals NULL


def as_document(value: object) -> str:
    """Rows as one parameter, for json_each and JSON_TABLE; a tenth of what json.dumps takes."""
    return msgspec.json.encode(value).decode()


def _array(values: list[Any]) -> str:
    """PostgreSQL's text form of an array; psycopg's own takes four times as long for a bulk enqueue."""
    if values and all(type(value) is str for value in values):
        # All at once: a control character stands for the border, since replacing is cheap and calling is not.
        joined = BORDER.join(values)
        if joined.count(BORDER) == len(values) - 1:
            quoted = joined.replace("\\", "\\\\").replace('"', '\\"').replace(BORDER, '","')
            return '{"' + quoted + '"}'
    return "{" + ",".join([_element(value) for value in values]) + "}"


def _element(value: Any) -> str:
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "NULL" if value is None else str(value)
