"""An order that is paid, one that is not, and a callback that is called twice.

python -m examples.events_and_callbacks
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from typing import Any

from stepfast import Step, Stepfast, Wait
from stepfast.callbacks import asgi

os.environ.setdefault("STEPFAST_SECRET_KEY", "only for this example: 32 characters or more")
os.environ.setdefault("STEPFAST_CALLBACK_URL", "https://shop.example/callbacks")
app = Stepfast(f"sqlite:///{tempfile.mkdtemp()}/work.db")
addresses: list[str] = []


@app.job()
def deliver(step: Step, order: int, patience: str) -> Wait | str:
    """Ship the order when the event of the bank has come."""
    if step.number == 0:
        return Wait(f"payment:{order}", timeout=patience)
    return f"order {order} is shipped" if step.event else f"order {order} was never paid"


@app.job()
def approve(step: Step, document: str) -> Wait | str:
    """Ask a person, who answers by a callback that can be used once."""
    if step.number == 0:
        addresses.append(step.callback_url(expires="1h"))
        return Wait(timeout="1h", cursor=document)
    return f"{step.cursor} is approved by {step.event.payload['by']}" if step.event else "nobody answered"


async def post(url: str, body: bytes) -> int:
    """Call the ASGI application directly, without a web server."""
    status: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        status.extend([message["status"]] if "status" in message else [])

    await asgi(app)({"type": "http", "method": "POST", "path": url}, receive, send)
    return status[0]


def main() -> int:
    # The event comes before the job: it is kept until a job waits for it.
    print("kept:", app.events.send("payment:1", {"amount": 3}, id="bank-1").kept)
    print("sent twice:", app.events.send("payment:1", {"amount": 3}, id="bank-1").repeated)

    with app.worker():
        paid = deliver.enqueue(order=1, patience="1h")
        unpaid = deliver.enqueue(order=2, patience="300ms")
        answers = [str(job.wait(timeout="30s").result) for job in (paid, unpaid)]
        print("\n".join(answers))

        asked = approve.enqueue(document="contract.pdf")
        while not app.operator.waits():
            pass
        print("waits for:", app.operator.job(asked.id).waits_for)
        codes = [asyncio.run(post(addresses[0], b'{"by": "Ada"}')) for _ in range(2)]
        forged = asyncio.run(post(addresses[0] + "x", b"{}"))
        approved = asked.wait(timeout="30s").result
        print(f"{approved}; answered {codes}, and {forged} to a forged address")
    app.close()
    expected = ["order 1 is shipped", "order 2 was never paid", "contract.pdf is approved by Ada"]
    return 0 if [*answers, approved] == expected and (codes, forged) == ([200, 200], 404) else 1


if __name__ == "__main__":
    sys.exit(main())
