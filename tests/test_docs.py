"""The documentation is true: its code runs, its links lead somewhere, and nothing that exists is left out."""

from __future__ import annotations

import ast
import logging
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import stepfast
from devtools import architecture, cli_reference
from stepfast import Step, Stepfast, Transaction, applications, errors, reports, telemetry, testing
from stepfast.admin.operator import Operator
from stepfast.applications import commands
from stepfast.config import WorkerSettings
from stepfast.job import OPTIONS
from stepfast.jobs.state import JobState
from stepfast.runs.feed import Feed
from tests.support.markdown import PAGES, REPOSITORY, ROOT, anchors, blocks, links, named, prose
from tests.support.public_modules import DOCUMENTED, private_imports

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = [page for page in PAGES if page.is_relative_to(ROOT / "docs")]
HOWTOS = [page for page in DOCS if page.parent.name == "howto"]
REFERENCE = ROOT / "docs" / "reference"
WITH_CODE = [page for page in PAGES if any("fragment" not in it.words for it in blocks(page, "python"))]
SOURCES = sorted((ROOT / "packages" / "stepfast").rglob("*.py"))

# Nobody can keep these, or nobody has measured them.
NEVER_SAID = ("exactly-once execution", "exactly once execution", "fastest", "blazing", "the only library")
# Where the words are named in order to refuse them.
REFUSALS = {"docs/decisions/0004-what-we-promise.md"}


# The code


@pytest.mark.parametrize("page", WITH_CODE, ids=named)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    script: list[str] = []
    for block in blocks(page, "python"):
        if block.file:
            (tmp_path / block.file).write_text(block.text)
        elif "fragment" not in block.words:
            script.append("\n" * (block.line - 1 - sum(it.count("\n") for it in script)) + block.text)

    done = subprocess.run(
        [sys.executable, "-"],
        input="".join(script),
        cwd=tmp_path,
        env=_surroundings(),
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, f"{named(page)}:\n{done.stderr}"


def _surroundings() -> dict[str, str]:
    """A reader's shell: the programs of this environment, and no database chosen yet."""
    programs = str(Path(sys.executable).parent)
    chosen = {name: value for name, value in os.environ.items() if not name.startswith("STEPFAST_")}
    return chosen | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_of_python_is_python(page: Path) -> None:
    for block in blocks(page, "python"):
        ast.parse(block.text, f"{named(page)}:{block.line}")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_code_of_a_page_imports_public_modules_only(page: Path) -> None:
    for block in blocks(page, "python"):
        private = private_imports(block.text, DOCUMENTED)
        assert private == [], f"{named(page)}:{block.line} imports {private}, which users must not rely on"


def test_the_quickstart_is_the_example() -> None:
    (block,) = (it for it in blocks(ROOT / "README.md", "python") if it.file == "quickstart.py")

    assert block.text == (ROOT / "examples" / "quickstart.py").read_text()


# The pages


@pytest.mark.parametrize("page", DOCS, ids=named)
def test_a_page_says_for_whom_it_is(page: Path) -> None:
    title, first, *_ = [line for line in page.read_text().splitlines() if line]

    assert title.startswith("# ")
    assert first.startswith("For "), f"{named(page)} begins with: {first}"


@pytest.mark.parametrize("page", HOWTOS, ids=named)
def test_a_howto_ends_with_how_to_see_that_it_worked(page: Path) -> None:
    headings = [line for line in prose(page).splitlines() if line.startswith("## ")]

    assert headings[-1] == "## See that it worked"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    for link in links(page):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{named(page)} links to {link}, which is not there"
        assert target.is_relative_to(ROOT), f"{named(page)} links out of the repository: {link}"
        if anchor:
            assert anchor in anchors(target), f"{named(page)} links to {link}; there are {anchors(target)}"


def test_every_page_can_be_reached_from_the_index_or_the_readme() -> None:
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in links(page)}

    decisions = set((ROOT / "docs" / "decisions").glob("*.md"))  # numbered: who finds one finds all

    assert [named(it) for it in PAGES if it not in linked | decisions and it != ROOT / "README.md"] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_nothing_is_claimed_that_nobody_can_keep(page: Path) -> None:
    if named(page) not in REFUSALS:
        text = page.read_text().lower()
        assert [words for words in NEVER_SAID if words in text] == []


