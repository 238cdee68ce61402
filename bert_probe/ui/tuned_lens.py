"""The tuned lens on a page: trained on lines of the reader's own, shown with its losses, and chosen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.outputs.tuned_lens import TuneLens, TuneLensResult
from bert_probe.analyses.outputs.tuned_lens_files import keep, newest, usual_folder
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.runtime.cache import key_of
from bert_probe.text.sentence_files import lines
from bert_probe.ui import blocks, figures, jobs, sentence_input, state
from bert_probe.ui.export import export

MOST = 5_000
"""Lines that this page takes; the command line takes as many as there is memory for."""

STEPS = TuneLens().steps

_SOURCES = {"paste": "Paste", "file": "Upload a file"}
_LENSES = {"plain": "Plain lens", "tuned": "Tuned lens"}
_EXAMPLE = "The first line\nThe second line"


def training(checkpoint: Checkpoint, truncate: bool) -> tuple[Path, TuneLensResult] | None:
    """Draw what trains a lens; the one that was trained last for this model, and its file, if any."""
    with st.expander("Train a tuned lens"):
        st.markdown(
            ":gray[The plain lens reads every layer as if it were the last. A tuned lens (Belrose et al. "
            "2023) first puts a layer's vectors into the last one's terms, by one affine map, learned from "
            "lines of yours: some of their words are masked, and each layer learns to come near to what "
            "the model itself answers there. A fifth of the lines is held out, to judge it by. Some hundred "
            "lines of the kind that you look at are a good beginning.]"
        )
        source = state.pick("tune_from", "Where the lines are", _SOURCES, "paste")
        try:
            given = (
                tuple(lines(sentence_input.pasted("tune_pasted", "Lines of text", _EXAMPLE, 140)))
                if source == "paste"
                else sentence_input.uploaded("tune", "A text file in UTF-8, one line a text")
            )
            if given:
                _trained(checkpoint, given, truncate)
        except ProbeError as error:
            blocks.refusal(error, "Blank lines do not count. What you gave is still there.")
    return newest(checkpoint)


def _trained(checkpoint: Checkpoint, given: tuple[str, ...], truncate: bool) -> None:
    """A button, then progress, then where the lens is."""
    sentence_input.check_number(given, MOST)
    asked = TuneLens(STEPS)
    place = jobs.run(
        "tuned lens",
        key_of(asked, checkpoint, given, truncate),
        f"Train on {len(given):,} {'line' if len(given) == 1 else 'lines'}",
        lambda report: keep(asked.of(checkpoint, given, truncate, report), checkpoint),
        "parts",
        "A minute or two for a small model. You can cancel at any time. The lens is kept in "
        f"{state.plain(str(usual_folder(checkpoint)), 400)}.",
    )
    if place is not None:
        st.success(
            f"Trained, and kept as {state.plain(str(place), 400)}. Choose “Tuned lens” above.",
            icon=":material/check:",
        )


def choose(found: tuple[Path, TuneLensResult] | None) -> str | None:
    """The file of the lens to look through; None for the plain one."""
    if found is None:
        return None
    about = "Tuned: each layer is first put into the last one's terms, by a map learned from lines of text."
    return str(found[0]) if state.pick("lens_through", "Lens", _LENSES, "plain", about) == "tuned" else None


def losses(lens: TuneLensResult, file: Path) -> None:
    """How well it does on lines held out, beside the plain lens."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.subheader("How far is each layer from the model's answer?", anchor=False)
        st.space("stretch")
        more = [("The lens, safetensors", file.name, lambda _: file.read_bytes())]
        export(lens, "tuned-lens", more, label="Export the lens")
    st.markdown(
        f"{lens.verdict} It has learned from {lens.learned:,} masked words of "
        f"{lens.inputs.sentences['sentences']:,} lines."
    )
    picture, numbers = st.columns([3, 2], gap="large", vertical_alignment="center")
    with picture:
        st.plotly_chart(
            _curves(lens), width="stretch", config=figures.CONFIG, alt="Loss of each lens by layer"
        )
    with numbers:
        st.dataframe(
            lens.table().rename(columns={"plain_loss_bits": "plain", "tuned_loss_bits": "tuned"}),
            hide_index=True,
            width="stretch",
            column_config={
                name: st.column_config.NumberColumn(f"{name}, bits", format="%.4f")
                for name in ("plain", "tuned")
            },
            alt="Loss of each lens by layer",
        )
    blocks.caveat(
        "The Kullback-Leibler divergence of what the head makes of a layer from what the model answers, mean "
        "over masked words of lines that were held out; 0 is the same answer. A tuned lens says what an "
        "affine map can read from a layer, on text like that which it has learned from. That the model reads "
        "it so is not said."
    )


def _curves(lens: TuneLensResult) -> go.Figure:
    figure = go.Figure()
    layers = np.arange(len(lens.logit_lens)).tolist()
    drawn = (("plain", lens.logit_lens, figures.GRAY, "dot"), ("tuned", lens.tuned, figures.ACCENT, "solid"))
    for name, values, colour, dash in drawn:
        figure.add_scatter(
            x=layers,
            y=values,
            mode="lines+markers",
            name=name,
            line={"color": colour, "width": 2.5, "dash": dash},
            hovertemplate=f"layer %{{x}}: %{{y:.4f}} bits<extra>{name}</extra>",
        )
    return figure.update_layout(
        height=240,
        margin={"l": 0, "r": 0, "t": 8, "b": 0},
        xaxis={"title": "layer", "dtick": max(1, len(layers) // 12), "zeroline": False},
        yaxis={"title": "bits from the answer", "rangemode": "tozero"},
        legend={"orientation": "h", "y": 1.15, "x": 0},
        hovermode="closest",
    )
