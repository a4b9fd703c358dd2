"""A build hook of packages/*: source archives hold the files that README.md and LICENSE link to, not the links."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class RealFiles(BuildHookInterface[Any]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 - hatchling's words
        included: dict[str, str] = build_data["force_include"]
        build_data["force_include"] = {str(Path(path).resolve()): name for path, name in included.items()}
