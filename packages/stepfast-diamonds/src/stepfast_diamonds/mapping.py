"""What Nivoda says about a stone becomes a `Stone`, or is rejected with the reason.

An item in, a stone out. A stone must be worth a row: it has an identity, a shape, a weight, a price, a certificate,
and the media that its feed needs. Everything else only describes it; a value that cannot be read, or is longer than
its column, is not known, and no reason to hide the stone. Media are needed only where the feed says so (`needs`): the
first implementation rejected every stone without a picture or a film, and a fifth of the catalogue has no film.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final, Literal

from stepfast.applications import happened
from stepfast_diamonds import mapping_words as words
from stepfast_diamonds.money import CENT, EXACT, THOUSANDTH, from_cents, number, rounded
from stepfast_diamonds.stone import Image, Stone

Need = Literal["image", "video"]

# What the mapping reads: the source asks for exactly this.
SELECTION: Final = """
    id price diamond_price
    diamond {
      id availability HoldId image video supplier_video_link v360 { url }
      eyeClean brown green milky
      supplier { name legal_name }
      certificate {
        lab certNumber shape carats color clarity cut polish symmetry floInt floCol
        length width depth depthPercentage table crownAngle crownHeight pavAngle pavDepth girdle culetSize
        f_color f_intensity f_overtone treated pdfUrl
        product_images { id url display_index } product_videos { url }
      }
    }
"""

LONGEST_ID: Final = 200
LONGEST: Final = 100  # characters of a text that describes
LONGEST_URL: Final = 2_000
MOST_IMAGES: Final = 50
DEAREST: Final = 99_999_999_99  # cents: ten times as much can still be stored
HALF_A_CENT: Final = CENT / 2  # what is less is rounded to nothing
HEAVIEST: Final = Decimal("9999.99")
WIDEST: Final = Decimal("9999.99")
STEEPEST: Final = Decimal("999.99")
MOST_STRETCHED: Final = Decimal("99.999")
NO_NUMBER: Final = frozenset({"NONE", "STOCKID"})  # labs whose number is the supplier's own


class RejectedError(Exception):
    """The item cannot be a row. `code` is one of a few, so that quarantine can be counted by it."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def map_offer(item: Any, feed: str, *, lab_grown: bool, needs: frozenset[Need] = frozenset()) -> Stone:
    """The stone of an offer. Raises `RejectedError`, and nothing else, whatever the item is."""
    offer = _object(item, "no offer", "the item is no object")
    diamond = _object(offer.get("diamond"), "no diamond", "the offer has no diamond")
    certificate = _object(diamond.get("certificate"), "no certificate", "the stone has no certificate")
    stone_id = _required(diamond, "id", "no identity", LONGEST_ID)
    carats = _carats(certificate.get("carats"))
    price = _price(offer.get("price"))
    image, video = _image(diamond, certificate), _video(diamond, certificate)
    for need, found in (("image", image), ("video", video)):
        if found is None and need in needs:
            raise RejectedError(f"no {need}", f"the stone has no {need}; it cannot be shown")
    lab = _word(certificate, "lab")
    length, width = _measure(certificate.get("length"), WIDEST), _measure(certificate.get("width"), WIDEST)
    return Stone(
        feed=feed,
        supplier_stone_id=stone_id,
        offer_id=_short(words.text(offer.get("id")), "id", LONGEST_ID) or f"DIAMOND/{stone_id}"[:LONGEST_ID],
        shape=_shape(certificate.get("shape")),
        carats=carats,
        clarity=_word(certificate, "clarity"),
        cut=_word(certificate, "cut"),
        polish=_word(certificate, "polish"),
        symmetry=_word(certificate, "symmetry"),
        fluorescence=_short(words.glow(certificate.get("floCol")), "floCol"),
        fluorescence_intensity=_short(words.intensity(certificate.get("floInt")), "floInt"),
        **_colour(certificate),
        ratio=_ratio(length, width),
        lab_grown=lab_grown,
        treated=treated if isinstance(treated := certificate.get("treated"), bool) else None,
        feed_price=price,
        diamond_price=_optional_price(offer.get("diamond_price")),
        price_per_carat=rounded(EXACT.divide(price, carats)),
        availability=words.availability(diamond.get("availability")),
        raw_availability=_word(diamond, "availability"),
        hold_id=_short(words.text(diamond.get("HoldId")), "HoldId", LONGEST_ID),
        image_url=image,
        video_url=video,
        meta_images=_images(certificate.get("product_images")),
        certificate_lab=lab,
        certificate_number=None if lab in NO_NUMBER else _text(certificate, "certNumber"),
        certificate_pdf_url=_url(certificate.get("pdfUrl")),
        table_pct=_measure(certificate.get("table"), STEEPEST),
        depth_pct=_measure(certificate.get("depthPercentage"), STEEPEST),
        length_mm=length,
        width_mm=width,
        depth_mm=_measure(certificate.get("depth"), WIDEST),
        crown_angle=_measure(certificate.get("crownAngle"), STEEPEST),
        crown_height=_measure(certificate.get("crownHeight"), STEEPEST),
        pavilion_angle=_measure(certificate.get("pavAngle"), STEEPEST),
        pavilion_depth=_measure(certificate.get("pavDepth"), STEEPEST),
        girdle=_text(certificate, "girdle"),
        culet_size=_word(certificate, "culetSize"),
        eye_clean=_word(diamond, "eyeClean"),
        brown=_word(diamond, "brown"),
        green=_word(diamond, "green"),
        milky=_word(diamond, "milky"),
        **_supplier(diamond.get("supplier")),
    )


