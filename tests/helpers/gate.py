"""Functions that select the parametrized cases of ``make test``; other cases run only in ``make prove``."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable
from typing import Any

import pytest

PROVE = os.environ.get("BERT_PROBE_PROVE") == "1"
"""True in ``make prove``, which also runs the tests marked ``prove``."""


def examples(prove: int) -> int:
    """Return the number of examples for a property-based test.

    The number is `prove` in `make prove`, and a fifth of `prove`, but at least 5, in `make test`.
    """
    return prove if PROVE else max(5, prove // 5)


def prove_unless(in_gate: Container[Any] | Callable[[Any], bool], cases: Iterable[Any]) -> list[Any]:
    """Return all cases, with those outside the gate marked ``prove``.

    Args:
        in_gate: the cases to run in ``make test``, or a function that returns whether to run a case.
        cases: the values of one parameter, or tuples with the values of several parameters.
    """
    is_in_gate = in_gate if callable(in_gate) else in_gate.__contains__
    return [case if is_in_gate(case) else _prove(case) for case in cases]


def _prove(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.prove)
