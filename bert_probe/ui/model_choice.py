"""Choose a model: the fields of the form, and consent to open or convert a model that somebody else named.

Anyone can write a link. Opening the model that it names reads a folder on this machine or contacts the Hub.
The app does not ask for the built-in model, an open model, or a model that the user already agreed to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import streamlit as st

from bert_probe.errors import PickledWeightsError, ProbeError
from bert_probe.model.progress import Progress
from bert_probe.model.sources import BUILT_IN
from bert_probe.runtime import permissions, shared_cache, terminal
from bert_probe.ui import blocks, jobs, state

SUGGESTED = (
    BUILT_IN,
    "google-bert/bert-base-uncased",
    "google-bert/bert-base-cased",
    "FacebookAI/roberta-base",
    "distilbert/distilbert-base-uncased",
    "answerdotai/ModernBERT-base",
)
PRECISIONS = {
    "float32": "",
    "bfloat16": "values have 2 to 3 significant digits, so small differences are not meaningful.",
    "float16": "values have 3 to 4 significant digits, so small differences are not meaningful.",
    "float64": "values have 15 to 16 significant digits, and the model needs twice the memory of float32.",
}
"""Data type → note about the precision of its values."""

SILENCE: Final = 900.0
"""Time limit in seconds for a conversion that does not report progress."""

Model = tuple[str, str]
"""Name and revision of a model; "" means the built-in model and the newest revision."""

_AGREED: Final = "approved models"
"""Session key of the models that the user chose or agreed to."""
_MAX_NAME: Final = 4_096
"""Maximum length of a displayed name; paths and Hub IDs are shorter."""


def is_agreed(model: str, revision: str = "") -> bool:
    """Return whether a model can be opened without asking the user."""
    return (
        # no question is needed, because `open_model` rejects models that the server does not offer
        permissions.current().is_public
        or model.strip() in ("", BUILT_IN)
        or shared_cache.is_in_memory(model)
        or (model, revision) in _agreed()
        or shared_cache.cached_checkpoint(model, revision) is not None
    )


def agree(models: Iterable[Model]) -> None:
    """Remember for the rest of the session that the user agreed to these models."""
    _agreed().update(models)


def choose(new: Model, before: Model) -> None:
    """Record consent to open the model `new`, with which the user replaced the model `before` in a form.

    Changing only the revision of a model from a link is not consent to open the model.
    """
    if new[0] != before[0] or (new != before and is_agreed(*before)):
        agree([new])


def ask(
    models: Iterable[Model],
    key: str,
    title: str,
    about: str = "",
    on_open: Callable[[], None] | None = None,
    cancel: tuple[str, Callable[[], None]] | None = None,
) -> None:
    """Ask the user whether to open models; draw their names and a button that opens them.

    Args:
        models: names and revisions of the models.
        key: prefix of the widget keys.
        title: heading of the question.
        about: Markdown text that explains where the names come from.
        on_open: called when the user has agreed.
        cancel: label and callback of a second button, next to Open; None to omit the second button.
    """
    names = list(models)

    def on_click() -> None:
        agree(names)
        if on_open is not None:
            on_open()

    with st.container(border=True, key=f"{key}_confirm"):
        st.header(title, anchor=False)
        st.text("\n".join(sorted({_display_name(*model) for model in names})))
        if about:
            st.caption(about)
        st.caption(
            "If a name is a folder on this machine, the model is read from this folder. Otherwise, the "
            "model is downloaded from the Hugging Face Hub. No model has been opened yet."
        )
        with st.container(horizontal=True):
            st.button("Open", type="primary", on_click=on_click, key=f"{key}_agree")
            if cancel is not None:
                st.button(cancel[0], on_click=cancel[1], key=f"{key}_leave")


def _display_name(model: str, revision: str) -> str:
    """Return a model's name on one line, without characters that change the text direction."""
    name = f"{model or BUILT_IN}{f' at {revision}' if revision else ''}"
    ending = f"… ({len(name):,} characters)" if len(name) > _MAX_NAME else ""
    return terminal.visible(name[:_MAX_NAME]) + ending


def _agreed() -> set[Model]:
    state.preserve(_AGREED)
    agreed: set[Model] = st.session_state.setdefault(_AGREED, set())
    return agreed


def offer_conversion(
    error: PickledWeightsError, model: str, revision: str, key: str, on_converted: Callable[[str, str], None]
) -> None:
    """Draw the error about pickled weights, and a button that converts them to safetensors in a job.

    Args:
        error: the reason why the model cannot be opened.
        model, revision: name and revision of the model.
        key: prefix of the widget keys.
        on_converted: called with the name and revision of the converted model.
    """
    blocks.error_box(error)
    with st.container(border=True, key=f"{key}_convert"):
        st.subheader("Convert the weights", anchor=False)
        st.caption(
            "A separate process without network access reads only the weights in the file, and saves "
            "the weights as safetensors in a new folder. The original file is not changed. A file that "
            "tries to run code is rejected."
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
            # Import this module only for a conversion, because it imports torch, which takes seconds.
            from bert_probe.conversion.convert import convert

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
    """Return the path of a new folder, inside the current folder, for the converted model."""
    name = f"{Path(model).name or 'model'}-safetensors"
    candidates = (Path.cwd() / name, *(Path.cwd() / f"{name}-{number}" for number in range(2, 100)))
    return str(next((path for path in candidates if not path.exists()), candidates[0]))


def _open(model: str, revision: str, on_converted: Callable[[str, str], None]) -> None:
    agree([(model, revision)])
    on_converted(model, revision)
    st.rerun()


def draw_fields(model: str, revision: str, dtype: str) -> None:
    """Draw the fields for the name, the revision and the data type of the model, with initial values.

    On a public server, draw only a selector for the models of the server, and only if it offers several.

    Args:
        model, revision: initial values; "" is the built-in model or the newest revision.
        dtype: initial data type, a key of `PRECISIONS`.
    """
    allowed = permissions.current()
    name = model or BUILT_IN
    if allowed.is_public:
        if len(allowed.models) > 1:
            index = allowed.models.index(name) if name in allowed.models else 0
            help_text = "Models that are available on this server."
            st.selectbox("Model", allowed.models, index, key="draft_model", help=help_text)
        return
    models = list(dict.fromkeys([*SUGGESTED, name]))
    st.selectbox(
        "Model",
        models,
        models.index(name),
        key="draft_model",
        accept_new_options=True,
        help=f"{BUILT_IN} is built in and works offline. You can also enter the path of a local folder, or a "
        "Hub ID. A model from the Hub is downloaded once.",
    )
    st.text_input(
        "Revision",
        revision,
        key="draft_revision",
        placeholder="Newest",
        help="Branch, tag or commit on the Hub. Leave this field empty for the newest revision.",
    )
    dtypes = list(PRECISIONS)
    st.selectbox(
        "Data type",
        dtypes,
        dtypes.index(dtype),
        key="draft_dtype",
        help="Weights in bfloat16 or float16 need half the memory of float32, but have fewer significant "
        "digits. A model is opened only if enough memory is available.",
    )