def test_the_readme_is_complete_on_pypi() -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(ROOT / "README.md")):
        assert link.startswith("https://"), f"README.md is also shown on PyPI: {link} leads nowhere there"


def test_every_promise_of_the_readme_names_its_proof() -> None:
    text = (ROOT / "README.md").read_text()
    section = text.partition("## What we promise\n")[2].partition("\n## ")[0]
    promises = [row for row in section.splitlines() if row.startswith("|")][2:]

    assert len(promises) > 10
    for row in promises:
        proofs = re.findall(rf"\]\({REPOSITORY}(tests/[^)]+\.py)\)", row)
        assert proofs, f"no test proves: {row}"
        for proof in proofs:
            assert "def test_" in (ROOT / proof).read_text()


# The failures of the document "Error Handling & Recovery", as its flowchart calls them.
NODES = [
    *(f"S{number}" for number in range(1, 6)),
    *(f"SE{number}" for number in range(1, 6)),
    *(f"W{number}" for number in range(1, 13)),
    *(f"WE{number}" for number in range(1, 9)),
    *(f"C{number}" for number in range(1, 12)),
    *(f"CE{number}" for number in range(1, 10)),
    *("SB1", "SB2", "SB3", "SBE1", "SBE2"),
    *("SSuccess", "WSuccess1", "WSuccess2", "WSuccess3", "CSuccess", "SBSuccess", "ManualFix"),
]
# The rows of its tables: of failures, of alerts, logs and retries, of recovery by hand, of idempotency.
ROWS = {
    "The tables of failures": 4 + 6 + 6 + 4,
    "Alerts, logs, retries": 3 + 2 + 4,
    "Recovery by hand": 6,
    "Idempotency safeguards": 7,
}


def test_every_failure_of_the_document_names_its_test() -> None:
    page = REFERENCE / "failure-tests.md"
    sections = re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]
    rows = {
        it.partition("\n")[0]: [line for line in it.splitlines() if line.startswith("|")][2:]
        for it in sections
    }
    nodes = [
        node
        for title, lines in rows.items()
        if title.startswith("The flowchart")
        for line in lines
        for node in re.findall(r"`(\w+)`", line.split(" | ")[0])
    ]

    assert sorted(nodes) == sorted(NODES)
    assert {title: len(rows[title]) for title in ROWS} == ROWS
    for line in [line for lines in rows.values() for line in lines]:
        named_tests = re.findall(r"\[`(\w+)`\]\(\.\./\.\./(tests/[\w/]+\.py)\)", line)
        assert named_tests, f"no test shows: {line}"
        for name, file in named_tests:
            found = re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
            assert found, f"there is no {name} in {file}"


# The command line


def _commands_in(page: Path) -> Iterator[str]:
    """The commands that a page tells its reader to type."""
    for block in blocks(page, "console"):
        yield from re.findall(r"(?:^|[;&] *)(stepfast [^;&\n]*)", block.text, re.MULTILINE)
    yield from re.findall(r"`(stepfast [^`]+)`", prose(page))


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_command_that_is_shown_exists(page: Path) -> None:
    known = dict(cli_reference.commands())
    for typed in _commands_in(page):
        words = _without_url(shlex.split(typed, comments=True))
        if words[1:2] in ([], ["…"], ["--help"], ["--version"]):
            continue
        name = next((name for name in known if words[: len(name.split())] == name.split()), None)
        group = len(words) == 2 and any(it.startswith(f"stepfast {words[1]} ") for it in known)
        assert name or group, f"{named(page)}: there is no command `{typed}`"
        if name:
            accepted = {opt for it in cli_reference.options(known[name]) for opt in it.opts} | {"--help"}
            used = {word.partition("=")[0] for word in words if word.startswith("--")}
            assert used <= accepted, f"{named(page)}: `{typed}` does not take {used - accepted}"


