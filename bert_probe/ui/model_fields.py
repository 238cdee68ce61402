"""Fields of the form that choose the model, its revision and its data type."""

from __future__ import annotations

import streamlit as st

from bert_probe.model.sources import BUILT_IN
from bert_probe.runtime import permissions

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
"""Data type → note about the precision of its numbers."""


def draw(model: str, revision: str, dtype: str) -> None:
    """Draw the fields with these values; "" is the built-in model or the newest revision.

    On a public server, only a selector for its models is drawn, and only if it has several models.
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
        help="Weights in bfloat16 or float16 need half the memory of float32, but numbers have fewer "
        "significant digits. A model is opened only if enough memory is available.",
    )
