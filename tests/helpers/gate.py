"""Functions that select the parametrized cases of ``make test``; other cases run only in ``make prove``."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Container, Iterable
from typing import Any

import pytest

PROVE = os.environ.get("BERT_PROBE_PROVE") == "1"
"""True in ``make prove``, which also runs the tests marked ``prove``."""


def examples(prove: int, gate: int | None = None) -> int:
    """Return the number of examples for a property-based test.

    The number is `prove` in `make prove`, and `gate` in `make test`. By default, the latter is a fifth of the
    former, but at least 5.
    """
    if PROVE:
        return prove
    return max(5, prove // 5) if gate is None else gate


def select(items: list[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Return the tests of ``make test`` in their order, and the tests that only ``make prove`` runs.

    The latter are the tests marked ``prove``. Of the remaining cases of a test marked ``gate(cases=n)``,
    ``make test`` runs `n`, which are evenly selected and include the first one.
    """
    cases = defaultdict(list)
    for item in items:
        if not item.get_closest_marker("prove"):
            cases[item.nodeid.partition("[")[0]].append(item)
    selected = set()
    for group in cases.values():
        marker = group[0].get_closest_marker("gate")
        count = min(marker.kwargs["cases"], len(group)) if marker else len(group)
        selected |= {group[number * len(group) // count] for number in range(count)}
    return [item for item in items if item in selected], [item for item in items if item not in selected]


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
