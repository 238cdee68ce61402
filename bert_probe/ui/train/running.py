"""A training while it runs: what it reports is drawn as it comes, and Cancel keeps the best so far."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from functools import partial

import streamlit as st

from bert_probe.analyses.outputs.evaluate import Evaluate, EvaluateResult
from bert_probe.analyses.outputs.evaluate_masks import EvaluateMasks, EvaluateMasksResult
from bert_probe.errors import EmptyTextError, ProbeError
from bert_probe.model.progress import Cancelled, Progress
from bert_probe.runtime.jobs import Job
from bert_probe.server import sessions
from bert_probe.server.downloads import Download
from bert_probe.training.train import TrainingPlan
from bert_probe.training.training_loop import EvaluationPoint as Reached
from bert_probe.training.training_result import TrainingResult
from bert_probe.ui import figures, jobs, state
from bert_probe.ui.train import pictures
from bert_probe.ui.train.data import TrainingData, is_plain

_RUN, _OUTCOME, _SAID = "train_run", "train_outcome", "train_said"


@dataclass(eq=False)
class TrainingOutcome:
    """What came of a training.

    Attributes:
        data: as the reader gave them.
        evaluation: of the held-out texts; None where there are none, or none with labels.
        guessed: what is masked in held-out lines; None where there are none.
        folder: where the model is saved; "" where it is in memory only.
        lent: the name by which pages open it from there; "" while none does.
        download: where its browser fetches it; None while nobody has looked at it.
    """

    data: TrainingData
    taught: TrainingResult
    evaluation: EvaluateResult | None
    guessed: EvaluateMasksResult | None = None
    folder: str = ""
    lent: str = ""
    download: Download | None = None


@dataclass(eq=False)
class TrainingRun:
    """A training that somebody watches.

    Attributes:
        data: what to learn from; plan: what is done.
        reached: every evaluation so far.
        stop: set to end it at the next step, with the best so far.
        began: when, by the monotonic clock.
    """

    data: TrainingData
    plan: TrainingPlan
    reached: list[Reached] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    began: float = field(default_factory=time.monotonic)

    def work(self, report: Progress) -> TrainingOutcome:
        """In a thread of its own."""

        def told(done: int, total: int) -> None:
            if self.stop.is_set():
                raise Cancelled
            report(done, total)

        taught = self.plan.carried_out(told, self.reached.append)
        return TrainingOutcome(self.data, taught, _evaluated(taught), _guessed(taught))

    def left(self, done: int, total: int) -> str:
        """About how long it will take, in words; "" while nobody can tell."""
        spent = time.monotonic() - self.began
        if not 0 < done < total or spent < 1:
            return ""
        seconds = spent * (total - done) / done
        return f"about {seconds:.0f} s left" if seconds < 90 else f"about {seconds / 60:.0f} minutes left"


def _evaluated(taught: TrainingResult) -> EvaluateResult | None:
    """Of the held-out texts, beside baselines that learned from the same rows."""
    if taught.held_out is None or is_plain(taught.held_out):
        return None
    return Evaluate().of(taught.checkpoint, taught.held_out, taught.data, truncate=True)


def _guessed(taught: TrainingResult) -> EvaluateMasksResult | None:
    """Of held-out lines, masked once more; None also where they have no word that can be masked."""
    if taught.held_out is None or not is_plain(taught.held_out):
        return None
    try:
        return EvaluateMasks().of(taught.checkpoint, taught.held_out, truncate=True)
    except EmptyTextError:
        return None


def start(data: TrainingData, plan: TrainingPlan) -> None:
    """Begin; what an earlier one gave is let go."""
    run = TrainingRun(data, plan)
    job: Job[TrainingOutcome] = Job(run, run.work, partial(sessions.is_here, sessions.current()))
    st.session_state[_RUN] = (run, job)
    st.session_state.pop(_OUTCOME, None)
    st.session_state.pop(_SAID, None)
    state.hold(_RUN, _OUTCOME, _SAID)


def is_running() -> bool:
    """Whether there is a training that is not over; of one that is, the outcome is kept, or what it said."""
    held: tuple[TrainingRun, Job[TrainingOutcome]] | None = st.session_state.get(_RUN)
    if held is None:
        return False
    _, job = held
    if not job.wait(jobs.PATIENCE):
        return True
    del st.session_state[_RUN]
    if job.state == "cancelled":
        st.session_state[_SAID] = "Cancelled before anything was evaluated, so nothing was kept."
        return False
    try:
        st.session_state[_OUTCOME] = job.value()
    except ProbeError as error:
        st.session_state[_SAID] = str(error)
    return False


def outcome() -> TrainingOutcome | None:
    """What the last training gave."""
    found: TrainingOutcome | None = st.session_state.get(_OUTCOME)
    return found


def said() -> str:
    """What is to be said of a training that gave nothing."""
    told: str = st.session_state.get(_SAID, "")
    return told


def watch() -> None:
    """Draw the one that runs."""
    run, job = st.session_state[_RUN]
    st.header("Training", anchor=False)
    st.caption(state.plain(str(run.plan), 1_000))
    _watch(run, job)


@st.fragment(run_every=jobs.PATIENCE)
def _watch(run: TrainingRun, job: Job[TrainingOutcome]) -> None:
    done, total = job.progress or (0, 0)
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.progress(min(done / total, 1.0) if total else 0.0, _progress(run, job, done, total))
        if st.button("Cancel", help="Ends it now. The best model so far is kept, if one was evaluated."):
            run.stop.set()
    if run.reached:
        st.plotly_chart(
            pictures.course(run.reached, run.plan.material.lesson.measure, run.plan.pace.steps),
            width="stretch",
            config=figures.CONFIG,
            key=f"course {len(run.reached)}",
            alt="Loss and held-out measure by step",
        )
    else:
        st.caption("The first evaluation comes after a sixth of the steps.")
    if job.wait(0):
        st.rerun()


def _progress(run: TrainingRun, job: Job[TrainingOutcome], done: int, total: int) -> str:
    if run.stop.is_set():
        return "Ending …"
    if job.state == "waiting" or not total:
        return "Waiting for other work on this machine …" if job.state == "waiting" else "Beginning …"
    return " · ".join(filter(None, [f"{done / total:.0%}", run.left(done, total)]))
