"""An offer of Nivoda becomes a stone, or is rejected with a reason: every kind of dirty value (B16, B18)."""

from __future__ import annotations

from contextlib import suppress
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepfast_diamonds.mapping import SELECTION, RejectedError, identity_of, map_offer
from stepfast_diamonds.mapping_words import availability, fancy_color, shape
from stepfast_diamonds.stone import Image, Stone, columns_of
from tests.diamonds.offers import offer
from tests.support.events import hearing, named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepfast_diamonds.mapping import Need


def mapped(item: Any, *, lab_grown: bool = False) -> Stone:
    return map_offer(item, "nivoda-natural", lab_grown=lab_grown)


def certified(**certificate: Any) -> Stone:
    return mapped(offer(**certificate))


def of_diamond(**diamond: Any) -> Stone:
    return mapped(offer(diamond=diamond))


def refusal(item: Any, *needs: Need) -> tuple[str, str]:
    with pytest.raises(RejectedError) as error:
        map_offer(item, "nivoda-natural", lab_grown=False, needs=frozenset(needs))
    return error.value.code, str(error.value)


# A stone in order


def test_an_offer_becomes_a_stone() -> None:
    stone = mapped(offer("7f3c", 123_456))

    assert (stone.feed, stone.supplier_stone_id, stone.offer_id) == ("nivoda-natural", "7f3c", "DIAMOND/7f3c")
    assert (stone.shape, stone.carats, stone.color, stone.clarity) == ("ROUND", Decimal("1.01"), "G", "VS1")
    assert (stone.cut, stone.polish, stone.symmetry) == ("EX", "EX", "VG")
    assert (stone.length_mm, stone.width_mm, stone.depth_mm) == (
        Decimal("6.43"),
        Decimal("6.40"),
        Decimal("3.98"),
    )
    assert (stone.table_pct, stone.depth_pct) == (Decimal("57.00"), Decimal("62.00"))
    assert (stone.certificate_lab, stone.certificate_number) == ("GIA", "2141438167")
    assert (stone.supplier_name, stone.supplier_legal_name) == ("Supplier 001", "Supplier 001 Ltd")
    assert stone.meta_images == (Image("i1", "https://media.example.net/a/1.jpg", 0),)
    assert (stone.lab_grown, stone.treated) == (False, False)


def test_prices_are_exact_decimals_from_cents() -> None:
    stone = mapped(offer(cents=1_010_00, carats=3.0))

    assert (stone.feed_price, stone.diamond_price) == (Decimal("1010.00"), Decimal("1200.00"))
    assert stone.price_per_carat == Decimal("336.67")
    assert all(type(it) is Decimal for it in (stone.feed_price, stone.price_per_carat, stone.carats))


def test_half_a_cent_per_carat_is_rounded_up() -> None:
    assert mapped(offer(cents=1_01, carats=2.0)).price_per_carat == Decimal("0.51")


def test_whether_it_was_grown_is_said_by_the_feed() -> None:
    assert mapped(offer(), lab_grown=True).lab_grown is True


def test_the_ratio_is_length_by_width_to_three_places() -> None:
    assert certified(length="7.10", width="5.05").ratio == Decimal("1.406")
    assert certified(length="2.0", width="3.0").ratio == Decimal("0.667")


def test_the_same_certificate_of_two_suppliers_is_two_stones() -> None:
    """B18."""
    one, other = offer("a", certNumber="2141438167"), offer("b", certNumber="2141438167")

    assert identity_of(one) != identity_of(other)
    assert mapped(one).certificate_number == mapped(other).certificate_number


def test_columns_are_what_every_database_takes() -> None:
    row = columns_of(certified(treated=True))

    assert {type(it) for it in row.values()} <= {str, int, type(None)}
    assert (row["feed_price"], row["ratio"], row["lab_grown"], row["treated"]) == ("1234.56", "1.005", 0, 1)
    assert msgspec.json.decode(row["meta_images"]) == [
        {"id": "i1", "url": "https://media.example.net/a/1.jpg", "displayIndex": 0}
    ]


def test_the_selection_asks_for_every_field_that_is_read() -> None:
    asked = set(SELECTION.replace("{", " ").replace("}", " ").split())
    item = offer()

    assert {*item, *item["diamond"], *item["diamond"]["certificate"]} - asked == set()


# Dirty values (B16)


@pytest.mark.parametrize(
    ("said", "kept"),
    [("90%", "90%"), ("100%", "100%"), ("Yes", "YES"), ("", None), (None, None), ("null", None)],
)
def test_eye_clean_is_a_text_and_no_truth_value(said: str | None, kept: str | None) -> None:
    assert of_diamond(eyeClean=said).eye_clean == kept


@pytest.mark.parametrize("said", ["null", "NULL", "", "  ", "undefined", None])
def test_a_girdle_called_null_is_unknown(said: str | None) -> None:
    assert certified(girdle=said).girdle is None


