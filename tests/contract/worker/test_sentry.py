"""Error trackers see a job that gave up, with the exception and its frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import sentry_sdk
from sentry_sdk.transport import Transport

from stepfast.testing import drain

if TYPE_CHECKING:
    from sentry_sdk.envelope import Envelope

    from stepfast import Stepfast


class Kept(Transport):
    """Sends nothing, and keeps everything."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        if (event := envelope.get_event()) is not None:
            self.events.append(dict(event))


@pytest.fixture
def tracker() -> Iterator[Kept]:
    kept = Kept()
    with sentry_sdk.isolation_scope():
        sentry_sdk.init(dsn="https://key@sentry.example/1", transport=kept, default_integrations=True)
        yield kept
        sentry_sdk.get_client().close()
        sentry_sdk.init()


@pytest.mark.only_on("sqlite")
def test_a_job_that_gave_up_is_an_event_with_its_traceback(app: Stepfast, tracker: Kept) -> None:
    @app.job(retry=1)
    def charge(order: str) -> None:
        raise LookupError(f"no card for {order}")

    charge.enqueue(order="A-17")

    drain(app, raise_errors=False)
    sentry_sdk.flush()

    (event,) = tracker.events
    (exception,) = event["exception"]["values"]
    assert (exception["type"], exception["value"]) == ("LookupError", "no card for A-17")
    assert exception["stacktrace"]["frames"][-1]["function"] == "charge"
    assert event["logger"] == "stepfast"
    assert event["extra"]["event"] == "job.died"
