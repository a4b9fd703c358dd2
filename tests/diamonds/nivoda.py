"""A plain client of the simulated API: it sends any request and returns the raw answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import httpx

if TYPE_CHECKING:
    from stepfast_diamonds.simulator import Simulator

LOGIN = (
    "query($u: String!, $p: String!) "
    "{ authenticate { username_and_password(username: $u, password: $p) { token expires refresh_token } } }"
)
SEARCH = """
query($token: String!, $query: DiamondQuery, $offset: Int, $limit: Int, $order: DiamondOrder) {
  as(token: $token) {
    diamonds_by_query(query: $query, offset: $offset, limit: $limit, order: $order) {
      items {
        id price discount
        diamond {
          id availability eyeClean
          certificate { certNumber lab shape carats color clarity cut floInt girdle symmetry }
        }
      }
      total_count
    }
  }
}
"""
COUNT = "query($token: String!, $query: DiamondQuery) { as(token: $token) { diamonds_by_query_count(query: $query) } }"
BY_AGE = {"type": "createdAt", "direction": "ASC"}


class Client:
    """A client that logs in at the start, unless `login` is false."""

    def __init__(self, sim: Simulator, *, login: bool = True) -> None:
        self.sim = sim
        self.http = httpx.Client(timeout=10)
        self.token = self.login()["token"] if login else ""

    def post(self, text: str, headers: dict[str, str] | None = None, **variables: Any) -> httpx.Response:
        return self.http.post(self.sim.url, json={"query": text, "variables": variables}, headers=headers)

    def ask(self, text: str, **variables: Any) -> Any:
        """The whole JSON answer."""
        return self.post(text, **variables).json()

    def login(self) -> Any:
        answer = self.ask(LOGIN, u=self.sim.username, p=self.sim.password)
        return answer["data"]["authenticate"]["username_and_password"]

    def search(self, query: dict[str, Any] | None = None, **given: Any) -> Any:
        """`items` and `total_count`."""
        answer = self.ask(SEARCH, token=self.token, query=query, **given)
        assert "errors" not in answer, answer
        return answer["data"]["as"]["diamonds_by_query"]

    def ids(self, query: dict[str, Any] | None = None, **given: Any) -> list[str]:
        return [it["diamond"]["id"] for it in self.search(query, **given)["items"]]

    def count(self, query: dict[str, Any] | None = None) -> int:
        found: int = self.ask(COUNT, token=self.token, query=query)["data"]["as"]["diamonds_by_query_count"]
        return found

    def walk(self, query: dict[str, Any] | None = None, *, step: int = 50, by: str = "returned") -> list[str]:
        """Every id, page after page, until one is empty: on by what came, or by what was asked for."""
        found: list[str] = []
        offset = 0
        while ids := self.ids(query, offset=offset, limit=step, order=BY_AGE):
            found += ids
            offset += len(ids) if by == "returned" else step
        return found

    def walk_to(self, end: int) -> list[str]:
        """Every id of the pages before this offset."""
        return [it for offset in range(0, end, 50) for it in self.ids(offset=offset)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()
