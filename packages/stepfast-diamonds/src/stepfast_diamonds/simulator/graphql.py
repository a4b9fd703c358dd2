"""GraphQL as far as clients of this API write it: read a document, check it against the schema, plan its answer.

Below a stone everything is projection: functions that pick fields and nothing else. They are put together once per
document, because a client sends the same one thousands of times.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NoReturn

from stepfast_diamonds.simulator import vocabulary as words
from stepfast_diamonds.simulator.offer import RESOLVERS, Constant
from stepfast_diamonds.simulator.search import ORDERS

# Documents: operations, fields, arguments, variables, fragments.

_TOKEN: Final = re.compile(
    r"(?P<skip>[\s,\ufeff]+|\#[^\n\r]*)"
    r"|(?P<block>\"\"\"(?:[^\"\\]|\\.|\"(?!\"\"))*\"\"\")"
    r'|(?P<text>"(?:[^"\\\n\r]|\\.)*")'
    r"|(?P<float>-?\d+(?:\.\d+(?:[eE][+-]?\d+)?|[eE][+-]?\d+))"
    r"|(?P<int>-?\d+)"
    r"|(?P<name>[_A-Za-z]\w*)"
    r"|(?P<sign>\.\.\.|[!$&()\[\]{}:=@|])"
)


class DocumentError(Exception):
    """The document is not GraphQL, or not one that this API answers."""

    def __init__(self, message: str, offset: int | None = None, text: str = "", code: str = "") -> None:
        super().__init__(message)
        self.code = code or "GRAPHQL_VALIDATION_FAILED"
        self.location: dict[str, int] | None = None
        if offset is not None:
            before = text[:offset]
            self.location = {
                "line": before.count("\n") + 1,
                "column": offset - (before.rfind("\n") + 1) + 1,
            }


class EnumValue(str):
    """An enum value of a document, which is not a text."""

    __slots__ = ()


@dataclass(frozen=True)
class Variable:
    name: str


@dataclass(frozen=True)
class Field:
    name: str
    alias: str
    arguments: dict[str, Any]
    selections: list[Selected] | None
    offset: int


@dataclass(frozen=True)
class Spread:
    """A named fragment (`name`), or one written in place."""

    name: str | None
    on: str | None
    selections: list[Selected]
    offset: int


Selected = Field | Spread


@dataclass(frozen=True)
class VariableDefinition:
    name: str
    type: str
    default: Any
    has_default: bool


@dataclass(frozen=True)
class Operation:
    kind: str
    name: str | None
    variables: list[VariableDefinition]
    selections: list[Selected]


@dataclass(frozen=True)
class Document:
    text: str
    operations: list[Operation] = field(default_factory=list)
    fragments: dict[str, Spread] = field(default_factory=dict)


def parse(text: str) -> Document:
    try:
        return _parse(text)
    except RecursionError:
        raise DocumentError("Syntax Error: Too deep.", code="GRAPHQL_PARSE_FAILED") from None


def _parse(text: str) -> Document:
    reader = DocumentReader(text)
    document = Document(text)
    while reader.kind != "end":
        if reader.value == "fragment":
            fragment = reader.fragment()
            document.fragments[str(fragment.name)] = fragment
        else:
            document.operations.append(reader.operation())
    if not document.operations:
        raise DocumentError("Syntax Error: Unexpected <EOF>.", code="GRAPHQL_PARSE_FAILED")
    return document


_SCALARS: Final[dict[str, Callable[[str], Any]]] = {
    "int": int,
    "float": float,
    "text": lambda it: json.loads(it, strict=False),
    "block": lambda it: it[3:-3].strip("\n"),
    "name": lambda it: {"true": True, "false": False, "null": None}.get(it, EnumValue(it)),
}


class DocumentReader:
    """Reads a document, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self.advance()

    def advance(self) -> None:
        while self._end < len(self._text):
            match = _TOKEN.match(self._text, self._end)
            if match is None:
                self.offset, self.value = self._end, self._text[self._end]
                self.refuse()
            self.offset, self._end = self._end, match.end()
            self.kind, self.value = str(match.lastgroup), match[0]
            if self.kind != "skip":
                return
        self.kind, self.value, self.offset = "end", "<EOF>", len(self._text)

    def refuse(self) -> NoReturn:
        shown = self.value if self.value == "<EOF>" else f'"{self.value}"'
        raise DocumentError(
            f"Syntax Error: Unexpected {shown}.", self.offset, self._text, "GRAPHQL_PARSE_FAILED"
        )

    def at(self, sign: str) -> bool:
        return self.kind == "sign" and self.value == sign

    def skip(self, sign: str) -> bool:
        if self.at(sign):
            self.advance()
            return True
        return False

    def expect(self, sign: str) -> None:
        if not self.skip(sign):
            self.refuse()

    def name(self) -> str:
        if self.kind != "name":
            self.refuse()
        value = self.value
        self.advance()
        return value

    def operation(self) -> Operation:
        if self.at("{"):
            return Operation("query", None, [], self.selections())
        if self.value not in {"query", "mutation"}:
            self.refuse()
        kind = self.name()
        name = self.name() if self.kind == "name" else None
        variables = []
        if self.skip("("):
            while not self.skip(")"):
                variables.append(self._variable())
        return Operation(kind, name, variables, self.selections())

    def fragment(self) -> Spread:
        offset = self.offset
        self.advance()
        name = self.name()
        if self.name() != "on":
            self.refuse()
        return Spread(name, self.name(), self.selections(), offset)

    def selections(self) -> list[Selected]:
        self.expect("{")
        found: list[Selected] = []
        while not self.skip("}"):
            found.append(self._spread() if self.at("...") else self._field())
        if not found:
            self.refuse()
        return found

    def type(self) -> str:
        if self.skip("["):
            found = f"[{self.type()}]"
            self.expect("]")
        else:
            found = self.name()
        return found + "!" if self.skip("!") else found

    def value_(self, *, constant: bool = False) -> Any:
        kind, value = self.kind, self.value
        if self.skip("["):
            items = []
            while not self.skip("]"):
                items.append(self.value_(constant=constant))
            return items
        if self.skip("{"):
            return self._object("}", constant=constant)
        if self.at("$") and not constant:
            self.advance()
            return Variable(self.name())
        if kind not in _SCALARS:
            self.refuse()
        self.advance()
        return _SCALARS[kind](value)

    def _object(self, end: str, *, constant: bool) -> dict[str, Any]:
        found = {}
        while not self.skip(end):
            name = self.name()
            self.expect(":")
            found[name] = self.value_(constant=constant)
        return found

    def _variable(self) -> VariableDefinition:
        self.expect("$")
        name = self.name()
        self.expect(":")
        type_ = self.type()
        has_default = self.skip("=")
        return VariableDefinition(
            name, type_, self.value_(constant=True) if has_default else None, has_default
        )

    def _field(self) -> Field:
        offset = self.offset
        alias = name = self.name()
        if self.skip(":"):
            name = self.name()
        arguments = self._object(")", constant=False) if self.skip("(") else {}
        self._no_directive()
        return Field(name, alias, arguments, self.selections() if self.at("{") else None, offset)

    def _spread(self) -> Spread:
        offset = self.offset
        self.advance()
        if self.kind == "name" and self.value != "on":
            name = self.name()
            self._no_directive()
            return Spread(name, None, [], offset)
        on = None
        if self.kind == "name":
            self.advance()
            on = self.name()
        self._no_directive()
        return Spread(None, on, self.selections(), offset)

    def _no_directive(self) -> None:
        if self.at("@"):
            raise DocumentError("The simulator knows no directives.", self.offset, self._text)


