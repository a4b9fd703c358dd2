"""Every SQL statement of the packages, by the module that declares it and its name."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
from functools import cache
from typing import TYPE_CHECKING

import stepfast
import stepfast_diamonds
from stepfast.database.statement import Statement

if TYPE_CHECKING:
    from types import ModuleType


@cache
def statements() -> dict[str, Statement]:
    """`jobs.commit.RETRY_JOB` and all others, in the order of modules and of declarations."""
    modules = [
        *pkgutil.walk_packages(stepfast.__path__, "stepfast."),
        *pkgutil.walk_packages(stepfast_diamonds.__path__, "stepfast_diamonds."),
    ]
    names = sorted(it.name for it in modules if not it.name.endswith("__main__"))
    return {
        f"{module.removeprefix('stepfast.')}.{name}": statement
        for module in names
        for name, statement in _declared(importlib.import_module(module)).items()
    }


def _declared(module: ModuleType) -> dict[str, Statement]:
    """The statements that a module assigns at its top; others are imported."""
    assigned = [
        target.id
        for node in ast.parse(inspect.getsource(module)).body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    return {name: value for name in assigned if isinstance(value := vars(module)[name], Statement)}
