"""What the API tells about a stone, field by field, with the dirt that the real catalogue has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from stepfast_diamonds.simulator import vocabulary as words
from stepfast_diamonds.simulator.filter import location, supplier_id
from stepfast_diamonds.simulator.vocabulary import (
    IMAGE,
    PDF,
    VIEW,
    Trait,
    depth,
    discount,
    height,
    length,
    table,
    width,
)

if TYPE_CHECKING:
    from stepfast_diamonds.simulator.catalogue import Catalogue, Stone


MEDIA_HOST: Final = "https://media.example.net"


class Offer:
    """A stone on its way into an answer."""

    __slots__ = ("carriers", "dirt", "id", "luck", "markup_pct", "number", "stone", "traits")

    def __init__(
        self,
        stone: Stone,
        catalogue: Catalogue,
        *,
        markup_pct: int = 0,
        dirty: bool = True,
        carriers: Callable[[str], list[Offer]] | None = None,
    ) -> None:
        self.stone = stone
        self.traits = stone.traits
        self.id = catalogue.diamond_id(stone.row)
        self.number = catalogue.certificate_number(stone.row, stone.revision)
        self.markup_pct = markup_pct
        self.dirt = stone.traits[Trait.FLAW] if dirty else 255
        self.luck = stone.traits[Trait.LUCK]
        self.carriers = carriers

    @property
    def lab(self) -> str:
        return words.LABS[self.traits[Trait.LAB]]

    @property
    def fancy(self) -> bool:
        color: str = words.COLORS[self.traits[Trait.COLOR]]
        return color == "FANCY"

    @property
    def stock_id(self) -> str:
        return f"S{self.traits[Trait.SUPPLIER]:03d}-{self.stone.row}"


@dataclass(frozen=True)
class Medium:
    id: str
    url: str
    type: str
    place: int


def _choice(trait: Trait, values: tuple[Any, ...]) -> Callable[[Offer], Any]:
    return lambda it: values[it.traits[trait]]


@dataclass(frozen=True)
class Constant:
    """A value that is the same for every stone: answers are built without calling it."""

    value: Any

    def __call__(self, _: Any) -> Any:
        return self.value


def _itself(offer: Offer) -> Offer:
    return offer


def _has(bit: int, url: str) -> Callable[[Offer], str | None]:
    return lambda it: f"{MEDIA_HOST}/{it.id}/{url}" if it.traits[Trait.MEDIA] & bit else None


def _measure(of: Callable[[Stone], float]) -> Callable[[Offer], str]:
    return lambda it: "0" if it.dirt == 1 else f"{of(it.stone):.6f}"


def _view(offer: Offer) -> Offer | None:
    return offer if offer.traits[Trait.MEDIA] & VIEW else None


def _fluorescence_colour(offer: Offer) -> str | None:
    if offer.traits[Trait.FLUORESCENCE] == 0:
        return None
    return "B" if offer.dirt % 3 == 0 else "BLUE"  # both words are in use


def _eye_clean(offer: Offer) -> str | None:
    clean = words.EYE_CLEAN[offer.traits[Trait.EYE_CLEAN]]
    return clean if offer.dirt != 255 or clean in {None, "Yes", "No"} else None  # noqa: PLR2004 - no dirt at all


def _pictures(bit: int, kind: str, url: str) -> Callable[[Offer], list[Medium]]:
    return lambda it: (
        [Medium(f"{it.id}/{kind}/0", f"{MEDIA_HOST}/{it.id}/{url}", kind, 0)]
        if it.traits[Trait.MEDIA] & bit
        else []
    )


def _fancy(trait: Trait, values: tuple[str, ...]) -> Callable[[Offer], str | None]:
    return lambda it: values[it.traits[trait]] if it.fancy else None


def _carriers(offer: Offer) -> list[Offer]:
    return offer.carriers(offer.number) if offer.carriers else [offer]


DIAMOND_ITEM: Final[Mapping[str, Callable[[Offer], Any]]] = {
    "id": lambda it: f"DIAMOND/{it.id}",
    "diamond": _itself,
    "price": lambda it: it.stone.price,
    "discount": lambda it: discount(it.stone),
    "markup_price": lambda it: round(it.stone.price * (1 + it.markup_pct / 100)),
    "markup_discount": lambda it: discount(it.stone) + 100 * it.markup_pct,
    "diamond_price": lambda it: round(it.stone.price * 0.97),
}
DIAMOND: Final[Mapping[str, Callable[[Offer], Any]]] = {
    "id": lambda it: it.id,
    "availability": _choice(Trait.AVAILABILITY, words.AVAILABILITY),
    "certificate": _itself,
    "HoldId": lambda it: (
        f"hold-{it.id}" if words.AVAILABILITY[it.traits[Trait.AVAILABILITY]] == "HOLD" else None
    ),
    "supplierStockId": lambda it: it.stock_id,
    "NivodaStockId": lambda it: f"N{it.stone.row:08d}",
    "image": _has(IMAGE, "500/500"),
    "video": _has(VIEW, "video/500/500"),
    "supplier_video_link": _has(VIEW, "supplier.mp4"),
    "v360": _view,
    "brown": Constant("NONE"),
    "green": Constant(None),
    "blue": Constant(None),
    "gray": Constant(None),
    "other": Constant(None),
    "milky": lambda it: "LIGHT" if it.luck % 31 == 0 else "NONE",
    "bowtie": Constant(None),
    "eyeClean": _eye_clean,
    "mine_of_origin": Constant(None),
    "location": lambda it: location(it.traits[Trait.SUPPLIER]),
    "canada_mark_eligible": lambda it: it.luck % 64 == 0,
    "forever_mark_eligible": Constant(value=False),
    "show_measurements": Constant(value=True),
    "show_certificate_number": Constant(value=True),
    "final_price": Constant(value=True),
    "return_window": _choice(Trait.RETURNS, words.RETURN_WINDOW_DAYS),
    "approval_type": Constant("FULL"),
    "CertificateType": lambda it: it.lab,
    "delivery_time": _itself,
    "supplier": _itself,
    "inclusions": Constant(()),
}
CERTIFICATE: Final[Mapping[str, Callable[[Offer], Any]]] = {
    "id": lambda it: f"CERT/{it.number}",
    "lab": _choice(Trait.LAB, words.LABS),
    "certNumber": lambda it: it.stock_id if it.lab in {"NONE", "STOCKID"} else it.number,
    "shape": _choice(Trait.SHAPE, words.SHAPES),
    "fullShape": lambda it: words.SHAPES[it.traits[Trait.SHAPE]].title(),
    "carats": lambda it: it.stone.carats / 100,
    "color": _choice(Trait.COLOR, words.COLORS),
    "clarity": _choice(Trait.CLARITY, words.CLARITIES),
    "cut": _choice(Trait.CUT, words.QUALITIES),
    "polish": _choice(Trait.POLISH, words.QUALITIES),
    "symmetry": _choice(Trait.SYMMETRY, words.QUALITIES),
    "floInt": _choice(Trait.FLUORESCENCE, words.FLUORESCENCE),
    "floCol": _fluorescence_colour,
    "length": _measure(length),
    "width": _measure(width),
    "depth": _measure(height),
    "depthPercentage": _measure(depth),
    "table": _measure(table),
    "crownAngle": lambda it: f"{33 + it.traits[Trait.MEASURES] % 5:.6f}",
    "crownHeight": lambda it: f"{14 + it.traits[Trait.MEASURES] % 4:.6f}",
    "pavAngle": lambda it: f"{40 + it.traits[Trait.MEASURES] % 3:.6f}",
    "pavHeight": lambda it: f"{43 + it.traits[Trait.MEASURES] % 2:.6f}",
    "pavDepth": lambda it: f"{43 + it.traits[Trait.MEASURES] % 2:.6f}",
    "starLength": Constant("50"),
    "lowerGirdle": Constant("75"),
    "girdle": lambda it: "null" if it.dirt % 16 == 2 else "MED - STK",  # noqa: PLR2004 - a word, not a null
    "culetSize": Constant("NONE"),
    "keyToSymbols": Constant("Feather, Crystal"),
    "comments": Constant(None),
    "colorShade": Constant(None),
    "f_color": _fancy(Trait.FANCY, words.FANCY_COLORS),
    "f_intensity": _fancy(Trait.INTENSITY, words.INTENSITIES),
    "f_overtone": Constant(None),
    "labgrown": lambda it: it.traits[Trait.LABGROWN] == 1,
    "labgrown_type": lambda it: words.GROWTHS[it.traits[Trait.GROWTH]] if it.traits[Trait.LABGROWN] else None,
    "treated": lambda it: it.traits[Trait.TREATED] == 1,
    "verified": Constant(None),
    "pdfUrl": _has(PDF, "certificate.pdf"),
    "image": _has(PDF, "certificate.jpg"),
    "video": Constant(None),
    "v360": _view,
    "country_of_origin": Constant(None),
    "product_images": _pictures(IMAGE, "image", "500/500"),
    "product_videos": _pictures(VIEW, "video", "video/500/500"),
    "diamonds": _carriers,
}
RESOLVERS: Final[Mapping[str, Mapping[str, Callable[[Any], Any]]]] = {
    "DiamondItem": DIAMOND_ITEM,
    "Diamond": DIAMOND,
    "Certificate": CERTIFICATE,
    "V360": {
        "url": lambda it: f"{MEDIA_HOST}/{it.id}/360",
        "frame_count": Constant(256),
        "renumbered": Constant(value=False),
        "top_index": Constant(0),
        "dl_link": Constant(None),
    },
    "Media": {
        "id": lambda it: it.id,
        "url": lambda it: it.url,
        "loupe360_url": Constant(None),
        "type": lambda it: it.type,
        "display_index": lambda it: it.place,
    },
    "DeliveryTime": {
        "express_timeline_applicable": lambda it: it.luck % 5 == 0,
        "min_business_days": lambda it: 2 + it.luck % 4,
        "max_business_days": lambda it: 7 + it.luck % 9,
    },
    "Company": {
        "id": lambda it: supplier_id(it.traits[Trait.SUPPLIER]),
        "name": lambda it: f"Supplier {it.traits[Trait.SUPPLIER]:03d}",
        "legal_name": lambda it: f"Supplier {it.traits[Trait.SUPPLIER]:03d} Ltd",
    },
    "Inclusion": {"type": Constant(None)},
}
