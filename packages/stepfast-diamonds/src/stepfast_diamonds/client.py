"""Requests to Nivoda, and what its answers mean. Nothing is retried here but a request whose token was refused.

Connections belong to the event loop that opened them, and are closed with it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn
from weakref import WeakKeyDictionary

import msgspec

from stepfast.applications import happened
from stepfast.errors import (
    AuthError,
    ConfigurationError,
    OutageError,
    PermanentError,
    ThrottledError,
    install_hint,
)
from stepfast_diamonds import query
from stepfast_diamonds.token import LoginSession, Tokens, life_of

if TYPE_CHECKING:
    import httpx

    from stepfast_diamonds.pace import PaceKeeper
    from stepfast_diamonds.settings import NivodaSettings, Style
    from stepfast_diamonds.token import TokenRows


CONNECT_SECONDS: Final = 10.0  # seconds
MOST_CONNECTIONS: Final = 100
MOST_TOKENS: Final = 4  # answers to the last few may still be under way
LARGEST_ANSWER: Final = 64 * 1024 * 1024  # bytes; a page of fifty stones has a quarter of a million
Documents = Mapping["Style", str]


class Client:
    """Sends requests with the token of one account."""

    def __init__(
        self, settings: NivodaSettings, *, pacing: PaceKeeper | None = None, rows: TokenRows | None = None
    ) -> None:
        self._settings = settings
        self._pacing = pacing
        self._shared = rows is not None
        self._tokens = Tokens(self._login, rows)
        self._keepers: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopConnections] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._shown: deque[str] = deque(maxlen=MOST_TOKENS)  # hidden in errors

    async def ask(self, documents: Documents, **variables: Any) -> NivodaAnswer:
        """Ask with a token; once more with a new one, if that one is no longer taken."""
        token = await self._tokens.get()
        try:
            return await self._ask_with(token, documents, variables)
        except RefusedError:
            token = await self._tokens.get(refused=token)
        try:
            return await self._ask_with(token, documents, variables)
        except RefusedError as error:
            raise AuthError(f"Nivoda does not take a token that it has just given: {error}") from error

    async def _ask_with(self, token: str, documents: Documents, variables: Mapping[str, Any]) -> NivodaAnswer:
        style = self._settings.auth
        if token not in self._shown:
            self._shown.append(token)
        if style == "bearer":
            return await self._post(documents[style], variables, {"authorization": f"Bearer {token}"})
        answer = await self._post(documents[style], {**variables, "token": token})
        inner = None if answer.data is None else answer.data.get("as")
        if not isinstance(inner, dict | None):
            raise BadAnswerError(f"Nivoda answered `as` with {type(inner).__name__} instead of an object")
        return replace(answer, data=inner)

    async def _login(self) -> LoginSession:
        username, password = self._settings.credentials
        try:
            answer = await self._post(query.LOGIN, {"username": username, "password": password})
        except RefusedError as error:
            raise AuthError(
                f"Nivoda does not let us in: {error}; check NIVODA_USERNAME and NIVODA_PASSWORD"
            ) from error
        given = answer.field("authenticate")
        session = given.get("username_and_password") if isinstance(given, dict) else None
        token = session.get("token") if isinstance(session, dict) else None
        if not isinstance(session, dict) or not isinstance(token, str) or not token:
            raise BadAnswerError("Nivoda answered a login without a token")
        life = life_of(token, session.get("expires"), answer.date)
        happened("token.renewed", source="nivoda", expires_in_s=life.total_seconds(), shared=self._shared)
        return LoginSession(token, life)

    async def _post(
        self, document: str, variables: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> NivodaAnswer:
        body = msgspec.json.encode({"query": document, "variables": variables})
        if self._pacing is None:
            return await self._sent(body, headers)
        await self._pacing.admit()
        try:
            return await self._sent(body, headers)
        except ThrottledError as error:
            await self._pacing.throttled(error)
            raise

    async def _sent(self, body: bytes, headers: Mapping[str, str] | None) -> NivodaAnswer:
        client = await self._client()
        from httpx import HTTPError, InvalidURL

        seconds = self._settings.timeout.total_seconds()
        given = {"content-type": "application/json", **(headers or {})}
        try:
            async with (
                asyncio.timeout(seconds),
                client.stream("POST", self._settings.url, content=body, headers=given) as response,
            ):
                found = await _body(response)
        except TimeoutError as error:
            raise OutageError(f"Nivoda did not answer within {seconds:g} s") from error
        except HTTPError as error:
            raise OutageError(f"Nivoda cannot be reached: {self._hidden(_error_text(error))}") from error
        except InvalidURL as error:
            raise PermanentError("NIVODA_URL is no address that can be asked") from error
        return read_answer(response.status_code, response.headers, found, self._hidden)

    def _hidden(self, text: str) -> str:
        """The text without secrets: a source may repeat what it was sent."""
        for secret in (*self._shown, *self._settings.secrets):
            text = text.replace(secret, "***")
        return text

    async def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        with self._lock:
            keeper = self._keepers.get(loop)
            if keeper is None:
                keeper = self._keepers[loop] = _LoopConnections(self._settings)
        return await keeper.client()


class _LoopConnections:
    """The connections of one event loop. A loop that ends closes its generators, and this one closes them."""

    def __init__(self, settings: NivodaSettings) -> None:
        self._client = _new_client(settings)
        self._generator = _until_the_loop_ends(self._client)
        self._begun = False

    async def client(self) -> httpx.AsyncClient:
        if not self._begun:
            self._begun = True
            await anext(self._generator)
        return self._client


async def _until_the_loop_ends(client: httpx.AsyncClient) -> AsyncGenerator[None, None]:
    try:
        yield
    finally:
        await client.aclose()


def _new_client(settings: NivodaSettings) -> httpx.AsyncClient:
    try:
        import httpx
    except ImportError as missing:
        raise ConfigurationError(
            f"the diamond catalogue needs a package: {install_hint(package='stepfast-diamonds')}"
        ) from missing
    seconds = settings.timeout.total_seconds()
    return httpx.AsyncClient(
        timeout=httpx.Timeout(seconds, connect=min(CONNECT_SECONDS, seconds)),
        limits=httpx.Limits(max_connections=MOST_CONNECTIONS, max_keepalive_connections=MOST_CONNECTIONS),
        headers={"accept": "application/json", "user-agent": "stepfast"},
    )


async def _body(response: httpx.Response) -> bytes:
    """The body of a response, unless it is far too long: then the rest is not even read."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > LARGEST_ANSWER:
            raise BadAnswerError(
                f"Nivoda answered more than {LARGEST_ANSWER:,} bytes; nobody asked for so much"
            )
    return b"".join(parts)


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()


