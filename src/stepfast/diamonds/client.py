"""One question to Nivoda, one answer. Nothing is tried again here but a question whose token was no longer taken.

Connections belong to the event loop that opened them, and are closed with it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import msgspec

from stepfast.diamonds import query
from stepfast.diamonds.answers import Answer, BadAnswerError, RefusedError, read
from stepfast.diamonds.token import Session, Tokens, life_of
from stepfast.errors import AuthError, ConfigurationError, OutageError, PermanentError, ThrottledError
from stepfast.telemetry import happened

if TYPE_CHECKING:
    import httpx

    from stepfast.diamonds.adaptive import Pacing
    from stepfast.diamonds.settings import NivodaSettings, Style
    from stepfast.diamonds.token_rows import TokenRows

CONNECT: Final = 10.0  # seconds
MOST_CONNECTIONS: Final = 100
MOST_TOKENS: Final = 4  # answers to the last few may still be under way
LARGEST_ANSWER: Final = 64 * 1024 * 1024  # bytes; a page of fifty stones has a quarter of a million

Documents = Mapping["Style", str]


class Client:
    """Asks in the name of one account."""

    def __init__(
        self, settings: NivodaSettings, *, pacing: Pacing | None = None, rows: TokenRows | None = None
    ) -> None:
        self._settings = settings
        self._pacing = pacing
        self._shared = rows is not None
        self._tokens = Tokens(self._login, rows)
        self._keepers: WeakKeyDictionary[asyncio.AbstractEventLoop, _Keeper] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._shown: deque[str] = deque(maxlen=MOST_TOKENS)  # none of them is repeated to anybody

    async def ask(self, documents: Documents, **variables: Any) -> Answer:
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

    async def _ask_with(self, token: str, documents: Documents, variables: Mapping[str, Any]) -> Answer:
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

    async def _login(self) -> Session:
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
        return Session(token, life)

    async def _post(
        self, document: str, variables: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> Answer:
        body = msgspec.json.encode({"query": document, "variables": variables})
        if self._pacing is None:
            return await self._sent(body, headers)
        await self._pacing.admit()
        try:
            return await self._sent(body, headers)
        except ThrottledError as error:
            await self._pacing.throttled(error)
            raise

    async def _sent(self, body: bytes, headers: Mapping[str, str] | None) -> Answer:
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
            raise OutageError(f"Nivoda cannot be reached: {self._hidden(_words(error))}") from error
        except InvalidURL as error:
            raise PermanentError("NIVODA_URL is no address that can be asked") from error
        return read(response.status_code, response.headers, found, self._hidden)

    def _hidden(self, text: str) -> str:
        """A source may repeat what it was sent."""
        for secret in (*self._shown, *self._settings.secrets):
            text = text.replace(secret, "***")
        return text

    async def _client(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        with self._lock:
            keeper = self._keepers.get(loop)
            if keeper is None:
                keeper = self._keepers[loop] = _Keeper(self._settings)
        return await keeper.client()


class _Keeper:
    """Holds the connections of one event loop. A loop that ends closes its generators, and so this closes them."""

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


async def _body(response: httpx.Response) -> bytes:
    """All of it, unless it is far too much: then the rest is not even read."""
    parts, size = [], 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > LARGEST_ANSWER:
            raise BadAnswerError(
                f"Nivoda answered more than {LARGEST_ANSWER:,} bytes; nobody asked for so much"
            )
    return b"".join(parts)


def _new_client(settings: NivodaSettings) -> httpx.AsyncClient:
    try:
        import httpx
    except ImportError as missing:
        raise ConfigurationError(
            "the diamond catalogue needs an extra: pip install 'stepfast[diamonds]'"
        ) from missing
    seconds = settings.timeout.total_seconds()
    return httpx.AsyncClient(
        timeout=httpx.Timeout(seconds, connect=min(CONNECT, seconds)),
        limits=httpx.Limits(max_connections=MOST_CONNECTIONS, max_keepalive_connections=MOST_CONNECTIONS),
        headers={"accept": "application/json", "user-agent": "stepfast"},
    )


def _words(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()
