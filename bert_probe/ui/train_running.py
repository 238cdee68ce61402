"""Training runs: the job that trains a model, and widgets that show its progress and evaluations."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.outputs.evaluate import Evaluate, EvaluateResult
from bert_probe.analyses.outputs.fill_mask import EvaluateMasks, EvaluateMasksResult
from bert_probe.errors import EmptyTextError, ProbeError
from bert_probe.model.progress import Cancelled, Progress
from bert_probe.runtime.jobs import Job
from bert_probe.server import sessions
from bert_probe.server.sessions import Download
from bert_probe.text.similarity_examples import SimilarityExamples
from bert_probe.training.train import TrainingPlan
from bert_probe.training.training_loop import EvaluationPoint
from bert_probe.training.training_result import TrainingResult
from bert_probe.ui import blocks, figures, jobs, state
from bert_probe.ui.figures import ACCENT, GRAY, SECOND
from bert_probe.ui.train_data import TrainingData, is_plain

_RUN, _OUTCOME, _FAILURE = "train_run", "train_outcome", "train_error"


@dataclass(eq=False)
class TrainingOutcome:
    """The result of a training run, with its evaluation on held-out data.

    Attributes:
        evaluation: evaluation on held-out labeled texts, if any.
        mask_evaluation: evaluation on masked tokens of held-out lines, if any.
        original: name and revision of the model before training.
        folder: folder in which the model was saved; "" if it is in memory only.
        lent: name under which the model is registered in memory; "" until a page uses the model.
        download: download of the model; None until the download button is drawn.
    """

    data: TrainingData
    training: TrainingResult
    evaluation: EvaluateResult | None
    mask_evaluation: EvaluateMasksResult | None = None
    original: tuple[str, str] = ("", "")
    folder: str = ""
    lent: str = ""
    download: Download | None = None


@dataclass(eq=False)
class TrainingRun:
    """A training run in progress.

    Attributes:
        original: name and revision of the model before training.
        history: all evaluations so far.
        stop: event that ends the training at the next step; the best checkpoint is kept.
        started: time of the start, from `time.monotonic`.
    """

    data: TrainingData
    plan: TrainingPlan
    original: tuple[str, str] = ("", "")
    history: list[EvaluationPoint] = field(default_factory=list)
    stop: threading.Event = field(default_factory=threading.Event)
    started: float = field(default_factory=time.monotonic)

    def work(self, progress: Progress) -> TrainingOutcome:
        """Train and evaluate the model. This method runs in the thread of the job."""

        def report(done: int, total: int) -> None:
            if self.stop.is_set():
                raise Cancelled
            progress(done, total)

        training = self.plan.run(report, self.history.append)
        evaluations = _evaluate(training), _evaluate_masks(training)
        return TrainingOutcome(self.data, training, *evaluations, self.original)

    def time_left(self, done: int, total: int) -> str:
        """Return an estimate of the remaining time as text, or "" in the first second.

        Args:
            done: number of finished steps.
            total: number of all steps.
        """
        elapsed = time.monotonic() - self.started
        if not 0 < done < total or elapsed < 1:
            return ""
        seconds = elapsed * (total - done) / done
        return f"about {seconds:.0f} s left" if seconds < 90 else f"about {seconds / 60:.0f} minutes left"


def _evaluate(training: TrainingResult) -> EvaluateResult | None:
    """Evaluate the model and the baselines on held-out labeled texts; return None without such texts."""
    held_out = training.held_out
    if held_out is None or isinstance(held_out, SimilarityExamples) or is_plain(held_out):
        return None
    return Evaluate().of(training.checkpoint, training.held_out, training.data, truncate=True)


def _evaluate_masks(training: TrainingResult) -> EvaluateMasksResult | None:
    """Evaluate the model on masked tokens of held-out lines; return None if there are no words to mask."""
    if training.held_out is None or not is_plain(training.held_out):
        return None
    try:
        return EvaluateMasks().of(training.checkpoint, training.held_out, truncate=True)
    except EmptyTextError:
        return None


def start(data: TrainingData, plan: TrainingPlan, original: tuple[str, str]) -> None:
    """Start a training run and delete the outcome of the previous run.

    Args:
        original: name and revision of the model before training.
    """
    run = TrainingRun(data, plan, original)
    job: Job[TrainingOutcome] = Job(run, run.work, partial(sessions.is_connected, sessions.current()))
    st.session_state[_RUN] = (run, job)
    st.session_state.pop(_OUTCOME, None)
    st.session_state.pop(_FAILURE, None)
    state.preserve(_RUN, _OUTCOME, _FAILURE)


def is_running() -> bool:
    """Return whether a training run is in progress. If the run has just ended, store its outcome or error."""
    running: tuple[TrainingRun, Job[TrainingOutcome]] | None = st.session_state.get(_RUN)
    if running is None:
        return False
    _, job = running
    if not job.wait(jobs.PATIENCE):
        return True
    del st.session_state[_RUN]
    if job.state == "cancelled":
        st.session_state[_FAILURE] = (
            "Training was cancelled before the first evaluation, so no checkpoint was kept."
        )
        return False
    try:
        st.session_state[_OUTCOME] = job.value()
    except ProbeError as error:
        st.session_state[_FAILURE] = str(error)
    return False


def last_outcome() -> TrainingOutcome | None:
    """Return the outcome of the last training run, if it succeeded."""
    outcome: TrainingOutcome | None = st.session_state.get(_OUTCOME)
    return outcome


def failure() -> str:
    """Return the error message of the last training run, or "" if it did not fail."""
    message: str = st.session_state.get(_FAILURE, "")
    return message


def draw_progress() -> None:
    """Draw the plan, the progress and the loss curve of the training run in progress."""
    run, job = st.session_state[_RUN]
    st.header("Training", anchor=False)
    st.caption(state.escape(str(run.plan), 1_000))
    _watch(run, job)


@st.fragment(run_every=jobs.PATIENCE)
def _watch(run: TrainingRun, job: Job[TrainingOutcome]) -> None:
    done, total = job.progress or (0, 0)
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.progress(min(done / total, 1.0) if total else 0.0, _status(run, job, done, total))
        if st.button(
            "Cancel",
            help="Stop the training, and keep the best checkpoint evaluated so far, if there is one.",
        ):
            run.stop.set()
    if run.history:
        blocks.chart(
            training_curve(run.history, run.plan.material.objective.measure, run.plan.pace.steps),
            "Loss and held-out metric by step",
            key=f"course {len(run.history)}",
        )
    else:
        st.caption("The first evaluation takes place after a sixth of the steps.")
    if job.wait(0):
        st.rerun()


def _status(run: TrainingRun, job: Job[TrainingOutcome], done: int, total: int) -> str:
    if run.stop.is_set():
        return "Stopping …"
    if job.state == "waiting":
        return "Waiting for other work on this machine …"
    if not total:
        return "Starting …"
    return " · ".join(filter(None, [f"{done / total:.0%}", run.time_left(done, total)]))


def training_curve(
    history: Sequence[EvaluationPoint], measure: str, steps: int, best: EvaluationPoint | None = None
) -> Any:
    """Return a figure of the loss and the held-out metric by training step, on two y axes.

    Args:
        steps: total number of training steps, the end of the x axis.
        best: evaluation of the best checkpoint, to mark in the figure.
    """
    figure = go.Figure()
    # A head on the sentence vector has no training steps; each point is one strength of the L2 penalty.
    is_path = history[0].penalty is not None
    x = [point.penalty if is_path else point.step for point in history]
    unit = "C =" if is_path else "step"
    curves = (
        ("loss", [point.loss for point in history], {"color": GRAY, "width": 2}, "y"),
        (
            "held-out loss",
            [point.held_out_loss for point in history],
            {"color": SECOND, "width": 2, "dash": "dot"},
            "y",
        ),
        (f"held-out {measure}", [point.measure for point in history], {"color": ACCENT, "width": 3}, "y2"),
    )
    for name, values, line, axis in curves:
        figure.add_scatter(
            x=x,
            y=values,
            mode="lines+markers",
            name=name,
            line=line,
            yaxis=axis,
            hovertemplate=f"{unit} %{{x}}: %{{y:.4f}}<extra>{name}</extra>",
        )
    if best is not None:
        figure.add_scatter(
            x=[best.penalty if is_path else best.step],
            y=[best.measure],
            mode="markers",
            marker={"color": ACCENT, "size": 14, "symbol": "circle-open", "line": {"width": 2}},
            yaxis="y2",
            name="best checkpoint",
            hovertemplate=f"best checkpoint: {unit} %{{x}}<extra></extra>",
        )
    figures.apply_layout(
        figure,
        280,
        legend="below",
        xaxis={"title": "C (a higher value means a weaker penalty)", "type": "log"}
        if is_path
        else {"title": "step", "range": [0, steps * 1.02], "zeroline": False},
        yaxis={"title": "loss", "rangemode": "tozero", "zeroline": False},
        yaxis2={
            "title": measure,
            "overlaying": "y",
            "side": "right",
            "showgrid": False,
            "zeroline": False,
            "tickmode": "auto",
        }
        | ({"range": [0, 1.02]} if measure in ("accuracy", "micro F1") else {}),
        hovermode="x unified",
    )
    return figure
