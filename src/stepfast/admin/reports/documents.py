"""Payloads, cursors, results and events, as they may be shown: masked, and not at all where they are encrypted."""

from __future__ import annotations

from typing import Any

from stepfast.sealing import ENCRYPTED, is_sealed, opened
from stepfast.steps.payload import decode
from stepfast.telemetry.masking import masked


def shown(stored: str | None, purpose: str, *, decrypt: bool = False) -> Any:
    """The document without what the rules hide; of one that is encrypted only that it is, unless the key is used."""
    if stored is None:
        return None
    if is_sealed(stored):
        if not decrypt:
            return ENCRYPTED
        stored = opened(stored, purpose)
    return masked(decode(stored))
