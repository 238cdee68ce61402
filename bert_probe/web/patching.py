"""The part of Compare that puts parts of A's pass into B's."""

from __future__ import annotations

from typing import Any

import numpy as np
import streamlit as st

from bert_probe.analyses.patching import Patch, Patching
from bert_probe.model.trace import Trace
from bert_probe.run.cache import key_of
from bert_probe.views.scale import Scale
from bert_probe.views.text import shown
from bert_probe.web import blocks, jobs, state
from bert_probe.web.components.matrix import matrix
from bert_probe.web.export import export

AT_ONCE = 32
"""Tokens up to which nobody has to ask for it; it takes well below a second."""
_PARTS = {"tokens": "A token's vector", "heads": "What a head returns"}
_SHARES = Scale("diverging", -1, 1, "sqrt")
_CAVEAT = (
    "The answer is the cosine of the sentence vector with A's. 0: it stays what it is between the two "
    "sentences; 1: it becomes A's own; below 0: it moves further away. Unlike attention this is an effect, "
    "measured by running the model with one part exchanged (Vig et al. 2020, Meng et al. 2022). Parts work "
    "together, so their shares need not add up; and it is the effect on this pair of sentences alone."
)


def part(a: Trace, b: Trace) -> None:
    """Draw it."""
    st.header("Which part carries the difference?", anchor=False)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        what = state.pick("patch", "Put into B's pass from A's", _PARTS, "tokens")
        st.space("stretch")
        corner = st.container(width="content")
    asked = Patch(what)
    found = jobs.run(
        "patching",
        key_of(asked, a, b),
        "Put each part into B, one at a time",
        lambda report: asked.of(a, b, report),
        "parts",
        "The model runs once for each part, batched. You can cancel at any time.",
        start=max(len(a.tokens), len(b.tokens)) <= AT_ONCE,
    )
    if found is None:
        return
    with corner:
        export(found, f"patching-{what}")
    st.markdown(_finding(found))
    _picture(found)
    blocks.caveat(_CAVEAT)


def _finding(found: Patching) -> str:
    """What comes back most, and what all of it does."""
    layer, place = np.unravel_index(int(found.recovered.argmax()), found.recovered.shape)
    share = found.recovered[layer, place]
    if found.question.what == "tokens":
        most = f"“{state.plain(_name(found, int(place)))}” after layer {layer}"
    else:
        most = f"Layer {layer + 1}, head {place + 1}"
    said = [
        f"The cosine of the two sentences is {found.nothing:.4f}. {most} alone brings **{share:.0%}** of the "
        "way to A back, the most of all."
    ]
    if found.question.what == "tokens":
        together = found.recovered_together
        shares = dict.fromkeys(f"{share:.0%}" for share in (together.min(), together.max()))
        said.append(f"All tokens together bring back {' to '.join(shares)}, whatever the layer.")
        said.append(
            "Every token has a counterpart, so it must be all."
            if found.whole
            else "Tokens without a counterpart stay as they are in B."
        )
    return " ".join(said)


def _name(found: Patching, place: int) -> str:
    """The token that is put in, and what it takes the place of where that is another one."""
    one, other = (shown(side[place].display) for side in (found.tokens_a, found.tokens_b))
    return one if one == other else f"{one} for {other}"


def _picture(found: Patching) -> None:
    common: dict[str, Any] = {"key": "patching_picture", "scale": _SHARES, "value_name": "recovered"}
    if found.question.what == "heads":
        layers, heads = found.recovered.shape
        matrix(
            found.recovered,
            [str(layer + 1) for layer in range(layers)],
            [str(head + 1) for head in range(heads)],
            row_axis="layer",
            column_axis="head",
            caption="How much of A comes back by what each head returns",
            file_name="patching-heads",
            **common,
        )
        return
    matrix(
        found.recovered.T,
        [_name(found, place) for place in range(len(found.tokens_a))],
        [str(layer) for layer in range(len(found.recovered))],
        row_axis="token",
        column_axis="layer",
        row_positions=blocks.positions(found.tokens_a),
        caption="How much of A comes back by each token's vector after each layer",
        file_name="patching-tokens",
        **common,
    )
