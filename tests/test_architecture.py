"""The code keeps its rules: what is public, which modules write, which words events and statements have.

Layers and cycles are import-linter's (`make layers`), types are mypy's and pyright's (`make types`).
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import stepfast
import stepfast_diamonds
import stepfast_emulators
from stepfast import applications, reports, tasks, testing, transports, webhooks
from stepfast.applications import commands
from stepfast.database.dialects import DIALECTS, Dialect
from stepfast.jobs.state import TRANSITIONS, JobState
from stepfast.suspects import READY_STATE
from stepfast.telemetry.events import EVENTS, STEP_FIELDS
from tests.support.public_modules import private_imports
from tests.support.statements import statements

SOURCE = Path(stepfast.__file__).parent
PACKAGES = [SOURCE, Path(stepfast_diamonds.__file__).parent, Path(stepfast_emulators.__file__).parent]
ROOT = Path(__file__).parents[1]
FILES = sorted(file for package in PACKAGES for file in package.rglob("*.py"))

# The rows were chosen and locked by the statement before it, or by its own inner SELECT.
LOCKED_BEFORE = {"worker.maintenance.PROMOTE_JOBS", "jobs.lease.PICK_JOBS", "jobs.lease.PICK_JOBS_FROM_HINT"}

PUBLIC = [
    "ArgumentsError",
    "AuthError",
    "Bounds",
    "Broker",
    "Choices",
    "Concurrency",
    "ConfigurationError",
    "Continue",
    "Cursor",
    "CursorExpiredError",
    "Dimension",
    "Done",
    "DuplicateKeyError",
    "Effect",
    "EnqueuedJob",
    "Event",
    "Feed",
    "Filter",
    "Fixed",
    "Heatmap",
    "HeldError",
    "Job",
    "JobCancelledError",
    "JobFailedError",
    "JobOutcome",
    "JobState",
    "KeyRanges",
    "Keyset",
    "LeaseLostError",
    "Offset",
    "OutageError",
    "Page",
    "PermanentError",
    "Range",
    "Rate",
    "Reject",
    "ResultExpiredError",
    "Retry",
    "SealedError",
    "Snooze",
    "Step",
    "StepCancelled",
    "Stepfast",
    "StepfastError",
    "Sweep",
    "ThrottledError",
    "TimeSlices",
    "Token",
    "Transaction",
    "TransientError",
    "Upsert",
    "Wait",
    "WaitTimeoutError",
    "Window",
    "effect",
    "sql",
    "with_retry",
]


def relative(path: Path) -> str:
    package = next(it for it in PACKAGES if path.is_relative_to(it))
    return str(path.relative_to(package if package == SOURCE else package.parent))


def test_the_public_names_are_these() -> None:
    assert sorted(stepfast.__all__) == PUBLIC
    assert all(hasattr(stepfast, name) for name in PUBLIC)


@pytest.mark.parametrize(
    "module",
    [applications, commands, reports, tasks, testing, transports, webhooks],
    ids=lambda it: it.__name__,
)
def test_the_names_for_applications_are_there(module: ModuleType) -> None:
    assert module.__all__ == sorted(module.__all__, key=_as_ruff_sorts)
    assert all(hasattr(module, name) for name in module.__all__)


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    """Constants, classes, functions."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


def test_applications_import_public_names_only() -> None:
    """Also for annotations, and inside functions."""
    assert _private_imports(Path(stepfast_diamonds.__file__).parent) == []


def test_examples_import_public_names_only() -> None:
    assert _private_imports(ROOT / "examples") == []


def _private_imports(folder: Path) -> list[str]:
    return [
        f"{path.relative_to(folder.parent)}: {module}"
        for path in sorted(folder.rglob("*.py"))
        for module in private_imports(path.read_text())
    ]


def test_transactions_are_opened_in_few_places_only() -> None:
    openers = {
        relative(path).split("/")[0].removesuffix(".py")
        for path in FILES
        if re.search(r"\b(database|_database)\.(transaction|reading)\(|\bpersist\(", path.read_text())
    }

    assert openers <= {
        "app",
        "applications",
        "group",
        "job",
        "worker",
        "admin",
        "results",
        "runs",
        "tasks",
        "transports",
        "cli",
        "database",
        "stepfast_diamonds",
    }


# The command line may name the states of jobs, and describe the error of an application that cannot be loaded.
KNOWN_TO_THE_COMMAND_LINE = {"stepfast.admin.operator", "stepfast.jobs.retry", "stepfast.jobs.state"}


