"""GraphQL documents, as far as clients of this API write them: operations, fields, arguments, variables, fragments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

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


class Word(str):
    """An enum value, which is not a text."""

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
    reader = Reader(text)
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
    "name": lambda it: {"true": True, "false": False, "null": None}.get(it, Word(it)),
}


class Reader:
    """One token ahead."""

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
