"""A document that fits the schema, made ready to be answered many times.

Below a stone everything is projection: functions that pick fields and nothing else. They are put together once per
document, because a client sends the same one thousands of times.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, NoReturn

from stepfast.diamonds.simulator.document import (
    Document,
    DocumentError,
    Field,
    Operation,
    Selected,
    Spread,
    Variable,
    VariableDefinition,
    parse,
)
from stepfast.diamonds.simulator.offer import RESOLVERS, Constant
from stepfast.diamonds.simulator.schema import (
    ENUMS,
    INPUTS,
    SCALARS,
    TYPES,
    FieldType,
    Given,
    coerce,
    is_leaf,
    named,
)

ACTING: Final = ("Query", "Mutation", "Authenticate")  # types whose fields do something
DEEPEST: Final = 12

Project = Callable[[Any], Any]


@dataclass(frozen=True)
class Call:
    """A field that does something: with arguments, and either further calls or a projection of what it returns."""

    type: str
    name: str
    alias: str
    arguments: Mapping[str, Any]
    calls: Sequence[Call]
    project: Project | None


@dataclass(frozen=True)
class Plan:
    kind: str
    variables: Sequence[VariableDefinition]
    calls: Sequence[Call]


@lru_cache(maxsize=512)
def plan(text: str, operation_name: str | None) -> Plan:
    """Read, check and prepare; every problem is a DocumentError."""
    document = parse(text)
    operation = _chosen(document, operation_name)
    for it in operation.variables:
        if named(it.type) not in {*SCALARS, *ENUMS, *INPUTS}:
            raise DocumentError(f'Unknown type "{named(it.type)}".')
    root = "Mutation" if operation.kind == "mutation" else "Query"
    planner = _Planner(document, {it.name for it in operation.variables})
    return Plan(operation.kind, operation.variables, planner.calls(root, operation.selections))


def read_variables(plan: Plan, given: Any) -> dict[str, Any]:
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


def read_arguments(call: Call, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one call, with the variables put in."""
    types = TYPES[call.type][call.name].arguments
    found = {}
    for name, value in call.arguments.items():
        if isinstance(value, Variable):
            if value.name in variables:
                found[name] = variables[value.name]
        else:
            found[name] = coerce(types[name], _filled(value, variables), literal=True)
    return found


def _filled(value: Any, variables: Mapping[str, Any]) -> Any:
    """Variables inside of objects and lists; what they bring was checked against their own type."""
    match value:
        case Variable(name):
            return Given(variables.get(name))
        case dict():
            return {name: _filled(it, variables) for name, it in value.items()}
        case list():
            return [_filled(it, variables) for it in value]
        case _:
            return value


def _chosen(document: Document, name: str | None) -> Operation:
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

    def calls(self, type_: str, selections: Sequence[Selected], depth: int = 0) -> list[Call]:
        found = []
        for field in self._flat(type_, selections, depth):
            if field.name == "__typename":
                found.append(Call(type_, field.name, field.alias, {}, (), None))
                continue
            known = self._known(type_, field)
            below = named(known.type)
            acting = below in ACTING
            found.append(
                Call(
                    type_,
                    field.name,
                    field.alias,
                    field.arguments,
                    self.calls(below, field.selections or [], depth + 1) if acting else (),
                    None if acting or is_leaf(below) else self._project(below, field.selections or [], depth),
                )
            )
        return found

    def _project(self, type_: str, selections: Sequence[Selected], depth: int) -> Project:
        getters = RESOLVERS.get(type_)
        shape: dict[str, Any] = {}  # every alias in its order, with what is the same for all
        picks: list[tuple[str, Project]] = []
        for field in self._flat(type_, selections, depth):
            shape[field.alias] = None
            if field.name == "__typename":
                shape[field.alias] = type_
                continue
            known = self._known(type_, field)
            get: Project = itemgetter(field.name) if getters is None else getters[field.name]
            if isinstance(get, Constant):
                shape[field.alias] = get.value
            elif is_leaf(known.type):
                picks.append((field.alias, get))
            else:
                below = self._project(named(known.type), field.selections or [], depth + 1)
                picks.append((field.alias, _nested(get, below, listed=known.type.startswith("["))))

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


def _nested(get: Project, below: Project, *, listed: bool) -> Project:
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
