"""What is published: each package builds, also from its source archive, lacks no file, and brings only itself.

Nothing is downloaded: hatchling is in the environment, and so is what the packages need.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path
from typing import Any

import pytest

from devtools.lock import locked

PACKAGES = Path(__file__).parents[1] / "packages"
NAMES = ("stepfast", "stepfast-diamonds", "stepfast-emulators")
IGNORED = ("__pycache__", ".pyc")


def project(name: str) -> dict[str, Any]:
    return tomllib.loads((PACKAGES / name / "pyproject.toml").read_text())["project"]  # type: ignore[no-any-return]


def sources(name: str) -> set[str]:
    """Every file that git would keep."""
    root = PACKAGES / name / "src"
    found = (path.relative_to(root) for path in root.rglob("*") if path.is_file())
    return {str(path) for path in found if not any(word in str(path) for word in IGNORED)}


def build(folder: Path, kind: str, target: Path) -> Path:
    """Build a wheel or a source archive as a release would."""
    before = set(target.glob("*"))
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(target)],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    (made,) = set(target.glob("*")) - before
    return made


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A wheel of each package, built from its source archive."""
    built = {}
    for name in NAMES:
        archive = build(PACKAGES / name, "sdist", tmp_path_factory.mktemp("sdist"))
        unpacked = tmp_path_factory.mktemp("unpacked")
        with tarfile.open(archive) as files:
            files.extractall(unpacked, filter="data")
        (folder,) = unpacked.iterdir()
        built[name] = build(folder, "wheel", tmp_path_factory.mktemp("wheel"))
    return built


