"""What the parts of the heads page have in common: the measures, a picture of all heads, their tables."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from bert_probe.trace import Array
from bert_probe.ui import state
from bert_probe.ui.attention import head as head_view
from bert_probe.ui.components.matrix import Scale, matrix

ATTENTION = Path(__file__).parents[3] / "pages" / "attention.py"


@dataclass(frozen=True)
class Measure:
    """A measure of a head as a person reads it.

    Attributes:
        name: short, for a column; group is what it is about.
        meaning: one sentence.
    """

    group: str
    name: str
    meaning: str

    @property
    def title(self) -> str:
        """Of a picture of all heads."""
        return f"{self.name[0].upper()}{self.name[1:]}, by head"


MEASURES = {
    "previous": Measure("Place", "previous token", "Share of attention on the token before."),
    "next": Measure("Place", "next token", "Share of attention on the token after."),
    "self": Measure("Place", "same token", "Share of attention that a token keeps for itself."),
    "mean_distance": Measure(
        "Place", "distance", "How many tokens away a head looks on average: Σ weight × |query − key|."
    ),
    "first": Measure(
        "Special tokens",
        "first token",
        "Share of attention on the first token, [CLS] or <s>: often where a head looks when it has nothing "
        "to do.",
    ),
    "separator": Measure(
        "Special tokens",
        "separator",
        "Share of attention on [SEP], or the model's own separator: often a place to rest, too.",
    ),
    "same_word": Measure("Words", "same word", "Share of attention on the other pieces of the same word."),
    "same_token": Measure(
        "Words", "repeated token", "Share of attention on the same token at another place."
    ),
    "punctuation": Measure("Words", "punctuation", "Share of attention on punctuation marks."),
    "other_segment": Measure(
        "Words", "other segment", "Share of attention on the other sentence of a pair; 0 without a pair."
    ),
    "entropy_bits": Measure(
        "Spread",
        "entropy",
        "How spread out a row is, in bits: 0 for a single key, log₂ of the number of keys for all alike.",
    ),
    "relative_entropy": Measure(
        "Spread",
        "relative entropy",
        "Entropy divided by that of a uniform row: 0 for a single key, 1 for all alike.",
    ),
    "difference_from_mean": Measure(
        "Spread",
        "unlike its layer",
        "How much a head's rows differ from the mean over its layer: total variation, 0 to 1.",
    ),
}
LABELLING = (
    "A label is given where a share is at least one half, or, for “broad”, where the relative entropy is at "
    "least 0.85."
)


def choose_measure() -> tuple[str, Measure]:
    """A list of the measures, what is chosen explained beneath."""
    with st.container(width=340):
        chosen = state.choose(
            "measure",
            "Measure",
            {key: f"{one.group}: {one.name}" for key, one in MEASURES.items()},
            "previous",
        )
    return chosen, MEASURES[chosen]


def head_matrix(values: Array, key: str, name: str, caption: str, scale: Scale) -> tuple[int, int] | None:
    """Layers × heads as a picture; the head that was clicked, from 1."""
    layers, heads = values.shape
    cell = matrix(
        values,
        [str(layer + 1) for layer in range(layers)],
        [str(head + 1) for head in range(heads)],
        key=key,
        scale=scale,
        row_axis="layer",
        column_axis="head",
        value_name=name,
        caption=caption,
        file_name=key,
    )
    return None if cell is None else (cell.row + 1, cell.column + 1)


def head_table(table: pd.DataFrame, numbers: dict[str, str], alt: str, height: int = 430) -> None:
    """Rows of heads to read and sort.

    Args:
        numbers: column → heading, for those with four decimals; others keep their own.
    """
    config: dict[str, Any] = {
        column: st.column_config.NumberColumn(heading, format="%.4f") for column, heading in numbers.items()
    }
    config |= {
        "label": st.column_config.TextColumn(width=130),
        "rank_in_row": st.column_config.NumberColumn("rank in row"),
    }
    st.dataframe(table, hide_index=True, width="stretch", height=height, column_config=config, alt=alt)


def open_in_attention(layer: int, head: int, label: str | None = None) -> None:
    """What stands out in a head, and a button that shows it on the attention page."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        if label is not None:
            st.markdown(f"Layer {layer}, head {head}: **{label or 'nothing stands out'}**", width="content")
        if st.button("Show its attention" if label is not None else f"Show layer {layer}, head {head}"):
            st.session_state["layer"] = layer
            head_view.choose_heads((head - 1,))
            st.switch_page(ATTENTION)