@pytest.mark.parametrize(
    "said", ["0", "0.000000", "-1", "", "abc", None, "NaN", "Infinity", "1e400", [], True]
)
def test_a_length_of_zero_or_of_nonsense_is_unknown_and_so_is_the_ratio(said: Any) -> None:
    stone = certified(length=said)

    assert stone.length_mm is None
    assert stone.ratio is None
    assert stone.width_mm == Decimal("6.40")


def test_a_number_in_a_text_field_and_a_text_in_a_number_field_are_read() -> None:
    stone = mapped(offer(cents="123456", carats="1.01", length=7.1, certNumber=2141438167))

    assert (stone.feed_price, stone.carats) == (Decimal("1234.56"), Decimal("1.01"))
    assert (stone.length_mm, stone.certificate_number) == (Decimal("7.10"), "2141438167")


@pytest.mark.parametrize("lab", ["NONE", "STOCKID", "none"])
def test_a_suppliers_stock_id_is_no_certificate_number(lab: str) -> None:
    stone = certified(lab=lab, certNumber="S007-1234")

    assert (stone.certificate_lab, stone.certificate_number) == (lab.upper(), None)


@pytest.mark.parametrize("said", ["B", "BLUE", "Blue", "b"])
def test_fluorescence_has_one_word_for_blue(said: str) -> None:
    assert certified(floCol=said).fluorescence == "BLUE"


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("NON", "NONE"),
        ("FNT", "FAINT"),
        ("MED", "MEDIUM"),
        ("STG", "STRONG"),
        ("STN", "STRONG"),
        ("VST", "VERY_STRONG"),
        ("VSL", "VERY_SLIGHT"),
        ("SLT", "SLIGHT"),
        ("GLOWING", "GLOWING"),
        (None, None),
    ],
)
def test_the_intensity_of_fluorescence_is_spelled_out(said: str | None, kept: str | None) -> None:
    assert certified(floInt=said).fluorescence_intensity == kept


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("YELLOW", "Yellow"),
        ("GREY", "Gray"),
        ("Gray", "Gray"),
        ("ORANGE BROWN", "Brown Orange"),
        ("BROWN ORANGE", "Brown Orange"),
        ("brown-orange", "Brown Orange"),
        ("ORANGE, BROWNISH", "Brownish Orange"),
        ("EVEN", "Unknown"),
        ("U-V", "Unknown"),
        ("YELLOW EVEN", "Yellow"),
        ("", "Unknown"),
        (None, "Unknown"),
    ],
)
def test_a_fancy_colour_has_one_name(said: str | None, kept: str) -> None:
    assert certified(color="FANCY", f_color=said).fancy_color == kept


def test_a_stone_has_a_fancy_colour_if_and_only_if_its_colour_is_fancy() -> None:
    white = certified(color="G", f_color="PINK", f_intensity="FANCY VIVID")
    assert (white.color, white.fancy_color, white.fancy_intensity) == ("G", None, None)

    pink = certified(color="FANCY", f_color="PINK", f_intensity="FANCY VIVID", f_overtone="GREYISH")
    assert (pink.color, pink.fancy_color) == ("FANCY", "Pink")
    assert (pink.fancy_intensity, pink.fancy_overtone) == ("Fancy Vivid", "Grayish")
    assert certified(color=None, f_color="PINK").color == "FANCY"
    assert certified(color=None).color is None


@pytest.mark.parametrize(
    ("said", "kept"), [("ASCHER", "ASSCHER"), ("HALFMOON", "HALF MOON"), ("round", "ROUND")]
)
def test_a_shape_has_one_name(said: str, kept: str) -> None:
    assert shape(said) == kept


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("AVAILABLE", "available"),
        ("HOLD", "on_hold"),
        ("ON_HOLD", "on_hold"),
        ("SOLD", "sold"),
        ("SOLD_OUT", "sold"),
        ("NOT_AVAILABLE", "unavailable"),
        ("MEMO", "unavailable"),
        ("ON_MEMO", "unavailable"),
        ("CONSIGNMENT", "unavailable"),
        ("TEMPORARILY_ON_HOLD", "on_hold"),
        ("AVAILABLE_SOON", "unavailable"),
        ("UNSOLD", "unavailable"),
        (None, "unavailable"),
        (7, "unavailable"),
    ],
)
def test_only_what_is_known_to_be_available_is_available(said: Any, kept: str) -> None:
    assert availability(said) == kept


def test_a_word_that_nobody_told_us_of_is_kept() -> None:
    stone = certified(clarity="VVS3", cut="superb", lab="NEWLAB")

    assert (stone.clarity, stone.cut, stone.certificate_lab) == ("VVS3", "SUPERB", "NEWLAB")


def test_characters_that_no_database_stores_are_left_out() -> None:
    assert certified(girdle="THIN\x00 -\n THICK").girdle == "THIN - THICK"


# Rejections


def test_a_stone_without_a_certificate_is_rejected() -> None:
    assert refusal(offer(diamond={"certificate": None})) == ("no certificate", "the stone has no certificate")


