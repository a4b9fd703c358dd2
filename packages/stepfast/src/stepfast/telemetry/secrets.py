"""What looks like a secret: names of fields, and places in a text.

The time that a text takes here grows with its length, whatever stands in it: a message of a megabyte must not hold the
process up. So no part of a pattern can match the same characters in two ways, and what was looked at is not looked at
again. `tests/unit/test_patterns.py` measures it.
"""

from __future__ import annotations

import re
from typing import Any, Final

HIDDEN: Final = "***"

# Names

_WORDS: Final = (
    r"passwor[dt]|passwd|passphrase|pwd|secret(?!ar)|credential|private[_-]?key"
    r"|(?:api|account|access|secret|signing|encryption|shared|master)[_-]?key"
)
_FIELD: Final = re.compile(
    rf"{_WORDS}|token|jwt|(?:^|[^a-z])(?:pass|sig|signature|bearer)$|authorization|cookie", re.IGNORECASE
)


def is_secret_field(name: str, value: Any) -> bool:
    """Whether a field of this name holds a secret. Nothing, True, False, and a number of `tokens` are none."""
    if value is None or value == "" or isinstance(value, bool) or not _FIELD.search(name):
        return False
    return not (isinstance(value, int | float) and "tokens" in name.lower())


# Values behind a name: quoted, in brackets, or a word

_QUOTED: Final = re.compile(
    r"""(?:[bru]{1,2}(?=["']))?+"""  # b'…' and the like are Python's
    r"""(?:\\++"(?P<escaped2>[^"\n]*+)|\\++'(?P<escaped1>[^'\n]*+)"""  # a quotation inside a quotation
    r"""|"(?P<double>(?:[^"\\\n]++|\\.)*+)|'(?P<single>(?:[^'\\\n]++|\\.)*+))""",
    re.IGNORECASE,
)
_WORD: Final = re.compile(r"""[^\s,;&)\]}'"(]*+""")
_IN_BRACKETS: Final = re.compile(r""""(?:[^"\\\n]++|\\.)*+"?|'(?:[^'\\\n]++|\\.)*+'?|[(\[{]|[)\]}]|\n""")


def value_at(text: str, at: int, *, quotes: bool = False) -> tuple[int, int]:
    """Where the value that begins here begins and ends; with `quotes`, also those around it.

    A quotation ends with its quote, or else with its line. Brackets that are not closed end with the text.
    """
    if quoted := _QUOTED.match(text, at):
        name = quoted.lastgroup or ""
        begin, end = quoted.span(name)
        if name.startswith("escaped"):
            end = begin + len(quoted[name].rstrip("\\"))
        if quotes:
            begin, end = at, quoted.end() + (text[quoted.end() : quoted.end() + 1] in {'"', "'"})
        return begin, end
    if text[at : at + 1] in {"{", "["}:
        return at, _end_of_brackets(text, at)
    end = _word_end(text, at)
    return at, _end_of_brackets(text, end) if text[end : end + 1] == "(" else end


def _word_end(text: str, at: int) -> int:
    found = _WORD.match(text, at)
    return at if found is None else found.end()


def _end_of_brackets(text: str, at: int) -> int:
    """Where the bracket that opens here is closed. A round one ends with its line at the latest."""
    depth = 0
    for found in _IN_BRACKETS.finditer(text, at):
        match found[0]:
            case "(" | "[" | "{":
                depth += 1
            case ")" | "]" | "}":
                depth -= 1
                if depth == 0:
                    return found.end()
            case "\n" if text[at] == "(":
                return found.start()
    return len(text)


def hide_values(text: str, names: re.Pattern[str]) -> str:
    """The text without the values behind these names; `names` matches a name and the sign behind it."""
    parts: list[str] = []
    done = 0
    while found := names.search(text, done):
        begin, end = value_at(text, found.end(), quotes=True)
        if end > begin:
            parts += [text[done:begin], HIDDEN]
        done = max(end, found.end())
    return "".join((*parts, text[done:])) if parts else text


# Places in a text