@pytest.fixture(scope="module")
def needed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the packages need, without the editable packages of this environment and their entry points."""
    folder = tmp_path_factory.mktemp("needed")
    for place in {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}:
        for path in Path(place).iterdir():
            ours = path.name.replace("-", "_").lstrip("_").startswith(("stepfast", "editable_impl_stepfast"))
            if not ours and path.suffix != ".pth":
                (folder / path.name).symlink_to(path)
    return folder


class Installed:
    """Wheels in a folder of their own, as in an environment without anything else of ours."""

    def __init__(self, folder: Path, needed: Path, wheels: list[Path]) -> None:
        self._folder = folder
        self._path = os.pathsep.join(map(str, (folder, needed)))
        offline = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-index")
        pip = (sys.executable, "-m", "pip", "install", *offline, "--target", str(folder))
        subprocess.run([*pip, *map(str, wheels)], check=True)

    def python(self, *words: str) -> str:
        chosen = {name: value for name, value in os.environ.items() if not name.startswith("STEPFAST_")}
        done = subprocess.run(
            [sys.executable, "-S", *words],  # -S: without the site-packages of this environment
            cwd=self._folder,
            env=chosen | {"PYTHONPATH": self._path},
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stepfast(self, *words: str) -> str:
        return self.python("-m", "stepfast", "--database-url", "sqlite:///work.db", *words)


@pytest.fixture(scope="module")
def core(wheels: dict[str, Path], needed: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return Installed(tmp_path_factory.mktemp("core"), needed, [wheels["stepfast"]])


@pytest.fixture(scope="module")
def with_diamonds(
    wheels: dict[str, Path], needed: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installed:
    chosen = [wheels["stepfast"], wheels["stepfast-diamonds"]]
    return Installed(tmp_path_factory.mktemp("diamonds"), needed, chosen)


@pytest.mark.parametrize("name", NAMES)
def test_a_wheel_has_every_file_of_its_package(name: str, wheels: dict[str, Path], tmp_path: Path) -> None:
    from_tree = build(PACKAGES / name, "wheel", tmp_path)

    with zipfile.ZipFile(wheels[name]) as wheel, zipfile.ZipFile(from_tree) as direct:
        files = {it for it in wheel.namelist() if ".dist-info/" not in it}
        assert set(wheel.namelist()) == set(direct.namelist())

    assert files == sources(name)
    assert f"{name.replace('-', '_')}/py.typed" in files


@pytest.mark.parametrize("name", NAMES)
def test_the_metadata_says_whose_it_is_and_where_to_read_on(name: str, wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels[name]) as wheel:
        (path,) = (it for it in wheel.namelist() if it.endswith(".dist-info/METADATA"))
        facts = Parser().parsestr(wheel.read(path).decode())
        licences = [it for it in wheel.namelist() if it.endswith("licenses/LICENSE")]

    assert facts["Name"] == name
    assert facts["Author"]
    assert facts["License-Expression"] == "Apache-2.0"
    assert len(licences) == 1
    assert {it.split(",")[0] for it in facts.get_all("Project-URL", [])} >= {"Homepage", "Documentation"}
    assert "Programming Language :: Python :: 3.14" in facts.get_all("Classifier", [])
    assert facts["Description-Content-Type"] == "text/markdown"
    assert str(facts.get_payload()).startswith("# ")


def test_the_packages_share_one_version() -> None:
    versions = {project(name)["version"] for name in NAMES}

    assert len(versions) == 1
    (version,) = versions
    for name in NAMES:
        extras = project(name).get("optional-dependencies", {}).values()
        for it in [*project(name)["dependencies"], *(it for extra in extras for it in extra)]:
            if it.startswith("stepfast") and "==" in it:
                assert it.endswith(f"=={version}"), f"{name} needs {it}"


def test_the_core_brings_no_application(core: Installed) -> None:
    text = core.stepfast("--help")

    assert "migrate" in text
    assert "diamonds" not in text
    assert "demo" not in text
    assert list(json.loads(core.stepfast("version", "--json"))["schema"]) == ["stepfast"]


def test_the_core_works_by_itself(core: Installed) -> None:
    assert core.stepfast("migrate").startswith("stepfast: applied 0001_first")
    assert core.stepfast("jobs", "list") == "no such jobs\n"
    script = "import stepfast, sys; print([it for it in sys.modules if it.startswith('stepfast_')])"
    assert core.python("-c", script) == "[]\n"


def test_an_application_brings_its_commands_and_its_tables(with_diamonds: Installed) -> None:
    text = with_diamonds.stepfast("--help")

    assert "diamonds" in text
    assert "demo" in text
    assert "diamonds: applied 0001_first" in with_diamonds.stepfast("migrate")
    assert "active" in with_diamonds.stepfast("diamonds", "rules", "list")
    assert "--stones" in with_diamonds.stepfast("demo", "--help")


def test_the_emulators_need_nothing_else(
    wheels: dict[str, Path], tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    alone = Installed(tmp_path, tmp_path_factory.mktemp("nothing"), [wheels["stepfast-emulators"]])

    assert "--queue" in alone.python("-m", "stepfast_emulators.service_bus", "--help")


# What they are built and tested with

LOCK = PACKAGES.parent / "requirements" / "dev.txt"


def pinned() -> dict[str, list[str]]:
    """The pinned requirements, each with the hashes of its files."""
    lines = [it for it in LOCK.read_text().replace("\\\n", " ").splitlines() if not it.startswith("#")]
    return {
        line.split()[0]: [it for it in line.split()[1:] if it.startswith("--hash=sha256:")] for line in lines
    }


def test_every_pinned_requirement_has_the_hashes_of_its_files() -> None:
    found = pinned()

    assert len(found) > 50
    assert all("==" in name and hashes for name, hashes in found.items())
    script = (PACKAGES.parent / "scripts" / "install-environment").read_text()
    assert "--require-hashes --requirement requirements/dev.txt" in script


def test_packages_are_built_with_the_pinned_tool() -> None:
    for name in NAMES:
        described = tomllib.loads((PACKAGES / name / "pyproject.toml").read_text())
        (tool,) = described["build-system"]["requires"]
        assert tool in pinned(), f"{name} is built with {tool}: run scripts/lock"


def test_the_lock_lists_all_files_of_a_version_and_no_others() -> None:
    page = "".join(
        f'<a href="https://files.example/{number:064x}/{file}#sha256={number:064x}">{file}</a>\n'
        for number, file in enumerate(
            [
                "My_Tool-1.0.tar.gz",
                "my_tool-1.0-py3-none-any.whl",
                "my_tool-1.0.1-py3-none-any.whl",
                "my_tool-1.0rc1.tar.gz",
                "my_tool_more-1.0.tar.gz",
                "my_tool-1.0.exe",
            ]
        )
    )

    assert locked(["# a comment", "my-tool==1.0"], lambda _: page) == [
        f"my-tool==1.0 \\\n    --hash=sha256:{0:064x} \\\n    --hash=sha256:{1:064x}"
    ]
    with pytest.raises(SystemExit, match=r"no file of my-tool 3\.0"):
        locked(["my-tool==3.0"], lambda _: page)
