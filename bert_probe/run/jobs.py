"""Long work behind a page: a Start button, then progress with a Cancel button, then its result.

The work runs in a thread of its own, which must not draw. It belongs to one session and one cause: when the
inputs change or the session's browser is gone, it ends at its next report.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from typing import Any, Literal, TypeAlias, TypeVar, cast

import streamlit as st
from streamlit import runtime
from streamlit.runtime.scriptrunner import get_script_run_ctx

T = TypeVar("T")

Report: TypeAlias = Callable[[int, int], None]
"""Called by the work with how much is done and how much there is; raises `Cancelled`."""

KEPT = 4
"""Jobs that a session holds at most, running or done; the one longest unasked for goes first."""
AT_ONCE = 2
"""Jobs of all sessions that compute at once, which bounds memory; others wait."""
PATIENCE = 0.3
"""Seconds between looks at a running job. One that is done within the first is never seen running."""
GRACE = 20.0
"""Seconds without a browser after which a session counts as ended: a connection may break and come back."""

_JOBS = "jobs"
_slots = threading.BoundedSemaphore(AT_ONCE)


class Cancelled(Exception):  # noqa: N818 - a wish, no error
    """The reader does not want this work any more. Raised by `Report`; the work lets it through."""


class Job:
    """Work in a thread of its own, and how far it is.

    Attributes:
        cause: all inputs of the work.
        state: "waiting" for a slot, "running", "done", "failed" or "cancelled"; the last three are final.
        progress: done and total of the last report, or None.
        result, error: what came out, in "done" and "failed".
    """

    def __init__(self, cause: Hashable, work: Callable[[Report], Any], alive: Callable[[], bool]) -> None:
        """Start the work; it goes on while ``alive`` says that somebody waits for it."""
        self.cause = cause
        self.state: Literal["waiting", "running", "done", "failed", "cancelled"] = "waiting"
        self.progress: tuple[int, int] | None = None
        self.result: Any = None
        self.error: BaseException | None = None
        self._alive, self._seen = alive, time.monotonic()
        self._lock, self._over = threading.Lock(), threading.Event()
        threading.Thread(target=self._run, args=(work,), name="bert-probe job", daemon=True).start()

    @property
    def over(self) -> bool:
        """Nothing more will come of it."""
        return self._over.is_set()

    def wait(self, seconds: float) -> bool:
        """Until it is over, or so long; whether it is over."""
        return self._over.wait(seconds)

    def cancel(self) -> None:
        """Give it up now; its thread ends at the next report."""
        self._end("cancelled")

    def _run(self, work: Callable[[Report], Any]) -> None:
        try:
            while not _slots.acquire(timeout=PATIENCE):
                self._check()
            try:
                self._begin()
                self._end("done", result=work(self._report))
            finally:
                _slots.release()
        except Cancelled:
            self._end("cancelled")
        except BaseException as error:  # handed to the page, which raises it
            self._end("failed", error=error)

    def _begin(self) -> None:
        self._check()
        with self._lock:
            if not self.over:
                self.state = "running"

    def _report(self, done: int, total: int) -> None:
        self._check()
        self.progress = done, total

    def _check(self) -> None:
        now = time.monotonic()
        if self._alive():
            self._seen = now
        if self.over or now - self._seen > GRACE:
            raise Cancelled

    def _end(
        self,
        state: Literal["done", "failed", "cancelled"],
        result: Any = None,
        error: BaseException | None = None,
    ) -> None:
        """The first end counts: what a cancelled job still brings is dropped."""
        with self._lock:
            if not self.over:
                self.state, self.result, self.error = state, result, error
                self._over.set()


def run(
    key: str, cause: Hashable, label: str, work: Callable[[Report], T], unit: str = "", note: str = ""
) -> T | None:
    """The result of ``work`` for this ``cause``, or None while there is none.

    Until it is started a button with ``label`` is drawn, with ``note`` beneath it; while it runs, its
    progress and a Cancel button. The page is run again when it is over.

    Args:
        key: names the job in its session; a page may have several.
        cause: all inputs of the work. A job with another cause is given up, its result dropped.
        work: runs in a thread that must not draw; reports often, as it can be stopped only then.
        unit: what is counted, for "24 of 72 heads".

    Raises:
        ProbeError: what the work raised, on every run until it is started again or the cause changes.
    """
    held = _held()
    job = held.pop(key, None)
    if job is not None and job.cause != cause:
        job.cancel()
        job = None
    place = st.container()
    idle = job is None or job.state in ("failed", "cancelled")
    started = idle and _start_button(place, key, label, note, job)
    if started:
        job = Job(cause, work, _alive())
    if job is None:
        return None
    held[key] = job  # the last one asked for stands last
    while len(held) > KEPT:
        held.pop(next(iter(held))).cancel()
    if not job.over and not job.wait(PATIENCE):
        with place:
            _watch(job, key, unit)
    if job.state == "failed":
        if started:
            st.rerun()  # with the button, to try again
        assert job.error is not None
        raise job.error
    return cast(T, job.result) if job.state == "done" else None


def _held() -> dict[str, Job]:
    held: dict[str, Job] = st.session_state.setdefault(_JOBS, {})
    return held


def _start_button(place: Any, key: str, label: str, note: str, last: Job | None) -> bool:
    """Whether the work is to start now; the button is gone then."""
    with place:
        button, below = st.empty(), st.empty()
    if button.button(label, type="primary", key=f"{key} start"):
        button.empty()
        return True
    if last is not None and last.state == "cancelled":
        reached = "" if last.progress is None else f" after {last.progress[0]:,} of {last.progress[1]:,}"
        below.caption(f"Cancelled{reached}. Nothing was kept.")
    elif note:
        below.caption(note)
    return False


@st.fragment(run_every=PATIENCE)
def _watch(job: Job, key: str, unit: str) -> None:
    """Progress, drawn again and again without the rest of the page, until the job is over."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        done, total = job.progress or (0, 0)
        said = f"{done:,} of {total:,} {unit}".strip() if total else "Starting …"
        if job.state == "waiting":
            said = "Waiting for other work on this machine …"
        st.progress(min(done / total, 1.0) if total else 0.0, said)
        if st.button("Cancel", key=f"{key} cancel"):
            job.cancel()
    if job.over:
        st.rerun()


def _alive() -> Callable[[], bool]:
    """Whether this session's browser is there, as a function that threads may call."""
    context = get_script_run_ctx()
    session = "" if context is None else context.session_id
    return lambda: not runtime.exists() or runtime.get_instance().is_active_session(session)