def _without_url(words: list[str]) -> list[str]:
    return [words[0], *words[3:]] if words[1:2] == ["--database-url"] else words


def test_every_command_and_every_option_is_documented() -> None:
    text = (REFERENCE / "cli.md").read_text()

    for name, command in cli_reference.commands():
        assert f"### {name}" in text
        section = text.partition(f"### {name}")[2].partition("\n### ")[0]
        missing = [
            it.opts[0]
            for it in cli_reference.options(command)
            if it.opts[0] not in section and it.opts[0] not in cli_reference.SHARED
        ]
        assert missing == [], name


# The generated parts


GENERATED = [
    ROOT / "docs" / "explanation" / "architecture.md",
    *(REFERENCE / f"{name}.md" for name in ("cli", "settings", "states", "run-states", "events", "metrics")),
]


@pytest.mark.golden
@pytest.mark.parametrize("page", GENERATED, ids=named)
def test_a_generated_page_is_current(page: Path, pytestconfig: pytest.Config) -> None:
    """Also the states of runs: their table in the code is what the page says. (F50)"""
    how = "-r" if pytestconfig.getoption("update_golden") else "--check"

    done = subprocess.run(
        [sys.executable, "-m", "cogapp", how, "-I", str(ROOT), str(page)],
        check=False,
        capture_output=True,
        text=True,
    )

    assert done.returncode == 0, f"{named(page)} is old; run: make golden\n{done.stdout}{done.stderr}"


@pytest.mark.golden
def test_the_picture_of_the_architecture_is_current(pytestconfig: pytest.Config) -> None:
    drawn = architecture.svg()
    if pytestconfig.getoption("update_golden"):
        architecture.PICTURE.write_text(drawn)

    assert architecture.PICTURE.read_text() == drawn, "the imports have changed; run: make golden"


# The architecture


LIBRARY = ROOT / "packages" / "stepfast" / "src" / "stepfast"


def test_the_architecture_names_files_and_functions_that_exist() -> None:
    text = prose(ROOT / "docs" / "explanation" / "architecture.md")
    files = set(re.findall(r"`([\w/]+\.py)`", text)) - {
        "devtools/architecture.py",
        "tests/test_architecture.py",
    }
    rows = re.findall(r"^\| `([\w/]+\.py)` \| (`[^|]+`) \|", text, re.MULTILINE)

    assert len(rows) > 30
    assert [file for file in sorted(files) if not (LIBRARY / file).is_file()] == []
    for file, names in rows:
        source = (LIBRARY / file).read_text()
        for name in re.findall(r"\w+", names):
            assert re.search(rf"^ *(async )?(def|class) {name}\b", source, re.MULTILINE), (
                f"{name} is not in {file}"
            )


# The reference


def test_every_setting_of_a_worker_is_documented() -> None:
    text = (REFERENCE / "settings.md").read_text()

    assert [it.name for it in fields(WorkerSettings) if f"| `{it.name}` |" not in text] == []


def test_every_public_name_is_documented() -> None:
    text = (REFERENCE / "api.md").read_text()
    public: dict[str, set[str]] = {
        "": set(stepfast.__all__),
        "app.": _public(Stepfast) - {"database", "kinds"},
        "step.": _public(Step) - {"doubt", "halt", "effects"},  # those are for the worker
        "tx.": {"execute", "execute_many", "query", "savepoint"} & _public(Transaction),
        "applications ": {*applications.__all__, *commands.__all__},
        "operator ": _public(Operator),
        "reports ": set(reports.__all__),
        "testing ": {*testing.__all__, *_public(testing.Report), *_public(testing.Clock) - {"restore"}},
    }

    missing = {prefix + it for prefix, names in public.items() for it in names if not _mentions(text, it)}

    assert missing == set()


def test_every_option_of_enqueue_is_documented() -> None:
    text = (REFERENCE / "api.md").read_text()

    assert [it for it in OPTIONS if f"`{it}`" not in text] == []


