"""Where a taught model goes: into a folder, to the reader's own machine, or onto the workbench."""

from __future__ import annotations

from dataclasses import replace

import streamlit as st

from bert_probe.errors import ExportError, ProbeError
from bert_probe.model.memory import in_words
from bert_probe.runtime import shared_cache
from bert_probe.server import callbacks, paths
from bert_probe.server.downloads import Download
from bert_probe.ui import consent, state, workbench
from bert_probe.ui.train.running import TrainingOutcome

_PLACE, _REPLACE = "train_folder", "train_replace"
ANSWER = paths.page("answer")


def part(found: TrainingOutcome) -> None:
    """Draw where it may go: a folder of this machine, the reader's own machine, the workbench."""
    with st.container(border=True, key="save"):
        st.markdown("**Keep it**")
        state.hold(_PLACE)
        with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
            with st.container(width=460):
                place = st.text_input(
                    "Folder",
                    key=_PLACE,
                    placeholder="/home/me/models/topics",
                    help="On the machine that the app runs on. An ordinary Hugging Face folder is written.",
                    persist_state="session",
                ).strip()
            replaces = st.checkbox("Replace a model that is there", key=_REPLACE)
            wanted = st.button("Save")
        if wanted:
            _write(found, place, replaces)
        kept = (
            f"Saved in {state.plain(found.folder, 400)}, which every page can open."
            if found.folder
            else "Until it is saved, the model is only in memory. It is lost after this page is closed."
        )
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            st.caption(kept, width="content")
            about = "The workbench's model becomes this one, on every page."
            if st.button("Open it", help=about, on_click=_use, args=(found,)):
                with callbacks.to_the_end():
                    st.switch_page(ANSWER)
            st.link_button(
                "Download it",
                _address(found),
                icon=":material/download:",
                help=f"The same folder as a zip, about {in_words(found.taught.nbytes)}, made when you click.",
            )


def _write(found: TrainingOutcome, place: str, replaces: bool) -> None:
    try:
        if not place:
            raise ExportError("No folder is given. Write one, such as the one shown in gray.")
        folder = str(found.taught.save_model(place, replaces).absolute())
    except ProbeError as error:
        st.error(state.plain(str(error), 600))
        return
    found.folder = folder


def _address(found: TrainingOutcome) -> str:
    """Where the browser fetches it."""
    if found.download is None:
        found.download = Download(found.taught)
    return found.download.address


def ask(found: TrainingOutcome, text: str, pair: str | None) -> None:
    """Let the workbench hold the trained model and a text."""
    asked = replace(workbench.request(), a=text, b=pair or "")
    _open(found, replace(asked, relation="pair") if pair else asked)


def _use(found: TrainingOutcome) -> None:
    """Let the workbench hold the trained model, with the text that it has."""
    _open(found, workbench.request())


def _open(found: TrainingOutcome, asked: workbench.Request) -> None:
    model = _name(found)
    consent.agree([(model, "")])
    workbench.ask(replace(asked, model=model, revision=""))
    st.session_state["task"] = found.taught.task


def _name(found: TrainingOutcome) -> str:
    """By which the pages open the model: its folder, or the name that it is lent by."""
    if not found.folder:
        found.lent = shared_cache.lend(found.taught.checkpoint, found.lent)
    return found.folder or found.lent
