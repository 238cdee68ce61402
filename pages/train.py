"""Train: teach the model a task, and see what it learned."""

import streamlit as st

from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.server import callbacks
from bert_probe.ui import blocks, state, workbench
from bert_probe.ui.train import data, outcome, running, settings


def choices(checkpoint: Checkpoint) -> None:
    """What to learn from and how, and the button that begins it."""
    if running.said():
        st.warning(state.plain(running.said(), 1_000))
    given = data.part()
    if given is None:
        return
    try:
        planned = settings.part(checkpoint, given)
    except ProbeError as error:
        blocks.refusal(error, "Change the data or the settings; what you chose is still there.")
        return
    if st.button("Start training", type="primary"):
        with callbacks.to_the_end():
            running.start(given, planned)
        st.rerun()


def main() -> None:
    """The page."""
    blocks.heading(
        "Train",
        "Give texts with their right answers, and the model learns to give such answers; of plain texts, to "
        "guess masked words. A small head is put on top of it and, if you like, the model itself is changed. "
        "The one you began with stays as it is.",
    )
    checkpoint = workbench.checkpoint()
    if running.is_running():
        running.watch()
        return
    choices(checkpoint)
    found = running.outcome()
    if found is not None:
        outcome.part(found)


main()
