"""The offer to convert a model that cannot be opened because its weights are pickled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import streamlit as st

from bert_probe.errors import PickledWeightsError, ProbeError
from bert_probe.model.progress import Progress
from bert_probe.ui import blocks, consent, jobs, state

SILENCE = 900.0
"""Seconds without progress after which a conversion fails."""


def offer(
    error: PickledWeightsError, model: str, revision: str, key: str, on_converted: Callable[[str, str], None]
) -> None:
    """Draw the error and a button that converts the model as a job.

    Args:
        error: the reason why the model cannot be opened.
        model, revision: the model.
        key: prefix of the widget keys.
        on_converted: called with the name and revision of the converted model.
    """
    blocks.error_box(error)
    with st.container(border=True, key=f"{key}_convert"):
        st.subheader("Convert the weights", anchor=False)
        st.caption(
            "A separate process without network access reads only the numbers of the file, and saves them as "
            "safetensors in a new folder. The original is not changed. A file that tries to run code is "
            "rejected."
        )
        if error.converted_revision is not None:
            reference = error.converted_revision
            if st.button(f"Open the copy on the Hub ({reference})", key=f"{key}_convert_hub"):
                _open(model, reference, on_converted)
        folder = st.text_input(
            "Folder of the converted model",
            value=_default_folder(model),
            key=f"{key}_convert_folder",
            help="A new folder on the machine that runs the app.",
        ).strip()

        def work(progress: Progress) -> str:
            from bert_probe.conversion.convert import convert  # slow: imports torch

            return str(convert(model, folder, revision or None, progress=progress).folder.absolute())

        try:
            converted = jobs.run(
                f"{key} conversion",
                ("conversion", model, revision, folder),
                "Convert and open",
                work,
                "B",
                activity="Converting",
                silence=SILENCE,
            )
        except ProbeError as failure:
            st.error(state.escape(str(failure)))
        else:
            if converted is not None:
                _open(converted, "", on_converted)


def _default_folder(model: str) -> str:
    """Return a path in the current folder that does not exist yet."""
    name = f"{Path(model).name or 'model'}-safetensors"
    candidates = (Path.cwd() / name, *(Path.cwd() / f"{name}-{number}" for number in range(2, 100)))
    return str(next((path for path in candidates if not path.exists()), candidates[0]))


def _open(model: str, revision: str, on_converted: Callable[[str, str], None]) -> None:
    consent.agree([(model, revision)])
    on_converted(model, revision)
    st.rerun()
