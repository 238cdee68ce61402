"""What training would update of the model, for its page of parameters."""

from __future__ import annotations

import streamlit as st

from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import FILLING, Checkpoint
from bert_probe.training.models import TASKS
from bert_probe.training.trainable_parameters import TrainableParameters, counts, updated
from bert_probe.ui import state
from bert_probe.ui.tasks import TASKS as NAMES
from bert_probe.ui.train import settings

_MOST_LABELS = 1_000


def part(checkpoint: Checkpoint) -> TrainableParameters | None:
    """Let the reader choose; None while nothing is to be marked, or nothing can be trained."""
    wanted = state.switch(
        "training",
        "Mark what training updates",
        False,
        "The model with a head for a task, and which of its parameters a training changes: those of the page "
        "Train.",
    )
    if not wanted:
        return None
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        task = state.pick("head_for", "Head", {one: NAMES[one] for one in TASKS}, TASKS[0], "What is taught.")
        labels = 2
        if task != FILLING:
            with st.container(width=150):
                labels = settings.number("head_labels", "Labels of the head", 2, 1, _MOST_LABELS)
    try:
        chosen = settings.update([*counts(checkpoint, task, labels)])
        return updated(checkpoint, task, chosen, labels)
    except UnavailableError as error:
        st.info(state.plain(str(error), 600))
        return None
