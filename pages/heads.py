"""Heads: which of them are worth a look, and what happens without them."""

import streamlit as st

from bert_probe.ui import blocks, state, workbench
from bert_probe.ui.heads import ablation, find, many, profiles

PARTS = {
    "profiles": "Profiles",
    "find": "Find a head",
    "ablation": "Switch heads off",
    "many": "Many sentences",
}
DRAWN = {"profiles": profiles.part, "find": find.part, "ablation": ablation.part}


def main() -> None:
    """Draw the part that was chosen."""
    blocks.heading(
        "Heads",
        "Each head looks at the text in its own way. Which are worth a look, and what is lost without them?",
    )
    bar = st.container(horizontal=True, gap="medium")
    with bar:
        part = state.pick("heads_part", "Part", PARTS, "profiles")
    if part == "many":
        many.part(workbench.request(), workbench.checkpoint())
        return
    study = workbench.study()
    with bar:
        trace = workbench.chosen_text(study)
    blocks.truncation_notice(trace)
    DRAWN[part](trace)


main()
