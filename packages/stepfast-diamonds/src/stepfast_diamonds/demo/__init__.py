"""What `stepfast demo` is made of: a source, workers, a crash, and the comparison with the truth."""

from __future__ import annotations