def _public(thing: type) -> set[str]:
    return {name for name in vars(thing) if not name.startswith("_")}


def _mentions(text: str, name: str) -> bool:
    return re.search(rf"(?<!\w){name}(?!\w)", text) is not None


def test_every_event_is_documented_with_its_level() -> None:
    text = (REFERENCE / "events.md").read_text()

    for name, level in telemetry.LEVELS.items():
        assert f"| `{name}` | {logging.getLevelName(level).lower()} |" in text, "run: make golden"


def test_every_documented_event_exists() -> None:
    text = (REFERENCE / "events.md").read_text()

    assert set(re.findall(r"^\| `([\w.-]+)` \|", text, re.MULTILINE)) == set(telemetry.EVENTS)


def test_every_metric_is_documented(tmp_path: Path) -> None:
    text = (REFERENCE / "metrics.md").read_text()
    with closing(Stepfast(f"sqlite:///{tmp_path}/work.db")) as app:
        app.migrate()
        found = {family.name for family in app.metrics().collect()}

    assert len(found) > 25
    assert [name for name in found if not re.search(rf"`{name}(_total)?`", text)] == []


def test_every_error_is_documented() -> None:
    text = (REFERENCE / "errors.md").read_text()
    every = [it for it in vars(errors).values() if isinstance(it, type) and issubclass(it, Exception)]

    assert [it.__name__ for it in every if f"| `{it.__name__}`" not in text] == []


def test_every_verb_of_the_audit_is_documented() -> None:
    text = (ROOT / "docs" / "howto" / "audit.md").read_text()
    sources = "\n".join(path.read_text() for path in SOURCES if path.parent.name == "admin")
    verbs = set(re.findall(r'"((?:job|queue|leases|dead-letters|schedule|outbox|limit)\.[a-z-]+)"', sources))
    assert len(verbs) > 10

    assert [it for it in sorted(verbs) if f"`{it}`" not in text] == []


def test_every_state_is_documented() -> None:
    text = (REFERENCE / "states.md").read_text()

    assert [state for state in JobState if f"| `{state}` |" not in text] == []


def test_every_state_has_its_word_of_the_view() -> None:
    section = (REFERENCE / "states.md").read_text().partition("| state | `status` in the view |")[2]
    states = [
        state
        for cell in re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
        for state in re.findall(r"\w+", cell)
    ]

    assert sorted(states) == sorted(JobState)


def test_every_setting_and_every_method_of_a_feed_is_documented() -> None:
    text = (REFERENCE / "feeds.md").read_text()

    settings = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", text, re.MULTILINE)
    told = {name for names in settings for name in re.findall(r"\w+", names)}
    section = text.partition("## Methods")[2].partition("\n## ")[0]
    methods = set(re.findall(r"^\| `(\w+)\(", section, re.MULTILINE))
    public = _public(Feed)

    assert public - told - methods == set()
    assert methods == {name for name in public if callable(getattr(Feed, name))}


def test_every_table_and_every_column_is_documented(tmp_path: Path) -> None:
    text = "\n".join((REFERENCE / page).read_text() for page in ("tables.md", "run-tables.md"))
    with closing(Stepfast(f"sqlite:///{tmp_path}/work.db")) as app:
        app.migrate()
    with closing(sqlite3.connect(tmp_path / "work.db")) as connection:
        tables = _names(connection, "SELECT name FROM sqlite_schema WHERE type IN ('table', 'view')")
        columns = {it: _names(connection, f"SELECT name FROM pragma_table_info('{it}')") for it in tables}

    ours = {table: names for table, names in columns.items() if not table.startswith("sqlite_")}
    assert len(ours) > 6
    for table, names in ours.items():
        assert f"## {table}\n" in text
        section = text.partition(f"## {table}\n")[2].partition("\n## ")[0]
        assert [name for name in names if f"`{name}`" not in section] == [], table


def _names(connection: sqlite3.Connection, query: str) -> list[Any]:
    return [row[0] for row in connection.execute(query)]
