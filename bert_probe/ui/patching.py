"""The part of Compare that puts parts of A's pass into B's."""

from __future__ import annotations

import numpy as np
import streamlit as st

from bert_probe.analyses.attribution.activation_patching import ActivationPatching, ActivationPatchingResult
from bert_probe.errors import ProbeError
from bert_probe.model.trace import Trace
from bert_probe.ui import blocks, jobs, state
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.export import export
from bert_probe.views.answers import of_patching, patched_name

AT_ONCE = 32
"""Tokens up to which nobody has to ask for it; it takes well below a second."""
_PARTS = {"tokens": "A token's vector", "heads": "What a head returns"}
_CAVEAT = (
    "0: the answer stays what it is for B; 1: it becomes A's own; below 0: it moves further away. The answer "
    "is the likeliest that the model's trained head gives for A; without a head, the cosine of the sentence "
    "vector with A's. Unlike attention this is an effect, measured by running the model with one part "
    "exchanged (Vig et al. 2020, Meng et al. 2022). Parts work together, so their shares need not add up; "
    "and it is the effect on this pair of sentences alone."
)


def part(a: Trace, b: Trace) -> None:
    """Draw it."""
    st.header("Which part carries the difference?", anchor=False)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        what = state.pick("patch", "Put into B's pass from A's", _PARTS, "tokens")
        st.space("stretch")
        corner = st.container(width="content")
    try:
        found = jobs.answered(
            "patching",
            ActivationPatching(what).of,
            a,
            b,
            label="Put each part into B, one at a time",
            unit="parts",
            note="The model runs once for each part, batched. You can cancel at any time.",
            start=max(len(a.tokens), len(b.tokens)) <= AT_ONCE,
        )
    except ProbeError as error:
        st.info(state.plain(str(error), 400))
        return
    if found is None:
        return
    with corner:
        export(found, f"patching-{what}", label="Export this part")
    st.markdown(_finding(found))
    heatmap(of_patching(found), key="patching_picture")
    blocks.caveat(_CAVEAT)


def _finding(found: ActivationPatchingResult) -> str:
    """What comes back most, and what all of it does."""
    layer, place = np.unravel_index(int(found.recovered.argmax()), found.recovered.shape)
    share = found.recovered[layer, place]
    if found.question.what == "tokens":
        most = f"“{state.plain(patched_name(found, int(place)))}” after layer {layer}"
    else:
        most = f"Layer {layer + 1}, head {place + 1}"
    answer = (
        f"The {state.plain(found.number)} is {found.goal:.4f} for A and {found.nothing:.4f} for B"
        if found.number
        else f"The cosine of the two sentences is {found.nothing:.4f}"
    )
    said = [f"{answer}. {most} alone brings **{share:.0%}** of the way to A back, the most of all."]
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
