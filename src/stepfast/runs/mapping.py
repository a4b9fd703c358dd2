"""Raw rows become target rows by the feed's map(); what it cannot map is refused with the reason. Touches no database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast.runs.quarantine import Refused
from stepfast.telemetry.facts import message_of
from stepfast.telemetry.masking import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from stepfast.runs.declaration import Declaration
    from stepfast.runs.feed import Row
    from stepfast.runs.pending import Lot, Waiting

LONGEST_MESSAGE: Final = 2_000
LONGEST_CODE: Final = 100


@dataclass(frozen=True)
class Batch:
    """Target rows, the raw rows they were made of (one for one), and what could not be mapped."""

    raw: Lot
    rows: list[Row]
    refused: list[Refused]

    def only(self, ids: Collection[str]) -> Batch:
        """Those of these items."""
        places = [place for place, item_id in enumerate(self.raw.ids) if item_id in ids]
        rows = [self.rows[place] for place in places]
        return Batch(self.raw.only(places), rows, [it for it in self.refused if it.item_id in ids])


class UnfitError(Exception):
    """What map() answered is no row of the target."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def map_rows(
    declared: Declaration,
    waiting: Lot,
    columns: Collection[str],
    to_row: Callable[[Any], Row] | None = None,
) -> Batch:
    """Map each of them, by the feed's map() if no other is given; `columns` are those of the target."""
    rows: list[Row] = []
    bad: dict[int, Refused] = {}
    to_row = to_row or declared.feed.map
    cleared, keep = declared.cleared, rows.append
    known = None if declared.stores else frozenset(columns)
    fit: tuple[str, ...] | None = None  # columns that were looked at: most rows have the same
    decode = msgspec.json.Decoder().decode  # one by one: thousands of items that live at once take longer
    for place, payload in enumerate(waiting.payloads):
        try:
            row = to_row(decode(payload))
            if type(row) is not dict or tuple(row) != fit:
                fit = _fitting(declared, row, known)
            if known is not None:
                for name in declared.key:
                    if row[name] is None:
                        raise _no_key(declared, name)  # noqa: TRY301 - one function call per row less
        except Exception as error:  # noqa: BLE001 - the user's code may raise anything; the row is put aside with it
            bad[place] = refused(declared, waiting.at(place), "map", error)
        else:
            keep({**cleared, **row} if cleared else row)
    if known is not None:
        rows = _one_for_each_key(declared, waiting, rows, bad)
    raw = waiting.only([it for it in range(len(waiting.ids)) if it not in bad]) if bad else waiting
    return Batch(raw, rows, list(bad.values()))


def _one_for_each_key(
    declared: Declaration, waiting: Lot, rows: list[Row], bad: dict[int, Refused]
) -> list[Row]:
    """The last row of each key; the others would be overwritten without a trace, so they join those that are bad."""
    keys = list(map(itemgetter(*declared.key), rows))
    try:
        last = dict(zip(keys, range(len(keys)), strict=True))
    except TypeError:  # a list or a dict: the table will have its say
        return rows
    if len(last) == len(rows):
        return rows
    places = [it for it in range(len(waiting.ids)) if it not in bad]
    for number, key in enumerate(keys):
        if last[key] != number:
            other = waiting.ids[places[last[key]]]
            shown = ", ".join(declared.key)
            told = f"map() answered the same key as item {other} ({shown}); only one of them can be in {declared.table}"
            bad[places[number]] = refused(
                declared, waiting.at(places[number]), "map", UnfitError("same key", told)
            )
    return [rows[number] for number in sorted(last.values())]


def refused(declared: Declaration, it: Waiting, stage: str, error: BaseException) -> Refused:
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
