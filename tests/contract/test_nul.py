from __future__ import annotations
from holdfast import Holdfast, Step, Retry
from tests import rows
from tests.contract.engine import drain, take, settle
import pytest
def test_view(app: Holdfast) -> None:
    @app.job()
    def work(text: str) -> None: ...
    work.enqueue(text="a\x00b")
    print(rows.query(app, "SELECT * FROM processing_jobs"))
def test_log(app: Holdfast) -> None:
    @app.job(retry=Retry(attempts=1))
    def work(step: Step, how: str) -> None:
        step.log("nul \x00 surrogate \udc80")
        step.progress(5, "nul \x00 surrogate \udc80")
        if how == "raise":
            raise ValueError("nul \x00 surrogate \udc80")
    jobs = [work.enqueue(how=how) for how in ("return","raise")]
    drain(app)
    print([rows.logs(app, j.id) for j in jobs])
    print([rows.ended(app, j.id)["last_error"] for j in jobs])