# The part of the schema that is served, as SDL, and how input values are read by it.

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
class VariableValue:
    """The value of a variable inside a literal: there an enum value is a text again."""

    value: Any


def _types_of(kind: str) -> dict[str, dict[str, FieldType]]:
    return {
        name: {
            field: FieldType(type_, dict(_ARGUMENT.findall(arguments)))
            for field, arguments, type_ in _FIELD.findall(body)
        }
        for found, name, body in _TYPE.findall(SDL)
        if found == kind
    }


TYPES: Final = _types_of("type")
INPUTS: Final = _types_of("input")
_REQUIRED: Final = {
    type_: [name for name, field in fields.items() if field.type.endswith("!")]
    for type_, fields in INPUTS.items()
}


def named(type_: str) -> str:
    """The name of a type without list and non-null signs: `DiamondItem` of `[DiamondItem]!`."""
    return type_.strip("[]!")


def is_leaf(type_: str) -> bool:
    return named(type_) not in TYPES


def coerce(type_: str, value: Any, *, literal: bool) -> Any:
    """A value as the type wants it, or a DocumentError in the words of the reference implementation."""
    if isinstance(value, VariableValue):
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
    if not isinstance(value, EnumValue if literal else str) or value not in ENUMS[type_]:
        raise DocumentError(f'Value {_quoted(value)} does not exist in "{type_}" enum.')
    return str(value)


