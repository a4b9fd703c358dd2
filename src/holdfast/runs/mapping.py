"""Raw rows become target rows by the feed's map(); what it cannot map is refused with the reason. Touches no database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from holdfast.runs.pending import Waiting
from holdfast.runs.quarantine import Refused
from holdfast.telemetry.facts import message_of
from holdfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from holdfast.runs.declaration import Declaration
    from holdfast.runs.feed import Row

LONGEST_MESSAGE: Final = 2_000
LONGEST_CODE: Final = 100


class Mapped(NamedTuple):
    """A target row, and the raw row it was made of."""

    item_id: str
    content_hash: str
    row: Row
    payload: str


@dataclass(frozen=True)
class Batch:
    mapped: list[Mapped] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


class UnfitError(Exception):
    """What map() answered is no row of the target."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def map_rows(
    declared: Declaration,
    waiting: Sequence[Waiting],
    columns: Collection[str],
    to_row: Callable[[Any], Row] | None = None,
) -> Batch:
    """Map each of them, by the feed's map() if no other is given; `columns` are those of the target."""
    batch = Batch()
    to_row = to_row or declared.feed.map
    cleared, keep = declared.cleared, batch.mapped.append
    known = None if declared.stores else frozenset(columns)
    fit: set[tuple[str, ...]] = set()  # sets of columns that were looked at: most rows have the same
    decode = msgspec.json.Decoder().decode
    for item_id, content_hash, payload in waiting:
        try:
            row = to_row(decode(payload))
            if type(row) is not dict or tuple(row) not in fit:
                fit.add(_fitting(declared, row, known))
            if known is not None:
                for name in declared.key:
                    if row[name] is None:
                        raise _no_key(declared, name)  # noqa: TRY301 - one function call per row less
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything; the row is put aside with it
            batch.refused.append(refused(declared, Waiting(item_id, content_hash, payload), "map", error))
        else:
            keep(Mapped(item_id, content_hash, {**cleared, **row} if cleared else row, payload))
    return batch


def refused(declared: Declaration, it: Waiting | Mapped, stage: str, error: BaseException) -> Refused:
    """The row, with its reason in words that may be shown."""
    said = getattr(error, "code", None)
    code = said if isinstance(said, str) and said else type(error).__qualname__
    message = without_secrets(message_of(error)[: 2 * LONGEST_MESSAGE])[:LONGEST_MESSAGE]
    return Refused(
        item_id=it.item_id,
        stage=stage,
        code=code[:LONGEST_CODE],
        message=message or code,
        content_hash=it.content_hash,
        payload=it.payload,
        mapper_version=declared.mapper_version,
    )


def _fitting(declared: Declaration, row: object, known: frozenset[str] | None) -> tuple[str, ...]:
    """The columns of a row that the target has."""
    if not isinstance(row, Mapping):
        raise UnfitError("no row", f"map() answered {type(row).__name__}; a row is a dict of columns")
    if known is not None and (strangers := row.keys() - known):
        shown = ", ".join(sorted(map(str, strangers)))
        raise UnfitError(
            "unknown column", f"map() answered {shown}, which table {declared.table} does not have"
        )
    if known is not None and (missing := [name for name in declared.key if name not in row]):
        raise _no_key(declared, missing[0])
    return tuple(row)


def _no_key(declared: Declaration, name: str) -> UnfitError:
    return UnfitError("no key", f"map() answered no {name}, which is in the key of {declared.table}")
