"""Which choice of a component counts: browser and page number them, and the higher revision is the later one.

A component reports what its reader chooses with a revision one higher than the last that it knew, and the
page sends back the revision that it draws. A run that was overtaken sends a lower one, which the browser
ignores.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import streamlit as st

_STARTS: Final = "component revisions"
"""Session key of the revision at which each component began, by the component's key."""


def start(key: str) -> int:
    """Return the revision at which a component began; call it before the component is drawn.

    A component begins when a page draws it that did not draw it in the run before. By the clock, so that it
    outranks what the browser still knows of the time before.
    """
    starts: dict[str, int] = st.session_state.setdefault(_STARTS, {})
    if key not in starts or key not in st.session_state:
        starts[key] = time.time_ns() // 1_000_000
    return starts[key]


def latest(key: str, name: str, of: str) -> tuple[int, Mapping[str, Any] | None]:
    """Return the revision to send, and what the reader chose last; None if nothing, or something else's part.

    Args:
        key: of the component.
        name: of the value that it reports.
        of: what the choice is about; a choice about something else does not count.
    """
    first, state = start(key), st.session_state.get(key)
    report = state.get(name) if isinstance(state, Mapping) else None
    if not isinstance(report, Mapping) or report.get("of") != of:
        return first, None
    revision = report.get("revision")
    if type(revision) is not int or not first < revision < 2**53:
        return first, None
    return revision, report