def _coerce_object(type_: str, value: Any, *, literal: bool) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise DocumentError(f'Expected value of type "{type_}", found {_quoted(value)}.')
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
        case "String" if isinstance(value, str) and not isinstance(value, EnumValue):
            return value
        case "ID" if (isinstance(value, str) and not isinstance(value, EnumValue)) or (
            number and isinstance(value, int)
        ):
            return str(value)
    kind = {"Int": "integer", "String": "string", "Boolean": "boolean"}.get(type_, type_)
    raise DocumentError(f"{type_} cannot represent a non-{kind} value: {_quoted(value)}")


def _quoted(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) and not isinstance(value, EnumValue) else str(value)


# The plan of an operation.

TYPES_THAT_ACT: Final = ("Query", "Mutation", "Authenticate")  # types whose fields do something
DEEPEST: Final = 12

Projection = Callable[[Any], Any]


@dataclass(frozen=True)
class PlannedCall:
    """A field that does something: with arguments, and either further calls or a projection of what it returns."""

    type: str
    name: str
    alias: str
    arguments: Mapping[str, Any]
    calls: Sequence[PlannedCall]
    project: Projection | None


@dataclass(frozen=True)
class OperationPlan:
    kind: str
    variables: Sequence[VariableDefinition]
    calls: Sequence[PlannedCall]


@lru_cache(maxsize=512)
def plan(text: str, operation_name: str | None) -> OperationPlan:
    """Read and check a document, and plan its operation; every problem is a DocumentError."""
    document = parse(text)
    operation = _chosen_operation(document, operation_name)
    for it in operation.variables:
        if named(it.type) not in {*SCALARS, *ENUMS, *INPUTS}:
            raise DocumentError(f'Unknown type "{named(it.type)}".')
    root = "Mutation" if operation.kind == "mutation" else "Query"
    planner = _Planner(document, {it.name for it in operation.variables})
    return OperationPlan(operation.kind, operation.variables, planner.calls(root, operation.selections))


def read_variables(plan: OperationPlan, given: Any) -> dict[str, Any]:
    """The variables of a request, in the types that the operation declares."""
    if given is not None and not isinstance(given, dict):
        raise DocumentError("Variables must be provided as an object.", code="BAD_REQUEST")
    known: dict[str, Any] = given or {}
    values = {}
    for it in plan.variables:
        if it.name not in known and not it.has_default:
            if it.type.endswith("!"):
                raise DocumentError(
                    f'Variable "${it.name}" of required type "{it.type}" was not provided.',
                    code="BAD_USER_INPUT",
                )
            continue
        try:
            asked = it.name in known
            values[it.name] = coerce(it.type, known[it.name] if asked else it.default, literal=not asked)
        except DocumentError as error:
            raise DocumentError(
                f'Variable "${it.name}" got invalid value: {error}', code="BAD_USER_INPUT"
            ) from None
    return values


