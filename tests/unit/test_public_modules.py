"""The modules beside `stepfast` that users may import from: every public name is there, and nothing heavy comes along."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

MODULES = ["stepfast.tasks", "stepfast.transports", "stepfast.webhooks"]


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_can_be_imported(name: str) -> None:
    module = import_module(name)

    assert sorted(module.__all__) == module.__all__
    assert all(getattr(module, public) is not None for public in module.__all__)


@pytest.mark.parametrize("name", ["stepfast.tasks", "stepfast.transports"])
def test_a_name_that_is_not_there_is_an_ordinary_error(name: str) -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        import_module(name).nothing  # noqa: B018 - the look is the test


@pytest.mark.parametrize("name", MODULES)
def test_importing_one_loads_no_client_and_no_driver(name: str) -> None:
    heavy = ("psycopg", "pymysql", "sqlite3", "httpcore", "httpx", "azure", "pydantic", "email")
    script = f"import sys, {name}\nprint(*[it for it in sys.argv[1:] if it in sys.modules])"

    done = subprocess.run([sys.executable, "-c", script, *heavy], check=True, capture_output=True, text=True)

    assert done.stdout.split() == []
