"""The view "Contacts" of the Attention page: predicted contacts, or corrected attention, between residues."""

from __future__ import annotations

import streamlit as st

from bert_probe.analyses.attention.contacts import (
    ATTENTION,
    NOT_A_PREDICTION,
    PREDICTION,
    TOPS,
    Contacts,
    ContactsResult,
    predicts_contacts,
)
from bert_probe.model.trace import Trace
from bert_probe.ui import blocks, jobs, state
from bert_probe.ui.components import heatmap
from bert_probe.ui.export import export
from bert_probe.views.contributions import contacts_heatmap, contacts_title

_METHODS = {PREDICTION: "Prediction", ATTENTION: "Attention"}
_MAX_SEPARATION = 30


def draw_contacts(trace: Trace) -> None:
    """Draw the contacts of a sequence as a heatmap, with a table of the pairs with the largest values."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="small", key="contact_controls"):
        question = _choose(trace)
        corner = st.container(width="content")
    result = jobs.answer(
        "contacts",
        question.of,
        trace,
        label="Compute the contacts",
        unit="layers",
        note="This method combines the attention of all heads.",
        start=True,
    )
    if result is None:
        return
    with corner:
        export(result, "contacts")
    with st.container(key="judged"):
        left, right = st.columns([3, 2], gap="large")
    with left:
        cell = heatmap(contacts_heatmap(result), key="contacts")
    with right:
        _table(result)
        if cell is not None:
            _describe_pair(result, cell.row, cell.column)
    _caveats(result)


def _choose(trace: Trace) -> Contacts:
    """Draw the controls, and return the question with the selected options."""
    method = ATTENTION
    if predicts_contacts(trace):
        method = state.segmented_control("contact_method", "Method", _METHODS, PREDICTION)
    layer, head = "", "mean"
    if method == ATTENTION:
        layers = {
            "": "All layers",
            **{str(number): f"Layer {number}" for number in range(1, trace.layers + 1)},
        }
        with st.container(width=150):
            layer = state.selectbox("contact_layer", "Layer", layers, "", show_label=True)
        if layer:
            heads = {
                "mean": "Mean of all",
                **{str(number): str(number) for number in range(1, trace.heads + 1)},
            }
            with st.container(width=150):
                head = state.selectbox("contact_head", "Head", heads, "mean", show_label=True)
    separations = {str(number): f"{number} or more" for number in range(1, _MAX_SEPARATION + 1)}
    with st.container(width=150):
        separation = state.selectbox("contact_separation", "Separation", separations, "6", show_label=True)
    with st.container(width=110):
        top = state.selectbox("contact_top", "Pairs", {name: name for name in TOPS}, "L", show_label=True)
    return Contacts(
        method,
        int(layer) - 1 if layer else None,
        "mean" if head == "mean" else int(head) - 1,
        int(separation),
        top,
    )


def _table(result: ContactsResult) -> None:
    """Draw the pairs of residues that are at least the minimum separation apart in the sequence."""
    frame, question = result.frame(), result.question
    st.header(f"Pairs that are at least {question.separation} residues apart", anchor=False)
    if frame.empty:
        blocks.caveat("No two residues of this sequence are that far apart. Choose a smaller separation.")
        return
    value = frame.columns[-1]
    frame.insert(0, "i", frame.pop("token_i") + frame.pop("residue_i").astype(str))
    frame.insert(1, "j", frame.pop("token_j") + frame.pop("residue_j").astype(str))
    blocks.table(
        frame,
        f"{contacts_title(result)}: pairs with the largest values",
        max_height=460,
        column_config={value: st.column_config.NumberColumn(result.value_name, format="%.4f")},
    )


def _describe_pair(result: ContactsResult, row: int, column: int) -> None:
    first, second = (f"{result.residues[index].display}{result.numbers[index]}" for index in (row, column))
    st.markdown(
        f"**{state.escape(first)} – {state.escape(second)}**: {result.value_name} "
        f"{result.values[row, column]:.4f}, sequence separation "
        f"{abs(result.numbers[row] - result.numbers[column])}."
    )


def _caveats(result: ContactsResult) -> None:
    if result.is_prediction:
        blocks.caveat(
            "The probabilities come from the model's contact head, a logistic regression on the "
            "attention of all heads (Rao et al. 2020). The head was fitted to pairs at least 6 residues "
            "apart; a contact is a pair with less than 8 Å between the C-beta atoms. Pairs that are "
            "closer in the sequence are always close in space."
        )
    else:
        blocks.caveat(
            "These values are not a contact prediction. The attention A of each head is symmetrized, S "
            "= A + Aᵀ, and corrected by the average product correction, S_ij − S_i S_j / S, which "
            "subtracts the attention expected from the row and column sums. The values are averaged "
            "over the heads. The values were not fitted to protein structures."
        )
    note = result.note.removeprefix(NOT_A_PREDICTION).strip()
    if note:
        blocks.caveat(note)
