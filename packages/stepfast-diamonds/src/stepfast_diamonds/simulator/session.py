"""Sessions of clients: logins, tokens that look like JWTs, their expiry and their revocation."""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from stepfast_diamonds.simulator.faults import Knobs


USERNAME: Final = "demo@example.com"
PASSWORD: Final = "diamonds-are-simulated"  # noqa: S105 - opens nothing but a simulator
MINUTE: Final = 60.0


class RefusedError(Exception):
    """Not let in. Clients know these sentences by their words only, there is no code for them."""


class Sessions:
    """Tokens are checked by their signature; only what was revoked is remembered."""

    def __init__(self, seed: int, accounts: dict[str, str] | None = None) -> None:
        self._secret = hashlib.sha256(f"simulator {seed}".encode()).digest()
        self.accounts = accounts or {USERNAME: PASSWORD}
        self.logins = 0
        self._recent: list[float] = []
        self._revoked_before = 0  # number of a login
        self._known: dict[str, dict[str, Any]] = {}

    def login(self, username: str, password: str, now: int, seconds: float, knobs: Knobs) -> dict[str, Any]:
        """`now` is the source's clock, `seconds` the one that rates are measured with."""
        self._admit(seconds, knobs)
        known = self.accounts.get(username)
        right = hmac.compare_digest((known or "").encode(), password.encode())
        if known is None or not right:
            raise RefusedError("Unauthorized: invalid username or password")
        return self._open(username, now, knobs)

    def refresh(self, token: str, now: int, seconds: float, knobs: Knobs) -> dict[str, Any]:
        self._admit(seconds, knobs)
        return self._open(self._read(token, "refresh")["sub"], now, knobs)

    def account(self, token: str | None, now: int) -> str:
        """Whose token this is."""
        if not token:
            raise RefusedError("Authentication required")
        claims = self._read(token, "access")
        if claims["exp"] * 1_000_000 <= now:
            raise RefusedError("Token expired")
        return str(claims["sub"])

    def revoke_all(self) -> None:
        """Every token that was given out until now is worth nothing."""
        self._revoked_before = self.logins

    def _admit(self, seconds: float, knobs: Knobs) -> None:
        self._recent = [it for it in self._recent if it > seconds - MINUTE]
        if knobs.logins_per_minute and len(self._recent) >= knobs.logins_per_minute:
            raise RefusedError("Too many login attempts, please try again later")
        self._recent.append(seconds)

    def _open(self, username: str, now: int, knobs: Knobs) -> dict[str, Any]:
        self.logins += 1
        issued = now / 1_000_000
        expires = issued + knobs.token_lifetime_s
        token = self._sign(
            {"sub": username, "use": "access", "iat": issued, "exp": expires, "n": self.logins}
        )
        return {
            "token": token,
            "expires": expires * 1_000 if knobs.expires_unit == "ms" else expires,
            "refresh_token": self._sign({"sub": username, "use": "refresh", "iat": issued, "n": self.logins}),
            "user": {
                "id": f"USER/{username}",
                "firstName": "Demo",
                "lastName": "Customer",
                "email": username,
            },
        }

    def _sign(self, claims: dict[str, Any]) -> str:
        head, body = (_encode(msgspec.json.encode(it)) for it in ({"alg": "HS256", "typ": "JWT"}, claims))
        signature = hmac.new(self._secret, f"{head}.{body}".encode(), hashlib.sha256).digest()
        return f"{head}.{body}.{_encode(signature)}"

    def _read(self, token: str, use: str) -> dict[str, Any]:
        claims = self._known.get(token)
        if claims is None:
            claims = self._verified(token)
            if len(self._known) > 1_000:  # noqa: PLR2004 - far more than anybody has
                self._known.clear()
            self._known[token] = claims
        if claims["use"] != use or claims["n"] <= self._revoked_before:
            raise RefusedError("Invalid token")
        return claims

    def _verified(self, token: str) -> dict[str, Any]:
        try:
            head, body, signature = token.split(".")
            right = hmac.new(self._secret, f"{head}.{body}".encode(), hashlib.sha256).digest()
            if not hmac.compare_digest(_encode(right), signature):
                raise RefusedError("Invalid token")
            claims: dict[str, Any] = msgspec.json.decode(_decode(body))
        except ValueError:
            raise RefusedError("Invalid token") from None
        return claims


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


# How many requests are too many: a bucket for each account and each address, and a wall for those who push.


@dataclass
class Bucket:
    """Tokens that come back at a steady rate."""

    tokens: float
    at: float

    def take(self, now: float, rate: float, burst: float) -> float:
        """0 if there was a token, else the seconds until there is one."""
        self.tokens = min(burst, self.tokens + (now - self.at) * rate)
        self.at = now
        if self.tokens >= 1:
            self.tokens -= 1
            return 0.0
        return (1 - self.tokens) / rate


class Throttle:
    """Admits a request, or says for how long not."""

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}
        self._walls: dict[str, float] = {}
        self._under_way: dict[str, int] = {}

    def wall(self, address: str, now: float) -> float:
        """Seconds for which the firewall refuses this address."""
        return max(0.0, self._walls.get(address, 0.0) - now)

    def admit(self, names: list[str], address: str, now: float, knobs: Knobs) -> float:
        """0, or the seconds to wait. An address that the firewall refused is refused for a while in any case."""
        wait = 0.0
        if knobs.requests_per_s:
            for name in names:
                bucket = self._buckets.setdefault(name, Bucket(knobs.burst, now))
                wait = max(wait, bucket.take(now, knobs.requests_per_s, knobs.burst))
        return self._refused(address, wait, now, knobs) if wait else 0.0

    def enter(self, name: str, address: str, now: float, knobs: Knobs) -> float:
        """One more request is under way for this account; 0, or the seconds to wait."""
        if knobs.concurrency and self._under_way.get(name, 0) >= knobs.concurrency:
            return self._refused(address, 1.0, now, knobs)
        self._under_way[name] = self._under_way.get(name, 0) + 1
        return 0.0

    def leave(self, name: str) -> None:
        self._under_way[name] -= 1

    def _refused(self, address: str, wait: float, now: float, knobs: Knobs) -> float:
        if knobs.limit_answer == "waf":
            self._walls[address] = now + knobs.cool_down_s
            return knobs.cool_down_s
        return wait
