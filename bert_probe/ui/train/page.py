"""The Train page: fine-tuning the model on labeled texts, tagged words or plain text."""

from __future__ import annotations

import streamlit as st

from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.server import callbacks
from bert_probe.ui import blocks, state, workbench
from bert_probe.ui.train import data, outcome, running


def render() -> None:
    """Draw the page."""
    blocks.heading(
        "Train",
        "Fine-tune the model on labeled texts, tagged words, or plain text (masked-language modeling). The "
        "original checkpoint is not changed.",
    )
    checkpoint = workbench.checkpoint()
    if running.is_running():
        running.draw_progress()
        return
    _choose(checkpoint)
    last = running.last_outcome()
    if last is not None:
        outcome.part(last)


def _choose(checkpoint: Checkpoint) -> None:
    """Draw the data, the settings and the button that starts the training."""
    if running.failure():
        st.warning(state.escape(running.failure(), 1_000))
    training_data = data.choose_data()
    if training_data is None:
        return
    try:
        plan = data.choose_plan(checkpoint, training_data)
    except ProbeError as error:
        blocks.error_box(error, "Change the data or the settings. Your other choices are unchanged.")
        return
    if st.button("Start training", type="primary"):
        with callbacks.uninterrupted():
            running.start(training_data, plan)
        st.rerun()
