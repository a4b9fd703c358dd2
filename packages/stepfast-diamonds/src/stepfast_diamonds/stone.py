"""The canonical row of a diamond, the same for all sources, before it is priced."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

import msgspec


class Image(msgspec.Struct, frozen=True, rename="camel"):
    """One of several pictures of a stone."""

    id: str
    url: str
    display_index: int


class Stone(msgspec.Struct, frozen=True, kw_only=True):
    """Each field is the column of that name. None: the source does not say."""

    feed: str
    supplier_stone_id: str  # what makes it this stone; the same certificate may be sold as several stones
    offer_id: str

    shape: str
    carats: Decimal
    color: str | None = None
    clarity: str | None = None
    cut: str | None = None
    polish: str | None = None
    symmetry: str | None = None
    fluorescence: str | None = None  # its colour
    fluorescence_intensity: str | None = None
    fancy_color: str | None = None  # only where `color` is FANCY, and then always
    fancy_intensity: str | None = None
    fancy_overtone: str | None = None
    ratio: Decimal | None = None
    lab_grown: bool
    treated: bool | None = None

    feed_price: Decimal
    diamond_price: Decimal | None = None
    price_per_carat: Decimal

    availability: str  # available, on_hold, sold, unavailable
    raw_availability: str | None = None  # as the source says it
    hold_id: str | None = None

    image_url: str | None = None
    video_url: str | None = None
    meta_images: tuple[Image, ...] = ()

    certificate_lab: str | None = None
    certificate_number: str | None = None
    certificate_pdf_url: str | None = None

    table_pct: Decimal | None = None
    depth_pct: Decimal | None = None
    length_mm: Decimal | None = None
    width_mm: Decimal | None = None
    depth_mm: Decimal | None = None
    crown_angle: Decimal | None = None
    crown_height: Decimal | None = None
    pavilion_angle: Decimal | None = None
    pavilion_depth: Decimal | None = None
    girdle: str | None = None
    culet_size: str | None = None
    eye_clean: str | None = None  # a text: the source says "90%" as well as "Yes"
    brown: str | None = None
    green: str | None = None
    milky: str | None = None

    supplier_name: str | None = None
    supplier_legal_name: str | None = None


COLUMNS: Final = Stone.__struct_fields__
DECIMALS: Final = (
    "carats", "ratio", "feed_price", "diamond_price", "price_per_carat", "table_pct", "depth_pct", "length_mm",
    "width_mm", "depth_mm", "crown_angle", "crown_height", "pavilion_angle", "pavilion_depth",
)  # fmt: skip


def columns_of(stone: Stone) -> dict[str, Any]:
    """The stone as values that every database takes: decimals as their digits, truth as 1 and 0."""
    row = dict(zip(COLUMNS, msgspec.structs.astuple(stone), strict=True))
    for name in DECIMALS:
        if (value := row[name]) is not None:
            row[name] = str(value)
    row["lab_grown"] = int(stone.lab_grown)
    row["treated"] = None if stone.treated is None else int(stone.treated)
    row["meta_images"] = msgspec.json.encode(stone.meta_images).decode() if stone.meta_images else "[]"
    return row