def can_be_shown(diamond: Mapping[str, Any], certificate: Mapping[str, Any]) -> bool:
    """Whether it has a picture or a film: the source is asked for stones with either."""
    return _image(diamond, certificate) is not None or _video(diamond, certificate) is not None


def identity_of(item: Any) -> str:
    """What makes it this stone: the diamond's id, not the certificate, which several suppliers may sell."""
    return str(item["diamond"]["id"])


# What a stone must have


def _object(value: Any, code: str, reason: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise RejectedError(code, reason)
    return value


def _required(given: Mapping[str, Any], name: str, code: str, longest: int) -> str:
    found = words.text(given.get(name))
    if found is None:
        raise RejectedError(code, f"the stone has no {name}")
    return _refused_if_long(found, name, longest)


def _shape(value: Any) -> str:
    found = words.shape(value)
    if found is None:
        raise RejectedError("no shape", "the certificate has no shape")
    return _refused_if_long(found, "shape", LONGEST)


def _refused_if_long(value: str, name: str, longest: int) -> str:
    if len(value) > longest:
        raise RejectedError("too long", f"{name} has {len(value):,} characters; at most {longest} make sense")
    return value


def _carats(value: Any) -> Decimal:
    found = number(value)
    if found is None or not HALF_A_CENT <= found <= HEAVIEST:
        raise RejectedError("no weight", f"carats {value!r:.40} is no weight of a stone")
    return rounded(found)


def _price(value: Any) -> Decimal:
    """From whole cents, as the source counts."""
    found = _optional_price(value)
    if found is None:
        raise RejectedError("no price", f"price {value!r:.40} is no positive number of cents")
    return found


def _optional_price(value: Any) -> Decimal | None:
    cents = number(value)
    if cents is None or not 1 <= cents <= DEAREST or cents != cents.to_integral_value():
        return None
    return rounded(from_cents(int(cents)))


def _image(diamond: Mapping[str, Any], certificate: Mapping[str, Any]) -> str | None:
    return _url(diamond.get("image")) or _first(certificate.get("product_images"))


def _video(diamond: Mapping[str, Any], certificate: Mapping[str, Any]) -> str | None:
    around = diamond.get("v360")
    return (
        _url(diamond.get("video"))
        or _url(around.get("url") if isinstance(around, dict) else None)
        or _url(diamond.get("supplier_video_link"))
        or _first(certificate.get("product_videos"))
    )


# What describes it


def _colour(certificate: Mapping[str, Any]) -> dict[str, str | None]:
    color, fancy = _word(certificate, "color"), words.text(certificate.get("f_color"))
    if color != "FANCY" and (color is not None or fancy is None):
        return {"color": color}
    return {
        "color": "FANCY",
        "fancy_color": _short(words.fancy_color(fancy), "f_color") or words.UNKNOWN_COLOUR,
        "fancy_intensity": _short(words.title(certificate.get("f_intensity")), "f_intensity"),
        "fancy_overtone": _short(words.title(certificate.get("f_overtone")), "f_overtone"),
    }


def _supplier(value: Any) -> dict[str, str | None]:
    if not isinstance(value, dict):
        return {}
    return {
        "supplier_name": _short(words.text(value.get("name")), "supplier.name", LONGEST_ID),
        "supplier_legal_name": _short(words.text(value.get("legal_name")), "supplier.legal_name", LONGEST_ID),
    }


def _images(value: Any) -> tuple[Image, ...]:
    """In the order in which they are to be shown; what is no picture is left out."""
    found: list[Image] = []
    for place, it in enumerate(value if isinstance(value, list) else ()):
        url = _url(it.get("url")) if isinstance(it, dict) else None
        if url is not None and len(found) < MOST_IMAGES:
            index = it.get("display_index")
            index = index if type(index) is int and 0 <= index <= 10_000 else place  # noqa: PLR2004
            found.append(Image((words.text(it.get("id")) or str(place))[:LONGEST_ID], url, index))
    return tuple(sorted(found, key=lambda it: it.display_index))


def _first(value: Any) -> str | None:
    for it in value if isinstance(value, list) else ():
        if isinstance(it, dict) and (url := _url(it.get("url"))):
            return url
    return None


def _url(value: Any) -> str | None:
    """An address that a page may show; nothing that a browser would run."""
    if not isinstance(value, str) or not value.startswith(("https://", "http://")):
        return None
    return value if len(value) <= LONGEST_URL and value.isprintable() and " " not in value else None


def _measure(value: Any, most: Decimal) -> Decimal | None:
    """A size or an angle; "0" means that nobody has measured it."""
    if isinstance(value, str) and len(value) <= words.SHORT:
        return _measured(value, most)
    found = number(value)
    return None if found is None else _fitting(found, most)


@lru_cache(maxsize=16_384)  # measures have two decimals, so that most of them come again
def _measured(text: str, most: Decimal) -> Decimal | None:
    found = number(text)
    return None if found is None else _fitting(found, most)


def _fitting(found: Decimal, most: Decimal) -> Decimal | None:
    return rounded(found) if HALF_A_CENT <= found <= most else None


def _ratio(length: Decimal | None, width: Decimal | None) -> Decimal | None:
    if length is None or width is None:
        return None
    found = rounded(EXACT.divide(length, width), THOUSANDTH)
    return found if found <= MOST_STRETCHED else None


def _word(given: Mapping[str, Any], name: str) -> str | None:
    return _short(words.word(given.get(name)), name)


def _text(given: Mapping[str, Any], name: str) -> str | None:
    return _short(words.text(given.get(name)), name)


def _short(value: str | None, name: str, longest: int = LONGEST) -> str | None:
    """What does not fit is left out, not cut: half a number is another number. The raw row has all of it."""
    if value is not None and len(value) > longest:
        happened("mapping.clipped", field=name, characters=len(value))
        return None
    return value
