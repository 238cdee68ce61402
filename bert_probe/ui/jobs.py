"""Long-running work behind a page: a button that starts it, progress with a Cancel button, then the result.

A job belongs to one session and one cause: it ends when its inputs change or the session's browser
disconnects.
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
from bert_probe.runtime.cache import cache_key
from bert_probe.runtime.jobs import Job
from bert_probe.server import sessions
from bert_probe.ui import state

T = TypeVar("T")

MAX_JOBS = 8
"""Maximum number of jobs of a session, running or done; the least recently used one is dropped first."""
PATIENCE = 0.3
"""Seconds between checks of a running job. A job that is done within the first interval shows no progress."""

_JOBS = "jobs"
_PERMANENT = (SelectionError, TextError, UnavailableError)
"""Errors that occur again when the same work is repeated."""


def run(
    key: str,
    cause: Hashable,
    label: str,
    work: Callable[[Progress], T],
    unit: str = "",
    note: str = "",
    *,
    start: bool = False,
    describe: Callable[[], str] = lambda: "",
    patience: float | None = None,
    **limits: Any,
) -> T | None:
    """Return the result of ``work`` for this ``cause``, or None while there is none.

    Before the start, a button with ``label`` and ``note`` is drawn; while the work runs, its progress and a
    Cancel button. The page runs again when the work is done.

    Args:
        key: name of the job in its session; a page may have several.
        cause: all inputs of the work. A job with another cause is cancelled.
        work: runs in a thread that must not draw. It can be cancelled only when it reports progress.
        unit: what is counted, as in "24 of 72 heads"; "B" for bytes, which are shown as MB.
        start: start at once; the button is drawn only if starting again can help.
        describe: returns a line to show above the progress.
        patience: seconds for which the page waits before it shows progress.
        limits: see `Job`.

    Raises:
        ProbeError: the error of the work, on every run until it is started again or the cause changes.
    """
    jobs = _session_jobs()
    job = jobs.pop(key, None)
    if job is not None and job.cause != cause:
        job.cancel()
        job = None
    container = st.container()
    is_clicked = is_offered = False
    if job is None:
        is_clicked = not start and _start_button(container, key, label, note)
    elif _can_restart(job, start):
        is_clicked = _start_button(container, key, label, _cancelled_note(job, unit))
        is_offered = not is_clicked
    if is_clicked or (start and job is None):
        job = Job(cause, work, partial(sessions.is_connected, sessions.current()), **limits)
    if job is None:
        return None
    jobs[key] = job  # most recently used last
    while len(jobs) > MAX_JOBS:
        jobs.pop(next(iter(jobs))).cancel()
    if not _wait(job, PATIENCE if patience is None else patience):
        with container:
            _watch(job, key, unit, describe)
        return None
    if not is_offered and _can_restart(job, start):  # it ended during this run
        if is_clicked:
            st.rerun()  # the button is gone in this run
        # No rerun here: the browser may not have received yet what the first run put into text fields.
        _start_button(container, key, label, _cancelled_note(job, unit))
    return None if job.state == "cancelled" else job.value()


def answer(
    key: str,
    of: Callable[..., T],
    *inputs: Any,
    label: str,
    unit: str = "",
    note: str = "",
    start: bool = False,
    patience: float | None = None,
    limits: tuple[Any, ...] = (),
) -> T | None:
    """Return the result of a question, cached for all sessions; None while there is none.

    Args:
        key, label, unit, note, start, patience: see `run`.
        of: method of the question, such as ``Relations().of``.
        inputs: its inputs.
        limits: further arguments that do not change the result.
    """
    return run(
        key,
        cache_key(of, *inputs),
        label,
        lambda progress: shared_cache.answers.of(of, *inputs, *limits, progress=progress),
        unit,
        note,
        start=start,
        patience=patience,
    )


def _wait(job: Job[Any], seconds: float) -> bool:
    """Wait for a job and return whether it is over; a newer run of the script interrupts the wait."""
    placeholder, end = st.empty(), time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not job.wait(min(left, PATIENCE)):
        placeholder.empty()  # here Streamlit stops a script that was superseded
    return job.over


def _session_jobs() -> dict[str, Job[Any]]:
    state.preserve(_JOBS)
    jobs: dict[str, Job[Any]] = st.session_state.setdefault(_JOBS, {})
    return jobs


def _can_restart(job: Job[Any], start: bool) -> bool:
    failed = job.state == "failed" and not (start and isinstance(job.error, _PERMANENT))
    return failed or job.state == "cancelled"


def _cancelled_note(job: Job[Any], unit: str) -> str:
    """Return the note for the button of a cancelled job; "" for a failed one."""
    if job.state != "cancelled":
        return ""
    reached = "" if job.progress is None else f" after {_count(*job.progress, unit)}"
    return f"Cancelled{reached}. Nothing was kept."


def _count(done: int, total: int, unit: str) -> str:
    if unit == "B":
        done, total, unit = round(done / 1e6), round(total / 1e6), "MB"
    return f"{done:,} of {total:,} {unit}".strip()


def _start_button(container: DeltaGenerator, key: str, label: str, note: str) -> bool:
    """Draw the start button and return whether it was clicked, which removes it."""
    with container:
        button, below = st.empty(), st.empty()
    if button.button(label, type="primary", key=f"{key} start"):
        button.empty()
        return True
    if note:
        below.caption(note)
    return False


@st.fragment(run_every=PATIENCE)
def _watch(job: Job[Any], key: str, unit: str, describe: Callable[[], str]) -> None:
    """Draw the progress repeatedly until the job is over, then run the page again."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        done, total = job.progress or (0, 0)
        status = _count(done, total, unit) if total else "Working …"
        if job.state == "waiting":
            status = "Waiting for other work on this machine …"
        text = "  \n".join(filter(None, [describe(), status]))
        st.progress(min(done / total, 1.0) if total else 0.0, text)
        if st.button("Cancel", key=f"{key} cancel"):
            job.cancel()
    if job.wait(0):
        st.rerun()
