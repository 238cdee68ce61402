"""Ordering of a component's choices: the browser and the page number them, and the higher revision is the
later.

A component reports a reader's choice with a revision one higher than the last it knew, and the page sends
back the revision that it draws. A run that was overtaken sends a lower revision, which the browser ignores.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

import streamlit as st

_STARTS: Final = "component revisions"
"""Session key of the initial revision of each component, by the component's key."""


def start(key: str) -> int:
    """Return the initial revision of a component; call it before the component is drawn.

    A component starts when a page draws it that did not draw it in the previous run. The revision comes from
    the clock, so that it outranks what the browser remembers.
    """
    starts: dict[str, int] = st.session_state.setdefault(_STARTS, {})
    if key not in starts or key not in st.session_state:
        starts[key] = time.time_ns() // 1_000_000
    return starts[key]


def latest(key: str, name: str, of: str) -> tuple[int, Mapping[str, Any] | None]:
    """Return the revision to send, and the reader's last choice; None without a choice about `of`.

    Args:
        key: of the component.
        name: of the value that it reports.
        of: digest of the data that the choice belongs to; a choice about other data is ignored.
    """
    first, state = start(key), st.session_state.get(key)
    report = state.get(name) if isinstance(state, Mapping) else None
    if not isinstance(report, Mapping) or report.get("of") != of:
        return first, None
    revision = report.get("revision")
    if type(revision) is not int or not first < revision < 2**53:
        return first, None
    return revision, report
