"""What a page leaves: observations of the rows that can be kept, and the others put aside with their reason."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from stepfast.errors import AnswerError
from stepfast.runs.paging.contents import Contents, Stranger
from stepfast.runs.quarantine import Refused
from stepfast.runs.raw import Observation, observed
from stepfast.steps.payload import is_finite
from stepfast.telemetry.masking import storable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from stepfast.runs.declaration import Declaration

NO_IDENTITY: Final = "no identity"
NOT_STORABLE: Final = "not storable"  # what is kept of such a row is not what the source gave
HALF: Final = "the row or its id holds half a character (a lone surrogate), which no database takes"
NO_NUMBER: Final = "the row holds NaN or an infinity, which JSON has no word for"


def observe_page(declared: Declaration, page: Contents) -> tuple[Contents, list[Observation], list[Refused]]:
    """The page without the rows that cannot be kept, its rows as they are kept, and those that nobody can use."""
    kept: list[Observation] = []
    unfit: dict[str, str] = {}
    for item_id, item in page.rows.items():
        found = _observed(item_id, item, declared.volatile)
        if isinstance(found, Observation):
            kept.append(found)
        else:
            unfit[item_id] = found
    if unfit:
        page = _without(page, unfit)
    strangers = {it.item_id: it for it in (_stranger(declared, it) for it in page.strangers)}
    return page, kept, list(strangers.values())


def check_token(token: Any) -> None:
    """It is kept with the partition, and shown to the source again."""
    try:
        msgspec.json.encode(token)
    except (UnicodeEncodeError, TypeError) as error:
        raise AnswerError("page", f"has a next that cannot be stored: {token!a:.80}") from error


def _observed(item_id: str, item: Any, volatile: Collection[str]) -> Observation | str:
    """The item as it is kept, or why it cannot be kept."""
    try:
        seen = observed(item_id, item, volatile)
    except UnicodeEncodeError:
        return HALF
    if "null" in seen.payload and not is_finite(
        item if isinstance(item, dict) else msgspec.to_builtins(item)
    ):  # they would become null, and be lost
        return NO_NUMBER
    return seen


def _without(page: Contents, unfit: Mapping[str, str]) -> Contents:
    """The same page where these rows, which cannot be kept for a reason, are strangers."""
    return replace(
        page,
        ids=[None if it in unfit else it for it in page.ids],
        rows={it: item for it, item in page.rows.items() if it not in unfit},
        strangers=[*page.strangers, *(Stranger(page.rows[it], reason) for it, reason in unfit.items())],
    )


def _stranger(declared: Declaration, it: Stranger) -> Refused:
    """Nobody can tell whether such a row was here before, so it is known by its content."""
    seen = _observed("", it.item, declared.volatile)
    altered = isinstance(seen, str) or it.reason == HALF
    if isinstance(seen, str):
        seen = observed("", _spelled_out(msgspec.to_builtins(it.item)), declared.volatile)
    return Refused(
        item_id=f"?{seen.content_hash}",
        stage="identify",
        code=NOT_STORABLE if altered else NO_IDENTITY,
        message=storable(it.reason),
        content_hash=seen.content_hash,
        payload=seen.payload,
        mapper_version=declared.mapper_version,
    )


def _spelled_out(value: Any) -> Any:
    """With everything that cannot be stored as a text that says what it was."""
    match value:
        case str():
            return storable(value)
        case float():
            return value if is_finite(value) else str(value)
        case dict():
            return {_spelled_out(name): _spelled_out(it) for name, it in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_spelled_out(it) for it in value]
        case _:
            return value
