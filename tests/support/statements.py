"""Every SQL statement of the packages, by module and name."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

import stepfast
import stepfast_diamonds
from stepfast.database.statement import Statement


@cache
def statements() -> dict[str, Statement]:
    """`jobs.commit.LOCK` and its like, each under the name of the module that declares it."""
    found: dict[str, Statement] = {}
    seen: set[int] = set()
    modules = [
        *pkgutil.walk_packages(stepfast.__path__, "stepfast."),
        *pkgutil.walk_packages(stepfast_diamonds.__path__, "stepfast_diamonds."),
    ]
    for module in sorted(modules, key=lambda it: it.name):
        if module.name.endswith("__main__"):
            continue
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, Statement) and id(value) not in seen:
                seen.add(id(value))
                found[f"{module.name.removeprefix('stepfast.')}.{name}"] = value
    return found
