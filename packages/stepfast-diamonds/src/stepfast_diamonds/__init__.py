"""The catalogue of diamonds: an application in the box, on the public API alone."""

from __future__ import annotations
