"""Jobs: long-running work that returns a result, with a start button, progress, and a Cancel button.

A job belongs to one session. Its `cause` consists of all inputs that determine the result. The job is
cancelled when these inputs change or when the browser of the session disconnects.
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
"""Maximum number of running and finished jobs of a session. The least recently used job is dropped."""
PATIENCE = 0.3
"""Seconds between checks of a running job. A job that ends before the first check shows no progress."""

_JOBS = "jobs"
_PERMANENT = (SelectionError, TextError, UnavailableError)
"""Errors that would occur again if the same work were repeated."""


def run(
    key: str,
    cause: Hashable,
    label: str,
    work: Callable[[Progress], T],
    unit: str = "",
    note: str = "",
    *,
    activity: str = "",
    start: bool = False,
    describe: Callable[[], str] = lambda: "",
    patience: float | None = None,
    droppable: bool = False,
    **limits: Any,
) -> T | None:
    """Return the result of ``work`` for the inputs ``cause``, or None if there is no result yet.

    Before the work starts, a button with ``label`` and ``note`` is drawn. While it runs, its progress and a
    Cancel button are drawn. The page reruns when the work is done.

    Args:
        key: name of the job in its session; a page may have several jobs.
        cause: all inputs of the work. A job with the same key and another cause is cancelled.
        work: function that runs in a thread and must not draw. It can be cancelled when it reports progress.
        unit: unit of the progress, as in "24 of 72 heads"; "B" for bytes, which are shown as MB.
        activity: text before the progress, as in "Computing attributions: 1 of 7".
        start: whether to start without a click. A start button is then drawn only after the job was cancelled
            or failed with an error that a restart may resolve.
        describe: function that returns a line to show above the progress.
        patience: seconds before the page shows progress.
        droppable: whether the result may be dropped to free memory; see `sessions.SessionValue`. The work is
            then started again, or its button is drawn again.
        limits: further keyword arguments of `Job`, such as ``silence``.

    Raises:
        ProbeError: the work failed. The error is raised in every script run until the job is restarted or its
            cause changes.
    """
    state.preserve(_JOBS)
    jobs: dict[str, Job[Any]] = st.session_state.setdefault(_JOBS, {})
    job = jobs.pop(key, None)
    if job is not None and job.cause != cause:
        job.cancel()
        job = None
    if job is not None and job.state == "done" and droppable and job.value().value is None:
        job = None
    container = st.container()
    is_clicked = is_offered = False
    if job is None:
        is_clicked = not start and _start_button(container, key, label, note)
    elif _can_restart(job, start):
        is_clicked = _start_button(container, key, label, _cancelled_note(job, unit))
        is_offered = not is_clicked
    if is_clicked or (start and job is None):
        session = sessions.current()
        is_alive = partial(sessions.is_connected, session)
        make = (lambda progress: sessions.SessionValue(work(progress), session)) if droppable else work
        job = Job[Any](cause, make, is_alive, client=sessions.client(session), **limits)
    if job is None:
        return None
    jobs[key] = job  # move the job to the end of the dict, as the most recently used job
    while len(jobs) > MAX_JOBS:
        jobs.pop(next(iter(jobs))).cancel()
    if not _wait(job, PATIENCE if patience is None else patience):
        with container:
            _watch(job, key, unit, activity, describe)
        return None
    if not is_offered and _can_restart(job, start):  # the job ended during this run of the script
        if is_clicked:
            st.rerun()  # draw the start button again, because the click removed it
        # Do not rerun: the browser may not have received the text field values of the first run yet.
        _start_button(container, key, label, _cancelled_note(job, unit))
    if job.state == "cancelled":
        return None
    result: T | None = job.value().value if droppable else job.value()
    return result


def drop(key: str) -> None:
    """Remove a job and its result from the session, and cancel the job if it is running."""
    job = st.session_state.get(_JOBS, {}).pop(key, None)
    if job is not None:
        job.cancel()


def answer(
    key: str,
    of: Callable[..., T],
    *inputs: Any,
    label: str,
    unit: str = "",
    note: str = "",
    activity: str = "",
    start: bool = False,
    patience: float | None = None,
    limits: tuple[Any, ...] = (),
) -> T | None:
    """Run a question as a job and return its result, or None if there is no result yet.

    The result is cached for all sessions.

    Args:
        key, label, unit, note, activity, start, patience: see `run`.
        of: method of a question, such as ``Relations().of``.
        inputs: positional arguments of the method.
        limits: additional positional arguments that do not change the result.
    """
    return run(
        key,
        cache_key(of, *inputs),
        label,
        lambda progress: shared_cache.answers.of(of, *inputs, *limits, progress=progress),
        unit,
        note,
        activity=activity,
        start=start,
        patience=patience,
        droppable=True,
    )


def _wait(job: Job[Any], seconds: float) -> bool:
    """Wait for a job for at most `seconds` and return whether it has ended.

    The wait ends with an exception if Streamlit has started a newer run of the script.
    """
    placeholder, end = st.empty(), time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and not job.wait(min(left, PATIENCE)):
        placeholder.empty()  # this call raises an exception if the script run is outdated
    return job.over


def _can_restart(job: Job[Any], start: bool) -> bool:
    failed = job.state == "failed" and not (start and isinstance(job.error, _PERMANENT))
    return failed or job.state == "cancelled"


def _cancelled_note(job: Job[Any], unit: str) -> str:
    """Return the note below the start button of a cancelled job; "" for a failed job."""
    if job.state != "cancelled":
        return ""
    reached = "" if job.progress is None else f" after {_count(*job.progress, unit)}"
    return f"Cancelled{reached}. No result was saved."


def _count(done: int, total: int, unit: str) -> str:
    if unit == "B":
        done, total, unit = round(done / 1e6), round(total / 1e6), "MB"
    return f"{done:,} of {total:,} {unit}".strip()


def _start_button(container: DeltaGenerator, key: str, label: str, note: str) -> bool:
    """Draw a job's start button and return whether it was clicked. A click removes the button."""
    with container:
        button, below = st.empty(), st.empty()
    if button.button(label, type="primary", key=f"{key} start"):
        button.empty()
        return True
    if note:
        below.caption(note)
    return False


@st.fragment(run_every=PATIENCE)
def _watch(job: Job[Any], key: str, unit: str, activity: str, describe: Callable[[], str]) -> None:
    """Update a job's progress every `PATIENCE` seconds until the job ends; then rerun the page."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        done, total = job.progress or (0, 0)
        status = _count(done, total, unit) if total else "" if activity else "Working …"
        status = ": ".join(filter(None, [activity, status]))
        if job.state == "waiting":
            status = "Waiting for other jobs on this machine …"
        text = "  \n".join(filter(None, [describe(), status]))
        st.progress(min(done / total, 1.0) if total else 0.0, text)
        if st.button("Cancel", key=f"{key} cancel"):
            job.cancel()
    if job.wait(0):
        st.rerun()