# What an answer of Nivoda means: data, or an error of the class that says what to do about it. Pure.
#
# | it answered | it means | raised |
# |---|---|---|
# | 429, "too many"; 403 or 503 that names a time; 403 with a page of the firewall | fewer requests | ThrottledError |
# | 5xx, 408, 425; HTML instead of JSON; `errors` and no data | it is away | OutageError |
# | 401, 403 in JSON, or an error that speaks of tokens | the token is not taken | RefusedError: one login, then AuthError |
# | 400, or an error about the document | its schema has changed | PermanentError |
# | JSON that ends in the middle, other types than the schema says | nonsense | BadAnswerError: an attempt is spent |

OK: Final = 200
REDIRECTS: Final = range(300, 400)
BAD_DOCUMENT: Final = (400, 422)
UNAUTHENTICATED: Final = 401
FORBIDDEN: Final = 403
TOO_MANY: Final = 429
AWAY: Final = (408, 425)
SERVER_ERRORS: Final = range(500, 600)
TRY_LATER: Final = 503
FIREWALL: Final = timedelta(seconds=60)  # for which it lets no request through, if it does not say
LOGINS: Final = timedelta(seconds=60)  # after too many of them
LONGEST_QUOTE: Final = 200
DEEPEST_REFUSAL: Final = 2  # as, and the root field: what is deeper is about single stones
# A code says more than words; words are all that is known of some errors.
REFUSED_CODES: Final = ("UNAUTHENTICATED", "FORBIDDEN")
REFUSED_WORDS: Final = (
    "unauthorized", "unauthorised", "invalid token", "token expired", "authentication required", "not authenticated",
    "jwt",
)  # fmt: skip
THROTTLED_CODES: Final = ("RATE_LIMITED", "TOO_MANY_REQUESTS", "THROTTLED")
THROTTLED_WORDS: Final = ("too many", "rate limit")
DOCUMENT_CODES: Final = ("GRAPHQL_VALIDATION_FAILED", "GRAPHQL_PARSE_FAILED", "BAD_USER_INPUT", "BAD_REQUEST")
DOCUMENT_WORDS: Final = ("cannot query field", "unknown argument", "unknown type", "is not defined by type")
MISSING_WORDS: Final = ("not found", "does not exist")
HideSecrets = Callable[[str], str]


class RefusedError(Exception):
    """The source does not take this token, or these credentials."""


class BadAnswerError(ValueError):
    """Nivoda answered something that cannot be right. The page is asked for again, a few times."""


@dataclass(frozen=True)
class AnswerProblem:
    """One of the `errors` in an answer."""

    message: str
    code: str | None
    path: tuple[str | int, ...]

    def says(self, codes: tuple[str, ...], words: tuple[str, ...]) -> bool:
        return self.code in codes or any(it in self.message.lower() for it in words)

    @property
    def is_missing(self) -> bool:
        """Whether a stone that was asked for by its id is not there."""
        return self.says((), MISSING_WORDS)


