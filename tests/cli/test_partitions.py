"""`stepfast partitions`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support import rows
from tests.support.failing_runs import catalogue, failed_run, partition, run_steps
from tests.support.feeds import price_ranges

if TYPE_CHECKING:
    from stepfast import Stepfast
    from tests.support.command_line import Cli

FIRST, SECOND = (it.name for it in price_ranges(250, 500, 750)[:2])


def test_no_partitions_are_one_line(cli: Cli) -> None:
    assert cli("partitions", "list") == "no partitions\n"
    assert cli("partitions", "list", "--failed") == "no partitions failed\n"
    assert cli("partitions", "list", "--stuck") == "no partitions are stuck\n"
    assert "there is no run 'nosuch'" in cli("partitions", "list", "--run", "nosuch", code=1)


def test_failed_partitions_are_listed_with_their_errors(cli: Cli, app: Stepfast) -> None:
    shop = catalogue(app)
    run = failed_run(app, shop, SECOND)

    (found,) = cli.json("partitions", "list", "--failed")

    assert (found["run_id"], found["number"], found["name"], found["state"]) == (run.id, 1, SECOND, "failed")
    assert found["partition_id"] == "partition-1"
    assert found["last_error"] == f"PermanentError: {SECOND} cannot be read"
    text = cli("partitions", "list", "--run", "catalogue")
    assert [line.split()[0] for line in text.splitlines()] == [
        "partition",
        *(f"partition-{n}" for n in range(4)),
    ]
    assert f"PermanentError: {SECOND} cannot be read" in text


def test_stuck_partitions_are_those_that_nobody_reads(cli: Cli, app: Stepfast) -> None:
    catalogue(app)
    run = app.runs.start("catalogue")
    run_steps(app, 1)
    assert cli.json("partitions", "list", "--stuck") == []
    rows.change(app, "DELETE FROM stepfast_job WHERE id = :id", id=partition(app, run.id, 0)["job_id"])

    (found,) = cli.json("partitions", "list", "--run", run.id, "--stuck")

    assert (found["number"], found["name"], found["stuck"], found["job_state"]) == (0, FIRST, True, None)
    assert "stuck" in cli("partitions", "list", "--stuck")


def test_partitions_of_several_runs_name_theirs(cli: Cli, app: Stepfast) -> None:
    shop = catalogue(app)
    first = failed_run(app, shop, SECOND)
    second = failed_run(app, shop, SECOND)

    lines = cli("partitions", "list", "--failed").splitlines()

    assert [line.split()[0] for line in lines] == ["run", second.id, first.id]
