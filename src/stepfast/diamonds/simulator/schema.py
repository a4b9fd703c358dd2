"""The part of the schema that is served, in its own words, and what it makes of input values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from stepfast.diamonds.simulator import vocabulary as words
from stepfast.diamonds.simulator.document import DocumentError, Word
from stepfast.diamonds.simulator.listing import ORDERS

SDL: Final = """
type Query {
  authenticate: Authenticate!
  as(token: String): Query!
  diamonds_by_query(offset: Int, limit: Int, query: DiamondQuery, order: DiamondOrder): DiamondList!
  diamonds_by_query_count(offset: Int, limit: Int, query: DiamondQuery, order: DiamondOrder): Int!
  get_diamond_by_id(diamond_id: ID!): DiamondItem!
}
type Mutation {
  as(token: String): Mutation!
  create_hold(ProductId: ID!, ProductType: ProductType!): Hold!
  cancel_hold(hold_id: ID!): Hold!
}
type Authenticate {
  username_and_password(username: String!, password: String!, twofactorauth: String): Session!
  refresh_token(token: String!): Session!
}
type Session { token: String!  expires: Float!  refresh_token: String!  user: User! }
type User { id: ID!  firstName: String  lastName: String  email: String }
type Hold { id: ID  denied: Boolean!  until: String }
type DiamondList { items: [DiamondItem]  total_count: Int! }
type DiamondItem {
  id: ID!  diamond: Diamond!  price: Int!  discount: Int!  markup_price: Int!  markup_discount: Int!  diamond_price: Int
}
type Diamond {
  id: ID!  availability: ProductAvailability!  certificate: Certificate!  HoldId: ID  supplierStockId: String
  NivodaStockId: String  image: String  video: String  supplier_video_link: String  v360: V360
  brown: String  green: String  blue: String  gray: String  other: String  milky: String  bowtie: String
  eyeClean: String  mine_of_origin: String  location: String
  canada_mark_eligible: Boolean  forever_mark_eligible: Boolean  show_measurements: Boolean
  show_certificate_number: Boolean  final_price: Boolean!  return_window: Int  approval_type: ApprovalType
  CertificateType: String  delivery_time: DeliveryTime!  supplier: Company  inclusions: [Inclusion]!
}
type Certificate {
  id: ID!  lab: CertificateLab!  certNumber: String!  shape: String!  fullShape: String  carats: Float!
  color: DiamondColor!  clarity: DiamondClarity  cut: DiamondQuality  polish: DiamondQuality!
  symmetry: DiamondQuality!  floInt: DiamondFluorescenseIntensity  floCol: String
  length: String!  width: String!  depth: String!  depthPercentage: String!  table: String!
  crownAngle: String  crownHeight: String  pavAngle: String  pavHeight: String  pavDepth: String
  starLength: String  lowerGirdle: String  girdle: String  culetSize: String  keyToSymbols: String
  comments: String  colorShade: String  f_color: String  f_intensity: String  f_overtone: String
  labgrown: Boolean  labgrown_type: LabgrownType  treated: Boolean  verified: String
  pdfUrl: String  image: String  video: String  v360: V360  country_of_origin: String
  product_images: [Media]  product_videos: [Media]  diamonds: [Diamond]
}
type V360 { url: String  frame_count: Int  renumbered: Boolean  top_index: Int  dl_link: String }
type Media { id: ID!  url: String  loupe360_url: String  type: String  display_index: Int }
type DeliveryTime { express_timeline_applicable: Boolean  min_business_days: Int!  max_business_days: Int! }
type Company { id: ID!  name: String  legal_name: String }
type Inclusion { type: String }
input DiamondOrder { type: DiamondOrderType!  direction: OrderDirection! }
input IntRange { from: Int!  to: Int! }
input FloatRange { from: Float!  to: Float! }
input DateRange { from: String  to: String }
input DiamondQuery {
  shapes: [String]  sizes: [FloatRange]  dollar_value: IntRange  dollar_per_carat: IntRange  discount: IntRange
  labgrown: Boolean  updated: DateRange  availability: [ProductAvailability]  has_image: Boolean  has_v360: Boolean
  has_certpdf: Boolean  hide_memo: Boolean  returns: Boolean  return_window_timeline: Int  treated: Boolean
  certificate_numbers: [String!]  certificate_lab: [CertificateLab]  suppliers: [ID!]  location: [String]
  filter_ids: [ID]  ids: [ID]  color: [DiamondColor]  clarity: [DiamondClarity]  cut: [DiamondQuality]
  polish: [DiamondQuality]  symmetry: [DiamondQuality]  flouresence: [DiamondFluorescenseIntensity]
  table_percentage: FloatRange  depth_percentage: FloatRange  ratio: FloatRange
  length_mm: FloatRange  width_mm: FloatRange  depth_mm: FloatRange
  fancyColor: [String]  fancyIntensity: [String]  labgrown_type: [LabgrownType]  eyeClean: [String]
  search_on_markup_price: Boolean  excludeFairPoorCuts: Boolean
  girdle: [String]  culet: [String]  fancyOvertone: [String]  delivery_time: String
  search_on_preferred_currency: Boolean  add_taxes_on_search: Boolean  custom_query: String  preferred_currency: String
}
"""

ENUMS: Final[Mapping[str, tuple[str, ...]]] = {
    "ProductAvailability": words.AVAILABILITY,
    "DiamondColor": words.COLORS,
    "DiamondClarity": words.CLARITIES,
    "DiamondQuality": words.QUALITIES,
    "DiamondFluorescenseIntensity": words.FLUORESCENCE,
    "CertificateLab": words.LABS,
    "LabgrownType": words.GROWTHS,
    "ApprovalType": ("FULL", "INTERNAL"),
    "DiamondOrderType": ORDERS,
    "OrderDirection": ("ASC", "DESC"),
    "ProductType": ("Diamond",),
}
SCALARS: Final = ("Int", "Float", "String", "Boolean", "ID")

_TYPE: Final = re.compile(r"(type|input) (\w+) \{(.*?)\}", re.DOTALL)
_FIELD: Final = re.compile(r"(\w+)(?:\(([^)]*)\))?: ([\w\[\]!]+)")
_ARGUMENT: Final = re.compile(r"(\w+): ([\w\[\]!]+)")
_LARGEST_INT: Final = 2**31


@dataclass(frozen=True)
class FieldType:
    type: str
    arguments: Mapping[str, str]


@dataclass(frozen=True)
class Given:
    """The value of a variable inside a literal: there an enum value is a text again."""

    value: Any


def _read(kind: str) -> dict[str, dict[str, FieldType]]:
    return {
        name: {
            field: FieldType(type_, dict(_ARGUMENT.findall(arguments)))
            for field, arguments, type_ in _FIELD.findall(body)
        }
        for found, name, body in _TYPE.findall(SDL)
        if found == kind
    }


TYPES: Final = _read("type")
INPUTS: Final = _read("input")
_REQUIRED: Final = {
    type_: [name for name, field in fields.items() if field.type.endswith("!")]
    for type_, fields in INPUTS.items()
}


def named(type_: str) -> str:
    """`[DiamondItem]!` is about `DiamondItem`."""
    return type_.strip("[]!")


def is_leaf(type_: str) -> bool:
    return named(type_) not in TYPES


def coerce(type_: str, value: Any, *, literal: bool) -> Any:
    """A value as the type wants it, or a DocumentError in the words of the reference implementation."""
    if isinstance(value, Given):
        return coerce(type_, value.value, literal=False)
    if type_.endswith("!"):
        if value is None:
            raise DocumentError(f'Expected value of type "{type_}", found null.')
        type_ = type_[:-1]
    if value is None:
        return None
    if type_.startswith("["):
        items = value if isinstance(value, list) else [value]
        return [coerce(type_[1:-1], it, literal=literal) for it in items]
    if type_ in INPUTS:
        return _coerce_object(type_, value, literal=literal)
    return _coerce_enum(type_, value, literal=literal) if type_ in ENUMS else _coerce_scalar(type_, value)


def _coerce_enum(type_: str, value: Any, *, literal: bool) -> str:
    if not isinstance(value, Word if literal else str) or value not in ENUMS[type_]:
        raise DocumentError(f'Value {_shown(value)} does not exist in "{type_}" enum.')
    return str(value)


def _coerce_object(type_: str, value: Any, *, literal: bool) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DocumentError(f'Expected value of type "{type_}", found {_shown(value)}.')
    fields = INPUTS[type_]
    if unknown := [it for it in value if it not in fields]:
        raise DocumentError(f'Field "{unknown[0]}" is not defined by type "{type_}".')
    for name in _REQUIRED[type_]:
        if name not in value:
            raise DocumentError(
                f'Field "{type_}.{name}" of required type "{fields[name].type}" was not provided.'
            )
    return {name: coerce(fields[name].type, it, literal=literal) for name, it in value.items()}


def _coerce_scalar(type_: str, value: Any) -> Any:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match type_:
        case "Int" if number and value == int(value) and -_LARGEST_INT <= value < _LARGEST_INT:
            return int(value)
        case "Float" if number:
            return float(value)
        case "Boolean" if isinstance(value, bool):
            return value
        case "String" if isinstance(value, str) and not isinstance(value, Word):
            return value
        case "ID" if (isinstance(value, str) and not isinstance(value, Word)) or (
            number and isinstance(value, int)
        ):
            return str(value)
    kind = {"Int": "integer", "String": "string", "Boolean": "boolean"}.get(type_, type_)
    raise DocumentError(f"{type_} cannot represent a non-{kind} value: {_shown(value)}")


def _shown(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) and not isinstance(value, Word) else str(value)