@pytest.mark.parametrize("said", [None, "", "javascript:alert(1)", "media/1.jpg", 7])
def test_a_stone_without_an_image_is_rejected_where_it_needs_one(said: Any) -> None:
    code, reason = refusal(offer(diamond={"image": said}, product_images=[]), "image")

    assert (code, reason) == ("no image", "the stone has no image; it cannot be shown")


def test_a_stone_without_a_video_is_rejected_where_it_needs_one() -> None:
    assert refusal(offer(diamond={"video": None}), "image", "video")[0] == "no video"


def test_a_stone_needs_no_pictures_unless_somebody_says_so() -> None:
    stone = mapped(offer(diamond={"video": None, "image": None}, product_images=[]))

    assert (stone.image_url, stone.video_url) == (None, None)


def test_other_pictures_and_views_do_as_well() -> None:
    around = {"url": "https://media.example.net/a/360"}
    stone = mapped(offer(diamond={"image": None, "video": None, "v360": around}))

    assert stone.image_url == "https://media.example.net/a/1.jpg"
    assert stone.video_url == "https://media.example.net/a/360"


@pytest.mark.parametrize("said", [None, 0, -5, 12.5, "free", True, 10**13])
def test_a_stone_without_a_price_is_rejected(said: Any) -> None:
    assert refusal(offer(cents=said))[0] == "no price"


@pytest.mark.parametrize("said", [None, 0, -1, "heavy", 1e9, "NaN"])
def test_a_stone_without_a_weight_is_rejected(said: Any) -> None:
    assert refusal(offer(carats=said))[0] == "no weight"


def test_a_stone_without_an_identity_or_a_shape_is_rejected() -> None:
    assert refusal(offer(diamond={"id": None}))[0] == "no identity"
    assert refusal(offer(shape=None)) == ("no shape", "the certificate has no shape")


def test_a_text_that_makes_the_stone_and_is_a_document_is_rejected() -> None:
    assert refusal(offer(shape="x" * 1_000_000)) == (
        "too long",
        "shape has 1,000,000 characters; at most 100 make sense",
    )
    assert refusal(offer("y" * 201))[0] == "too long"


def test_a_text_that_only_describes_and_is_a_document_is_left_out_and_counted() -> None:
    book = "x" * 1_000_000
    with hearing() as heard:
        stone = mapped(
            offer(
                diamond={"HoldId": book, "supplier": {"name": book, "legal_name": "Ltd"}},
                girdle=book,
                certNumber=book,
                cut=book,
            )
        )

    told = named(heard, "mapping.clipped")
    assert (stone.girdle, stone.certificate_number, stone.cut, stone.hold_id) == (None, None, None, None)
    assert (stone.supplier_name, stone.supplier_legal_name) == (None, "Ltd")
    assert {it["field"] for it in told} == {"girdle", "certNumber", "cut", "HoldId", "supplier.name"}
    assert {it["characters"] for it in told} == {len(book)}


def test_a_fancy_colour_that_is_a_document_is_fancy_all_the_same() -> None:
    """It decides about the price."""
    stone = certified(color="FANCY", f_color="Q" * 1_000)

    assert (stone.color, stone.fancy_color) == ("FANCY", "Unknown")


def test_an_offer_whose_id_is_a_document_has_the_id_of_its_stone() -> None:
    assert mapped(offer("7f3c") | {"id": "z" * 1_000}).offer_id == "DIAMOND/7f3c"


@pytest.mark.parametrize("item", [None, [], "stone", 7, {}, {"diamond": None}, {"diamond": []}])
def test_what_is_no_offer_is_rejected(item: Any) -> None:
    assert refusal(item)[0] in {"no offer", "no diamond"}


# Whatever comes

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NUMBERS = JSON | st.decimals().map(str) | st.integers(-10, 10**12) | st.floats(0, 100)


def some(fields: Mapping[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=dict.fromkeys(fields, JSON | NUMBERS))


@given(st.data())
def test_whatever_has_the_shape_of_an_offer_is_mapped_or_rejected(data: st.DataObject) -> None:
    """Nothing but `RejectedError` leaves the mapping."""
    item = offer()
    diamond, certificate = item["diamond"], item["diamond"]["certificate"]
    certificate |= data.draw(some(certificate))
    diamond |= data.draw(some({name: None for name in diamond if name != "certificate"}))
    item |= data.draw(some({"id": None, "price": None, "diamond_price": None}))

    with suppress(RejectedError):
        stone = mapped(item)
        row = columns_of(stone)
        assert all(it is None or "\x00" not in str(it) for it in row.values())
        assert 0 < stone.feed_price < 10**8
        assert stone.ratio is None or stone.ratio < 100


@given(JSON)
def test_whatever_is_no_offer_is_rejected(item: Any) -> None:
    with pytest.raises(RejectedError):
        mapped(item)


@given(st.lists(st.sampled_from(["ORANGE", "BROWN", "GREY", "PINK", "YELLOWISH"]), min_size=1, unique=True))
def test_the_name_of_a_colour_does_not_depend_on_the_order_of_its_words(names: list[str]) -> None:
    assert fancy_color(" ".join(names)) == fancy_color(" ".join(reversed(names)))
