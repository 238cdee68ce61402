"""Texts in one batch on the page of tokens: what the model is given, and that padding changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st

from bert_probe.analyses.vectors.padding import COLUMNS, PaddingEffect, PaddingEffectResult
from bert_probe.errors import ProbeError
from bert_probe.model.trace import Trace
from bert_probe.runtime import shared_cache
from bert_probe.text.sentence_files import lines
from bert_probe.ui import blocks, state, url_texts, workbench
from bert_probe.ui.export import export
from bert_probe.views.text import shown

_KEY = "batch"
_MORE = "A short one.\nOne word\nAnd this one is longer than those."
"""Texts that are shown with the reader's own until these are changed."""
_MOST = 20
_SHADE = "background-color: rgba(138,135,151,0.28); color: rgba(138,135,151,1)"
"""Of padding, on both themes."""
_CELLS = {
    "token": "Tokens",
    "input_ids": "Ids",
    "token_type_ids": "Segments",
    "attention_mask": "Attention mask",
}


def in_one_batch(study: workbench.TracedRequest) -> None:
    """The section."""
    st.header("In one batch", anchor=False)
    st.markdown(
        ":gray[Models read many texts at once. All of a batch must be equally long, so shorter ones are "
        "filled up with padding, and a mask tells the model where that is.]"
    )
    if not state.switch(
        "padding", "Read my text with others", False, "Runs the model three times on all texts of the batch."
    ):
        return
    if _KEY not in st.session_state:
        held = url_texts.recall(_KEY)
        st.session_state[_KEY] = _MORE if held is None else held
    more = st.text_area(
        "More texts for the batch, one a line",
        key=_KEY,
        height=100,
        persist_state="session",
        help="They are read together with your text. Leave it empty to see your own texts alone.",
    )
    url_texts.remember(_KEY, None if more == _MORE else more)
    try:
        with st.spinner("Reading the batch …", show_time=False):
            found = _padded(study, lines(more))
    except ProbeError as error:
        with st.container(border=True, key="batch_refusal"):
            st.text(str(error))
        return
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        cells = {name: label for name, label in _CELLS.items() if name == "token" or name in found.arrays}
        cell = state.pick("padding_cells", "Cells", cells, "token")
        st.space("stretch")
        with st.container(horizontal=True, width="content", gap="small"):  # which go below as one
            export(found.showing(show="differences"), "padding-differences", label="Export differences")
            export(found, "padding-inputs", label="Export batch")
    st.dataframe(
        _grid(found, cell),
        width="stretch",
        height=min(38 + 35 * len(found.encodings), 640),
        alt="The batch: a row for each text, a column for each place, padding shaded",
    )
    _check(found)


def _padded(study: workbench.TracedRequest, more: Sequence[str]) -> PaddingEffectResult:
    """The reader's own texts and more in one batch.

    Raises:
        ProbeError: a text that cannot be read, or too many.
    """
    own: list[Trace] = [trace for trace in (study.a, study.b) if trace is not None]
    kept = shared_cache.traces(
        study.checkpoint, [(text, None) for text in more[:_MOST]], study.request.truncate
    )
    if len(more) > _MOST:
        st.caption(f":orange[{len(more):,} lines; the first {_MOST} are read.]")
    found: PaddingEffectResult = shared_cache.answers.of(PaddingEffect().of, (*own, *kept))
    return found


def _grid(found: PaddingEffectResult, cell: str) -> Any:
    """A row for each text, padding shaded."""
    rows = [
        [
            shown(found.token(text, place)) if cell == "token" else str(found.arrays[cell][text, place])
            for place in range(found.length)
        ]
        for text in range(len(found.encodings))
    ]
    names = [f"{number + 1} · {shown(encoding.text)[:24]}" for number, encoding in enumerate(found.encodings)]
    frame = pd.DataFrame(rows, index=pd.Index(names, name="text"), columns=[*map(str, range(found.length))])
    shades = pd.DataFrame(found.padding, index=frame.index, columns=frame.columns)
    return frame.style.apply(lambda _: shades.map(lambda one: _SHADE if one else ""), axis=None)


def _check(found: PaddingEffectResult) -> None:
    """Whether padding changed anything, and what it would change without the mask."""
    if found.changes_nothing:
        verdict = f"padding changes nothing: largest difference {found.difference:.1e}"
        explained = f", where rounding explains {found.allowed:.0e}"
    else:
        verdict = f"padding changes this model's vectors by up to {found.difference:.1e}"
        explained = (
            f", more than the {found.allowed:.0e} that rounding explains; so texts of different lengths are "
            "never read together here"
        )
    st.markdown(
        f"**Check:** all vectors of all layers against each text read by itself: {verdict}{explained}. Were "
        f"the attention mask left out, they would differ by up to **{found.without_mask:.2g}**."
    )
    blocks.caveat(
        f"{found.filled:.0%} of the {found.length * len(found.encodings):,} places are padding "
        f"({state.plain(found.filling)}). The mask is added to the scores as −∞ where a key is padding, so "
        "nothing attends to it; what the model computes at padding itself is thrown away. Names in files: "
        f"{', '.join(COLUMNS.values())}."
    )
