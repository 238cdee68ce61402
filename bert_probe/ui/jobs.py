"""Long work behind a page: a button that starts it, then progress with a Cancel button, then its result.

A job belongs to one session and one cause: it ends when its inputs change or the session's browser is gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from bert_probe.errors import SelectionError, TextError, UnavailableError
from bert_probe.model.progress import Progress
from bert_probe.runtime import shared_cache
from bert_probe.runtime.cache import key_of
from bert_probe.runtime.jobs import Job
from bert_probe.server import sessions
from bert_probe.ui import state

T = TypeVar("T")

KEPT = 8
"""Jobs that a session holds at most, running or done; the one longest unasked for goes first."""
PATIENCE = 0.3
"""Seconds between looks at a running job. One that is done within the first is never seen running."""

_JOBS = "jobs"
_FINAL = (SelectionError, TextError, UnavailableError)
"""Errors that come again however often the same is tried."""


def run(
    key: str,
    cause: Hashable,
    label: str,
    work: Callable[[Progress], T],
    unit: str = "",
    note: str = "",
    *,
    start: bool = False,
    about: Callable[[], str] = lambda: "",
    patience: float | None = None,
    **limits: Any,
) -> T | None:
    """The result of ``work`` for this ``cause``, or None while there is none.

    Until it is started a button with ``label`` is drawn, with ``note`` beneath it; while it runs, its
    progress and a Cancel button. The page is run again when it is over.

    Args:
        key: names the job in its session; a page may have several.
        cause: all inputs of the work. A job with another cause is given up, its result dropped.
        work: runs in a thread that must not draw; reports often, as it can be stopped only then.
        unit: what is counted, for "24 of 72 heads"; "B" for bytes, which are shown as MB.
        start: begin at once. The button is then drawn only to begin again, where that can help.
        about: what is said above the progress.
        patience: seconds for which the page waits before it shows progress.
        limits: of the `ShardJob`, see there.

    Raises:
        ProbeError: what the work raised, on every run until it is started again or the cause changes.
    """
    held = _held()
    job = held.pop(key, None)
    if job is not None and job.cause != cause:
        job.cancel()
        job = None
    place = st.container()
    clicked = offered = False
    if job is None:
        clicked = not start and _start_button(place, key, label, note)
    elif _may_begin_again(job, start):
        offered = not (clicked := _start_button(place, key, label, _cancelled(job, unit)))
    begins = clicked or (start and job is None)
    if begins:
        job = Job(cause, work, _alive(), **limits)
    if job is None:
        return None
    held[key] = job  # the last one asked for stands last
    while len(held) > KEPT:
        held.pop(next(iter(held))).cancel()
    if not _waited(job, PATIENCE if patience is None else patience):
        with place:
            _watch(job, key, unit, about)  # which runs the page again when the job is over
        return None
    if not offered and _may_begin_again(job, start):  # it ended during this very run
        if clicked:
            st.rerun()  # with the button that is gone now
        # Not by running again: what the first run put into text fields may not have reached the browser yet.
        _start_button(place, key, label, _cancelled(job, unit))
    return None if job.state == "cancelled" else job.value()


def answered(
    key: str,
    of: Callable[..., T],
    *subjects: Any,
    label: str,
    unit: str = "",
    note: str = "",
    start: bool = False,
    patience: float | None = None,
    limits: tuple[Any, ...] = (),
) -> T | None:
    """The answer to a question that takes a while, kept for all who ask it; None while there is none.

    Args:
        key, label, unit, note, start, patience: see `run`.
        of: the question's own, such as ``Relations().of``.
        subjects: what it is asked of.
        limits: what else it is given, which changes no answer.

    Raises:
        ProbeError: see `run`.
    """
    return run(
        key,
        key_of(of, *subjects),
        label,
        lambda report: shared_cache.answers.of(of, *subjects, *limits, report=report),
        unit,
        note,
        start=start,
        patience=patience,
    )


def _waited(job: Job[Any], seconds: float) -> bool:
    """Wait for a job; whether it is over. Meanwhile the reader can go elsewhere, or run something else."""
    place, end = st.empty(), time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not job.wait(min(left, PATIENCE)):
        place.empty()  # where Streamlit ends a script that is not wanted any more
    return job.over


def _held() -> dict[str, Job[Any]]:
    state.hold(_JOBS)
    held: dict[str, Job[Any]] = st.session_state.setdefault(_JOBS, {})
    return held


def _may_begin_again(job: Job[Any], start: bool) -> bool:
    failed = job.state == "failed" and not (start and isinstance(job.error, _FINAL))
    return failed or job.state == "cancelled"


def _cancelled(job: Job[Any], unit: str) -> str:
    """What to say beneath the button of a job that is over."""
    if job.state != "cancelled":
        return ""
    reached = "" if job.progress is None else f" after {_counted(*job.progress, unit)}"
    return f"Cancelled{reached}. Nothing was kept."


def _counted(done: int, total: int, unit: str) -> str:
    if unit == "B":
        done, total, unit = round(done / 1e6), round(total / 1e6), "MB"
    return f"{done:,} of {total:,} {unit}".strip()


def _start_button(place: DeltaGenerator, key: str, label: str, note: str) -> bool:
    """Whether the work is to start now; the button is gone then."""
    with place:
        button, below = st.empty(), st.empty()
    if button.button(label, type="primary", key=f"{key} start"):
        button.empty()
        return True
    if note:
        below.caption(note)
    return False


@st.fragment(run_every=PATIENCE)
def _watch(job: Job[Any], key: str, unit: str, about: Callable[[], str]) -> None:
    """Progress, drawn again and again without the rest of the page, until the job is over."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        done, total = job.progress or (0, 0)
        said = _counted(done, total, unit) if total else "Working …"
        if job.state == "waiting":
            said = "Waiting for other work on this machine …"
        st.progress(min(done / total, 1.0) if total else 0.0, "  \n".join(filter(None, [about(), said])))
        if st.button("Cancel", key=f"{key} cancel"):
            job.cancel()
    if job.wait(0):
        st.rerun()


def _alive() -> Callable[[], bool]:
    """Whether this session's browser is there, as a function that threads may call."""
    return partial(sessions.is_here, sessions.current())
