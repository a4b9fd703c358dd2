"""Jobs in every state an operator may find them in."""

from __future__ import annotations

from stepfast import Done, Job, Stepfast
from stepfast.clock import new_fence
from stepfast.jobs.commit import commit
from stepfast.jobs.lease import Lease, claim
from stepfast.jobs.outcome import Bury, Ending
from tests.support.rows import HOUR, add_worker, change

Greeting = Job[..., None]


def greeting(app: Stepfast, *, name: str = "greet", queue: str = "default") -> Greeting:
    """Register a kind whose jobs are never run."""

    @app.job(name=name, queue=queue)
    def greet(name: str = "you") -> None:
        raise AssertionError(f"nobody should greet {name}")

    return greet


def leased(
    app: Stepfast, *, queue: str = "default", alive_for: int = HOUR, worker_id: str = "alice", limit: int = 1
) -> list[Lease]:
    """The next jobs of `queue`, held by a worker of another machine; with a negative `alive_for` a silent one."""
    owner = add_worker(app, new_fence(), worker_id=worker_id, alive_for=alive_for)
    with app.transaction() as tx:
        leases = claim(tx, queue, owner, limit)
    assert len(leases) == limit
    return leases


def ended(app: Stepfast, ending: Ending | None = None, *, queue: str = "default") -> str:
    """End the next job of `queue`: done, unless another ending is given."""
    (lease,) = leased(app, queue=queue)
    with app.transaction() as tx:
        commit(tx, lease, Done() if ending is None else ending)
    return lease.job_id


def died(app: Stepfast, job: Greeting, error: str = "OSError: no answer", *, key: str | None = None) -> str:
    """A new dead letter."""
    enqueued = job.enqueue(key=key, priority=100)  # before whatever else waits
    assert ended(app, Bury(error, error), queue=job.kind.queue) == enqueued.id
    return enqueued.id


def expire(app: Stepfast, lease: Lease) -> None:
    """Let the owner of this lease have been silent for too long."""
    assert (
        change(
            app,
            "UPDATE stepfast_worker SET alive_until = 1 WHERE incarnation = (SELECT owner FROM stepfast_job WHERE id = :id)",
            id=lease.job_id,
        )
        == 1
    )