@dataclass(frozen=True)
class NivodaAnswer:
    """Data, and those `errors` that leave data to look at."""

    data: Mapping[str, Any] | None
    problems: tuple[AnswerProblem, ...]
    date: datetime | None  # by the source's clock

    def field(self, name: str) -> Any:
        """The value of a root field; raises if it is not there."""
        value = None if self.data is None else self.data.get(name)
        if value is None:
            self.fail(name)
        return value

    def fail(self, name: str) -> NoReturn:
        """Raise the error of an answer without data."""
        if not self.problems:
            raise BadAnswerError(f"Nivoda answered without {name}")
        first = self.problems[0]
        if first.says(DOCUMENT_CODES, DOCUMENT_WORDS):
            raise changed_schema(first.message)
        raise OutageError(f"Nivoda failed to answer: {first.message}")


def read_answer(
    status: int, headers: Mapping[str, str], body: bytes, hide: HideSecrets = str
) -> NivodaAnswer:
    """The answer in a response, or the error that it is. `hide` takes secrets out of the source's messages."""
    wait = retry_after(headers)
    if status == OK:
        return _read_data(body, headers, hide)
    if status == TOO_MANY or (status in {FORBIDDEN, TRY_LATER} and wait is not None):
        raise ThrottledError(f"Nivoda answered {status}: it wants fewer requests", retry_after=wait)
    said = _first_problem(body, hide) if status in {UNAUTHENTICATED, FORBIDDEN} else None
    if status == UNAUTHENTICATED or said is not None:
        raise RefusedError(said or f"Nivoda answered {status}")
    if status == FORBIDDEN:  # the API itself would say in JSON what it does not like
        raise ThrottledError("Nivoda's firewall answered 403: too many requests", retry_after=FIREWALL)
    if status in AWAY or status in SERVER_ERRORS:
        raise OutageError(f"Nivoda answered {status}", delay=wait)
    if status in BAD_DOCUMENT:
        said = _first_problem(body, hide)
        raise (
            changed_schema(said) if said else BadAnswerError(f"Nivoda answered {status} and does not say why")
        )
    what = "leads elsewhere" if status in REDIRECTS else "is not the API"
    raise PermanentError(f"Nivoda answered {status}: the address {what}; check NIVODA_URL")


def _read_data(body: bytes, headers: Mapping[str, str], hide: HideSecrets) -> NivodaAnswer:
    if _is_html(body):
        raise OutageError("Nivoda answered with a page of HTML: something stands in front of it")
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise BadAnswerError(f"Nivoda's answer of {len(body):,} bytes is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadAnswerError(f"Nivoda answered JSON that is no object but {type(found).__name__}")
    data, problems = found.get("data"), _problems(found.get("errors"), hide)
    if not isinstance(data, dict | None):
        raise BadAnswerError(f"Nivoda answered data that are no object but {type(data).__name__}")
    for it in problems:
        if len(it.path) > DEEPEST_REFUSAL:
            continue
        if it.says(THROTTLED_CODES, THROTTLED_WORDS):
            raise ThrottledError(f"Nivoda wants fewer requests: {it.message}", retry_after=LOGINS)
        if it.says(REFUSED_CODES, REFUSED_WORDS):
            raise RefusedError(it.message)
    return NivodaAnswer(data, problems, date_of(headers))


def _problems(given: Any, hide: HideSecrets) -> tuple[AnswerProblem, ...]:
    if given is None:
        return ()
    if not isinstance(given, list):
        raise BadAnswerError(f"Nivoda answered errors that are no list but {type(given).__name__}")
    return tuple(_problem(it, hide) for it in given)


def _problem(given: Any, hide: HideSecrets) -> AnswerProblem:
    told = given if isinstance(given, dict) else {}
    extensions, path = told.get("extensions"), told.get("path")
    code = extensions.get("code") if isinstance(extensions, dict) else None
    message = hide(str(told.get("message") or "an error without a message"))[:LONGEST_QUOTE]
    places = tuple(it for it in path if isinstance(it, str | int)) if isinstance(path, list) else ()
    return AnswerProblem(message, code if isinstance(code, str) else None, places)


def _first_problem(body: bytes, hide: HideSecrets) -> str | None:
    """The first error message of an answer without data."""
    try:
        found = msgspec.json.decode(body)
        problems = _problems(found.get("errors"), hide)
    except (msgspec.DecodeError, BadAnswerError, AttributeError):
        return None
    return problems[0].message if problems else None


def changed_schema(said: str) -> PermanentError:
    return PermanentError(f"Nivoda no longer understands what it is asked; its schema has changed: {said}")


def retry_after(headers: Mapping[str, str]) -> timedelta | None:
    """The wait that a response asks for, in seconds or as a date by the source's clock."""
    text = headers.get("retry-after", "").strip()
    try:
        return max(timedelta(0), timedelta(seconds=float(text))) if text else None
    except (ValueError, OverflowError):
        at, shown = _date(text), date_of(headers)
    return None if at is None or shown is None else max(timedelta(0), at - shown)


def date_of(headers: Mapping[str, str]) -> datetime | None:
    """The source's clock, without fractions of a second."""
    return _date(headers.get("date", ""))


def _date(text: str) -> datetime | None:
    try:
        at = parsedate_to_datetime(text)
    except (TypeError, ValueError):
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


def _is_html(body: bytes) -> bool:
    return body[:200].lstrip().startswith(b"<")