def test_the_command_line_goes_through_the_operator() -> None:
    """So Python code can do whatever a command can. Types come from `stepfast.reports`."""
    behind = ("stepfast.admin", "stepfast.jobs", "stepfast.limits", "stepfast.outbox", "stepfast.runs")
    offenders = [
        f"{relative(path)}: {module}"
        for path in FILES
        if relative(path).startswith("cli/")
        for module in _imported_at_run_time(ast.parse(path.read_text()))
        if module.startswith(behind) and module not in KNOWN_TO_THE_COMMAND_LINE
    ]

    assert offenders == []


def _imported_at_run_time(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.Import(names=names):
                yield from (name.name for name in names)
            case ast.ImportFrom(module=str(module)):
                yield module
            case _:
                yield from _imported_at_run_time(child)


def test_reports_are_light_and_all_there() -> None:
    script = "import stepfast, sys; before = set(sys.modules); import stepfast.reports; print(set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)

    assert done.stdout.strip() == "{'stepfast.reports'}"
    assert [name for name in reports.__all__ if not hasattr(reports, name)] == []


def test_a_function_of_a_transaction_never_opens_another() -> None:
    offenders = []
    for path in FILES:
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef) and _takes_tx(function):
                offenders += [f"{relative(path)}:{function.name}" for it in ast.walk(function) if _opens(it)]

    assert offenders == []


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS.keys())
def test_every_statement_renders_for_every_dialect(dialect: Dialect) -> None:
    for name, statement in statements().items():
        text = statement.render(dialect)
        left = re.sub(r"'[^']*'", "", text)
        assert "{" not in left, f"{name} has a word left: {text}"
        if dialect.parameter != ":{}":
            assert not re.search(r"(?<![:\w]):[a-z_]+", left), f"{name} has a parameter left: {text}"


def test_no_value_is_ever_written_into_a_statement() -> None:
    """A statement is a constant: it is declared at the top of a module, not inside a function."""
    offenders = [
        f"{relative(path)}:{it.lineno}"
        for path in FILES
        if path.name != "migrate.py"  # builds its own from files
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for it in ast.walk(function)
        if isinstance(it, ast.Call) and isinstance(it.func, ast.Name) and it.func.id == "sql"
    ]

    assert offenders == []


@pytest.mark.parametrize("table", ["stepfast_job", "stepfast_worker", "stepfast_outbox"])
def test_a_statement_that_changes_a_state_says_from_which_or_shows_the_fence(table: str) -> None:
    offenders = []
    for name, statement in statements().items():
        for text in {statement.text, *statement.overrides.values()}:
            update = re.search(rf"UPDATE {table}\s+SET(.*?)\bWHERE\b(.*)", text, re.DOTALL)
            if update and re.search(r"\bstate\s*=", update[1]):
                guarded = re.search(r"\bstate (=|IN) |\bfence = :fence\b", update[2])
                if not guarded and name not in LOCKED_BEFORE:
                    offenders.append(name)

    assert offenders == []


def test_a_statement_that_makes_a_job_ready_lets_a_suspect_stay_one_or_clears_it() -> None:
    """A suspect that became `ready` would run among others, and might take them down with its worker."""
    offenders = []
    for name, statement in statements().items():
        for text in {statement.text, *statement.overrides.values()}:
            update = re.search(r"UPDATE stepfast_job\s+SET(.*?)\bWHERE\b", text, re.DOTALL)
            if update is None or not re.search(r"\bstate = (CASE [^,]*)?'ready'", update[1]):
                continue
            if READY_STATE not in update[1] and "error_group = NULL" not in update[1]:
                offenders.append(name)

    assert offenders == []


def test_whoever_takes_or_leaves_a_lease_writes_a_new_fence() -> None:
    """The fence alone says "leased by me", so it must change whenever the owner does."""
    offenders = []
    for name, statement in statements().items():
        for text in {statement.text, *statement.overrides.values()}:
            update = re.search(r"UPDATE stepfast_job\s+SET(.*?)\bWHERE\b", text, re.DOTALL)
            if update and re.search(r"\bowner\s*=", update[1]) and not re.search(r"\bfence\s*=", update[1]):
                offenders.append(name)

    assert offenders == []


