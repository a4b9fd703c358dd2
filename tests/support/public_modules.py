"""The modules that applications, examples and the documentation may import.

pyproject.toml holds run-time imports of applications to the same list.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

STEPFAST = {
    "stepfast",
    "stepfast.applications",
    "stepfast.applications.commands",
    "stepfast.callbacks",
    "stepfast.errors",
    "stepfast.reports",
    "stepfast.tasks",
    "stepfast.testing",
    "stepfast.transports",
    "stepfast.webhooks",
}
DOCUMENTED = {
    *STEPFAST,
    "stepfast_diamonds.feed",
    "stepfast_diamonds.repricing",
    "stepfast_diamonds.schema",
    "stepfast_diamonds.settings",
    "stepfast_diamonds.simulator",
    "stepfast_emulators.service_bus",
}


def private_imports(source: str, public: set[str] = STEPFAST) -> list[str]:
    """Modules of Stepfast that the source imports although they are not public; also inside functions."""
    packages = {name.split(".")[0] for name in public}
    return [it for it in _imported(ast.parse(source)) if it.split(".")[0] in packages and it not in public]


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (it.name for it in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
