"""An application whose isolated handler enqueues a job: in its process it uses the database of the worker."""

from __future__ import annotations

from stepfast import Stepfast

app = Stepfast("sqlite:////nowhere/at/all.db")


@app.job()
def send(parcel: str) -> str:
    return parcel


@app.job(isolation="process")
def pack(parcel: str) -> str:
    return send.enqueue(parcel=parcel).id