# A text without any of these, in lower case, needs no further look.
_SIGNS: Final = (
    "pass", "pwd", "secret", "credential", "key", "token", "sig", "bearer", "authorization", "cookie", "eyj",
    "whsec_", "sk_", "rk_live_", "gh", "github_pat_", "glpat-", "xox", "akia", "asia", "aiza", "npm_", "pypi-",
    "slack.com", "discord", "telegram", "office.com",
)  # fmt: skip
_IS: Final = r"""\\?+["']?+\s{0,5}+(?::=|=>|==|[=:])\s{0,5}+"""
_PLACE: Final = re.compile(
    rf"""(?P<named>(?:(?:{_WORDS})s?+|token|(?<![a-z0-9])(?:pass|sig|signature|bearer|jwt))\d{{0,3}}+{_IS})"""
    rf"""|(?P<header>(?<![a-z])(?:authorization|cookies?+){_IS})"""
    r"""|(?P<bearer>(?<![a-z])bearer\s{1,5}+)(?=[\w.~+/=-]{4})"""
    # Words by which others, and we, mark a secret
    r"""|(?P<marked>(?<![a-z0-9])(?:whsec_|sk_(?:live|test)_|rk_live_|gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|npm_|pypi-"""
    r"""|A[KS]IA|AIza))(?=[\w+/=-]{6})"""
    r"""|(?P<jwt>(?<![\w-])eyJ)(?=[\w-]{8,}+\.[\w-]{4})"""
    # Addresses whose path is the secret
    r"""|(?P<path>(?:hooks\.slack\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/webhooks"""
    r"""|webhook\.office\.com)/|api\.telegram\.org/bot)"""
    r"""|(?P<pem>-----BEGIN[ A-Z]{0,30}PRIVATE KEY-----)""",
    re.IGNORECASE,
)
_SCHEME: Final = re.compile(r"(?:basic|bearer|token|apikey|negotiate)\s{1,5}+", re.IGNORECASE)
_ENDS: Final = {
    "bearer": re.compile(r"[\w.~+/=-]*+"),
    "marked": re.compile(r"[\w+/=-]*+"),
    "jwt": re.compile(r"[\w-]*+\.[\w-]*+(?:\.[\w-]*+)?"),
    "path": re.compile(r"""[^\s"'<>?#]*+"""),
}
_LINE: Final = re.compile(r"""[^\n]*+""")
_END_OF_KEY: Final = "-----END"


def hide_secrets(text: str) -> str:
    """The text without what looks like a secret: behind a name, in an address, or by its own shape."""
    if "://" in text and "@" in text:
        text = _hide_logins(text)
    lower = text.lower()
    if not any(sign in lower for sign in _SIGNS):
        return text
    parts: list[str] = []
    done = 0
    while found := _PLACE.search(text, done):
        begin, end = _span(text, found)
        if end > begin:
            parts += [text[done:begin], HIDDEN]
        done = max(end, found.end())
    return "".join((*parts, text[done:])) if parts else text


def _span(text: str, found: re.Match[str]) -> tuple[int, int]:
    """What is hidden behind a place."""
    name, at = found.lastgroup or "", found.end()
    if name == "named":
        return value_at(text, at)
    if name == "header":
        return _header_at(text, found)
    if name == "pem":
        end = text.find(_END_OF_KEY, at)
        return at, len(text) if end < 0 else end
    return at, _end(_ENDS[name], text, at)


def _header_at(text: str, found: re.Match[str]) -> tuple[int, int]:
    """The value of a header: quoted, in brackets, or up to the end of its line. The word that names the way to sign in stays."""
    at = found.end()
    delimited = text[at : at + 1] in {'"', "'", "\\", "{", "["}
    begin, end = value_at(text, at) if delimited else (at, at)
    if scheme := _SCHEME.match(text, begin):
        begin = scheme.end()
        return begin, end if delimited else _word_end(text, begin)
    if delimited:
        return begin, end
    return begin, _end(_LINE, text, at) if ":" in found[0] else _word_end(text, at)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return at if found is None else found.end()


# Logins in addresses

_ADDRESS: Final = re.compile(r"""[^\s"'<>]*+""")
_USER: Final = re.compile(r"[^:/?#@]*+")
_PORT: Final = re.compile(r"\d{1,5}+(?=[/?#])")
_WEB: Final = ("http", "https")
SHORTEST_TOKEN: Final = 16  # characters of a user that may be a token


def _hide_logins(text: str) -> str:
    """The text without passwords in addresses, up to the last @: a password may hold one. On the web a user alone is a token."""
    parts: list[str] = []
    done = at = end = last = 0
    while (found := text.find("://", at)) >= 0:
        at = found + 3
        if at > end:
            end = _end(_ADDRESS, text, at)
            last = text.rfind("@", at, end)
        if at > last:  # no @ behind this one, and so behind no other of this address
            at = max(at, end)
            continue
        begin, user_end = at, _end(_USER, text, at)
        is_web = text[max(0, found - 5) : found].lower().endswith(_WEB)
        match text[user_end : user_end + 1]:
            case ":" if not (is_web and _PORT.match(text, user_end + 1)):
                is_token = is_web and user_end - begin >= SHORTEST_TOKEN
                begin, at = begin if is_token else user_end + 1, last
            case "@" if is_web:
                at = user_end
            case _:  # what holds the @ is a path or a query, where another address may stand; or there is no password
                at = user_end
                continue
        parts += [text[done:begin], HIDDEN]
        done = at
    return "".join((*parts, text[done:])) if parts else text
