"""Revisions of the user's choices in a component: the choice with the highest revision is the latest.

A component sends each choice with a new, higher revision, and the page returns the revision that it has
drawn. An outdated run returns a lower revision, which the browser ignores.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import streamlit as st

_STARTS: Final = "component revisions"
"""Session key of a mapping from component keys to initial revisions."""


def start(key: str) -> int:
    """Return the initial revision of a component. Call this before the component is drawn.

    A component starts anew if the previous run did not draw it. The revision comes from the clock, so that it
    exceeds any revision that the browser remembers.
    """
    starts: dict[str, int] = st.session_state.setdefault(_STARTS, {})
    if key not in starts or key not in st.session_state:
        starts[key] = time.time_ns() // 1_000_000
    return starts[key]


def latest(key: str, name: str, of: str) -> tuple[int, Mapping[str, Any] | None]:
    """Return the revision to send to the component, and the user's last choice for the current data.

    The choice is None if the user has made none.

    Args:
        key: key of the component.
        name: name of the state value in which the component reports.
        of: digest of the current data; choices for other data are ignored.
    """
    first, state = start(key), st.session_state.get(key)
    report = state.get(name) if isinstance(state, Mapping) else None
    if not isinstance(report, Mapping) or report.get("of") != of:
        return first, None
    revision = report.get("revision")
    if type(revision) is not int or not first < revision < 2**53:
        return first, None
    return revision, report