def read_arguments(call: PlannedCall, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one call, with the variables put in."""
    types = TYPES[call.type][call.name].arguments
    found = {}
    for name, value in call.arguments.items():
        if isinstance(value, Variable):
            if value.name in variables:
                found[name] = variables[value.name]
        else:
            found[name] = coerce(types[name], _with_variables(value, variables), literal=True)
    return found


def _with_variables(value: Any, variables: Mapping[str, Any]) -> Any:
    """A literal with its variables filled in; their values were checked against their own types."""
    match value:
        case Variable(name):
            return VariableValue(variables.get(name))
        case dict():
            return {name: _with_variables(it, variables) for name, it in value.items()}
        case list():
            return [_with_variables(it, variables) for it in value]
        case _:
            return value


def _chosen_operation(document: Document, name: str | None) -> Operation:
    if name is None:
        if len(document.operations) > 1:
            raise DocumentError("Must provide operation name if query contains multiple operations.")
        return document.operations[0]
    for it in document.operations:
        if it.name == name:
            return it
    raise DocumentError(f'Unknown operation named "{name}".')


class _Planner:
    def __init__(self, document: Document, variables: set[str]) -> None:
        self._document = document
        self._variables = variables

    def calls(self, type_: str, selections: Sequence[Selected], depth: int = 0) -> list[PlannedCall]:
        found = []
        for chosen in self._flat(type_, selections, depth):
            if chosen.name == "__typename":
                found.append(PlannedCall(type_, chosen.name, chosen.alias, {}, (), None))
                continue
            known = self._known(type_, chosen)
            below = named(known.type)
            acting = below in TYPES_THAT_ACT
            found.append(
                PlannedCall(
                    type_,
                    chosen.name,
                    chosen.alias,
                    chosen.arguments,
                    self.calls(below, chosen.selections or [], depth + 1) if acting else (),
                    None
                    if acting or is_leaf(below)
                    else self._project(below, chosen.selections or [], depth),
                )
            )
        return found

    def _project(self, type_: str, selections: Sequence[Selected], depth: int) -> Projection:
        getters = RESOLVERS.get(type_)
        shape: dict[str, Any] = {}  # every alias in its order, with what is the same for all
        picks: list[tuple[str, Projection]] = []
        for chosen in self._flat(type_, selections, depth):
            shape[chosen.alias] = None
            if chosen.name == "__typename":
                shape[chosen.alias] = type_
                continue
            known = self._known(type_, chosen)
            get: Projection = itemgetter(chosen.name) if getters is None else getters[chosen.name]
            if isinstance(get, Constant):
                shape[chosen.alias] = get.value
            elif is_leaf(known.type):
                picks.append((chosen.alias, get))
            else:
                below = self._project(named(known.type), chosen.selections or [], depth + 1)
                picks.append((chosen.alias, _nested(get, below, listed=known.type.startswith("["))))

        def project(value: Any) -> dict[str, Any]:
            made = shape.copy()
            for alias, get in picks:
                made[alias] = get(value)
            return made

        return project

    def _flat(self, type_: str, selections: Sequence[Selected], depth: int) -> list[Field]:
        """The fields of a selection, with those of its fragments."""
        if depth > DEEPEST:
            raise DocumentError("The query is too deep, or a fragment spreads itself.")
        found: list[Field] = []
        for it in selections:
            if isinstance(it, Field):
                found.append(it)
            else:
                fragment = self._fragment(it)
                if fragment.on not in {None, type_}:
                    self._refuse(
                        f'Fragment cannot be spread here as objects of type "{type_}" can never be of '
                        f'type "{fragment.on}".',
                        it.offset,
                    )
                found += self._flat(type_, fragment.selections, depth + 1)
        return found

    def _fragment(self, spread: Spread) -> Spread:
        if spread.name is None:
            return spread
        if spread.name not in self._document.fragments:
            self._refuse(f'Unknown fragment "{spread.name}".', spread.offset)
        return self._document.fragments[spread.name]

    def _known(self, type_: str, field: Field) -> FieldType:
        known = TYPES[type_].get(field.name)
        if known is None:
            if field.name.startswith("__"):
                self._refuse("The simulator does not answer introspection.", field.offset)
            self._refuse(f'Cannot query field "{field.name}" on type "{type_}".', field.offset)
        if is_leaf(known.type) and field.selections is not None:
            self._refuse(
                f'Field "{field.name}" must not have a selection since type "{known.type}" has no subfields.',
                field.offset,
            )
        if not is_leaf(known.type) and field.selections is None:
            self._refuse(
                f'Field "{field.name}" of type "{known.type}" must have a selection of subfields. '
                f'Did you mean "{field.name} {{ ... }}"?',
                field.offset,
            )
        self._check_arguments(type_, field, known)
        return known

    def _check_arguments(self, type_: str, field: Field, known: FieldType) -> None:
        for name, value in field.arguments.items():
            if name not in known.arguments:
                self._refuse(f'Unknown argument "{name}" on field "{type_}.{field.name}".', field.offset)
            self._check_variables(value, field.offset)
            if not _has_variables(value):
                try:
                    coerce(known.arguments[name], value, literal=True)
                except DocumentError as error:
                    self._refuse(str(error), field.offset)
        for name, wanted in known.arguments.items():
            if wanted.endswith("!") and name not in field.arguments:
                self._refuse(
                    f'Field "{field.name}" argument "{name}" of type "{wanted}" is required, '
                    "but it was not provided.",
                    field.offset,
                )

    def _check_variables(self, value: Any, offset: int) -> None:
        for it in _variables_in(value):
            if it not in self._variables:
                self._refuse(f'Variable "${it}" is not defined.', offset)

    def _refuse(self, message: str, offset: int) -> NoReturn:
        raise DocumentError(message, offset, self._document.text)


def _nested(get: Projection, below: Projection, *, listed: bool) -> Projection:
    def one(value: Any) -> Any:
        found = get(value)
        return None if found is None else below(found)

    def many(value: Any) -> Any:
        found = get(value)
        return None if found is None else [None if it is None else below(it) for it in found]

    return many if listed else one


def _variables_in(value: Any) -> list[str]:
    match value:
        case Variable(name):
            return [name]
        case dict():
            return [name for it in value.values() for name in _variables_in(it)]
        case list():
            return [name for it in value for name in _variables_in(it)]
        case _:
            return []


def _has_variables(value: Any) -> bool:
    return bool(_variables_in(value))