def test_a_statement_that_speaks_for_an_owner_shows_the_fence() -> None:
    offenders = []
    for name, statement in statements().items():
        if name.startswith(("jobs.commit.", "jobs.step.", "jobs.manual_lease.EXTEND_LEASE")):
            for text in filter(None, (statement.text, *statement.overrides.values())):
                changes = re.search(r"(UPDATE|DELETE FROM) stepfast_job\b", text)
                if changes and "fence = :fence" not in text.rpartition("WHERE")[2]:
                    offenders.append(name)

    assert offenders == []


def test_every_state_has_its_arrows() -> None:
    assert set(TRANSITIONS) == set(JobState)
    assert {target for arrows in TRANSITIONS.values() for target in arrows} <= set(JobState)


def _reports() -> Iterator[tuple[str, ast.Call]]:
    """Every call of `happened`, and where it is; one of `when_committed` as if it were one, without its transaction."""
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                continue
            if node.func.id == "when_committed":
                node.args = node.args[1:]
            if node.func.id in {"happened", "when_committed"}:
                yield f"{relative(path)}:{node.lineno}", node


def test_every_event_is_in_the_list_with_its_fields() -> None:
    """An unknown name or field is found here, never in production."""
    offenders = []
    for place, call in _reports():
        name = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
        event = EVENTS.get(str(name))
        known = {*event.fields, *(STEP_FIELDS if event.about_step else ())} if event else set()
        if event is None or not {keyword.arg for keyword in call.keywords} <= known:  # None: **facts
            offenders.append(f"{place} {name!r}")

    assert offenders == []


def test_every_event_of_the_list_is_reported_somewhere() -> None:
    reported = {it.args[0].value for _, it in _reports() if isinstance(it.args[0], ast.Constant)}

    assert set(EVENTS) - reported == set()


def test_an_event_of_an_open_transaction_is_told_when_it_is_committed() -> None:
    """A function that takes a transaction does not know whether it will be committed."""
    at_once = {
        "duplicate.refused"
    }  # the call is refused by an exception, whatever becomes of the transaction
    offenders = [
        f"{relative(path)}:{call.lineno}"
        for path in FILES
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef) and any(it.arg == "tx" for it in function.args.args)
        for call in ast.walk(function)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "happened"
        and not (isinstance(call.args[0], ast.Constant) and call.args[0].value in at_once)
    ]

    assert offenders == []


def test_an_error_is_reported_as_it_is() -> None:
    """So that its type is kept apart from its message, and both are masked in one place."""
    offenders = [
        place
        for place, call in _reports()
        for keyword in call.keywords
        if keyword.arg == "error" and isinstance(keyword.value, ast.Call)
    ]

    assert offenders == []


def test_no_type_is_ignored() -> None:
    assert [relative(path) for path in FILES if "type: ignore" in path.read_text()] == []


def test_the_package_says_that_it_is_typed() -> None:
    assert all((package / "py.typed").exists() for package in PACKAGES)


@pytest.mark.parametrize("kind", ["unit", "contract"])
def test_folders_of_tests_are_those_of_the_source(kind: str) -> None:
    """A test of `stepfast/runs/paging` is under `tests/unit/runs/paging`, and nowhere else."""
    folder = ROOT / "tests" / kind
    folders = {it.relative_to(folder) for it in folder.rglob("*") if it.is_dir() and it.name != "__pycache__"}
    packages = {it.parent.relative_to(SOURCE) for it in SOURCE.rglob("__init__.py")} | {Path("emulators")}

    assert folders <= packages


def test_every_flaw_of_the_first_design_is_named_by_a_test() -> None:
    """F1 to F56 are what would have lost rows or left a run hanging; the docstring of a test says which it is about."""
    files = [it for it in (ROOT / "tests").rglob("test_*.py") if "node_modules" not in it.parts]
    named = {flaw for file in files for flaw in re.findall(r"\bF(\d+)\b", file.read_text())}

    assert [f"F{number}" for number in range(1, 57) if str(number) not in named] == []


def test_every_module_opens_with_its_idea() -> None:
    silent = [relative(path) for path in FILES if not ast.get_docstring(ast.parse(path.read_text()))]

    assert silent == []


def _takes_tx(function: ast.FunctionDef) -> bool:
    return bool(function.args.args) and function.args.args[0].arg == "tx"


def _opens(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and (
        (isinstance(node.func, ast.Attribute) and node.func.attr in {"transaction", "reading"})
        or (isinstance(node.func, ast.Name) and node.func.id == "persist")
    )
