"""The exception tree: documented, with facts as attributes, and with a remedy."""

from __future__ import annotations

import inspect
import re
from datetime import timedelta

import pytest

from stepfast import errors
from stepfast.errors import (
    ArgumentsError,
    DuplicateKeyError,
    LeaseLostError,
    ReplacedError,
    StepfastError,
    StepTimeout,
    TransientError,
    UnknownKindError,
)


def drawn() -> dict[str, str]:
    """The tree of the module's docstring: each class and its parent."""
    tree: dict[str, str] = {}
    above: dict[int, str] = {}
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"([│├└─ ]*)([A-Z]\w+)(\s{2,}|$)", line):
            depth = len(found[1])
            above[depth] = found[2]
            tree[found[2]] = above[max(it for it in above if it < depth)] if depth else "Exception"
    return tree


def test_the_tree_in_the_docstring_is_the_tree_in_the_code() -> None:
    classes = {
        name: it.__bases__[0].__name__
        for name, it in inspect.getmembers(errors, inspect.isclass)
        if it.__module__ == errors.__name__
    }

    assert drawn() == classes


@pytest.mark.parametrize(
    ("error", "facts", "sentence"),
    [
        (ArgumentsError("work", "no"), {"kind": "work", "problem": "no"}, "work: no"),
        (DuplicateKeyError("k", "id-1"), {"key": "k", "job_id": "id-1"}, "key 'k' is held by job id-1"),
        (UnknownKindError("k", []), {"kind": "k"}, "it knows: none"),
        (LeaseLostError("id-1", 7), {"job_id": "id-1", "fence": 7}, "fence 7 is no longer current"),
        (ReplacedError(9), {"incarnation": 9}, "incarnation 9 was declared dead"),
        (StepTimeout(timedelta(seconds=1.5)), {}, "did not finish within 1.5 s"),
        (TransientError("later", delay=timedelta(1)), {"delay": timedelta(1)}, "later"),
    ],
    ids=lambda it: type(it).__name__ if isinstance(it, Exception) else "",
)
def test_an_error_carries_facts_and_writes_the_sentence(
    error: StepfastError, facts: dict[str, object], sentence: str
) -> None:
    assert {name: getattr(error, name) for name in facts} == facts
    assert sentence in str(error)


def test_every_error_says_what_to_do() -> None:
    for name, it in inspect.getmembers(errors, inspect.isclass):
        assert it.__doc__, name
