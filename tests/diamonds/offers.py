"""Offers as Nivoda answers them, and a feed that finds them in memory instead of asking."""

# ruff: noqa: ARG002 - this source has one partition and no memory

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from stepfast import Fixed, Page, Range, Window
from stepfast_diamonds.feed import CanonicalFeed
from stepfast_diamonds.repricing import Repricing
from stepfast_diamonds.schema import prepare
from tests.support import rows

if TYPE_CHECKING:
    from stepfast import Cursor, Stepfast
    from stepfast.runs.partitioning.contract import Partitioner

CERTIFICATE: dict[str, Any] = {
    "lab": "GIA",
    "certNumber": "2141438167",
    "shape": "ROUND",
    "carats": 1.01,
    "color": "G",
    "clarity": "VS1",
    "cut": "EX",
    "polish": "EX",
    "symmetry": "VG",
    "floInt": "FNT",
    "floCol": "BLUE",
    "length": "6.430000",
    "width": "6.400000",
    "depth": "3.980000",
    "depthPercentage": "62.000000",
    "table": "57.000000",
    "crownAngle": "34.500000",
    "crownHeight": "15.000000",
    "pavAngle": "40.800000",
    "pavDepth": "43.000000",
    "girdle": "MED - STK",
    "culetSize": "NONE",
    "f_color": None,
    "f_intensity": None,
    "f_overtone": None,
    "treated": False,
    "pdfUrl": "https://media.example.net/a/certificate.pdf",
    "product_images": [{"id": "i1", "url": "https://media.example.net/a/1.jpg", "display_index": 0}],
    "product_videos": [],
}
DIAMOND: dict[str, Any] = {
    "availability": "AVAILABLE",
    "HoldId": None,
    "image": "https://media.example.net/a/500/500",
    "video": "https://media.example.net/a/video/500/500",
    "supplier_video_link": None,
    "v360": None,
    "eyeClean": "Yes",
    "brown": "NONE",
    "green": None,
    "milky": "NONE",
    "supplier": {"name": "Supplier 001", "legal_name": "Supplier 001 Ltd"},
}


def offer(
    stone: str = "a",
    cents: Any = 123_456,
    *,
    diamond: dict[str, Any] | None = None,
    **certificate: Any,
) -> dict[str, Any]:
    """An offer in order; what is given differs."""
    return {
        "id": f"DIAMOND/{stone}",
        "price": cents,
        "diamond_price": 120_000,
        "diamond": {
            "id": stone,
            **copy.deepcopy(DIAMOND),
            "certificate": {**copy.deepcopy(CERTIFICATE), **certificate},
            **(diamond or {}),
        },
    }


class Stones(CanonicalFeed):
    """Its source is a list."""

    name = "nivoda-natural"
    page_size = 50
    settle = "0s"
    error_budget = 1.0
    partitioner: Partitioner | None = Fixed(["all"])

    def __init__(self, offers: Iterable[dict[str, Any]] = (), **settings: Any) -> None:
        super().__init__()
        self.offers = list(offers)
        for name, value in settings.items():
            setattr(self, name, value)

    async def count(self, part: Range, window: Window, /) -> int:
        return len(self.offers)

    async def fetch(self, part: Range, window: Window, cursor: Cursor, /) -> Page:
        return Page(self.offers[cursor.offset : cursor.offset + cursor.limit])


def catalogue(
    app: Stepfast, offers: Iterable[dict[str, Any]] = (), **settings: Any
) -> tuple[Stones, Repricing]:
    """Tables, the jobs, and a feed on them."""
    prepare(app)
    repricing = Repricing(app)
    feed = Stones(offers, repricing=repricing, **settings)
    app.feed(feed)
    return feed, repricing


def stones(app: Stepfast) -> list[dict[str, Any]]:
    return rows.query(app, "SELECT * FROM diamonds ORDER BY supplier_stone_id")
