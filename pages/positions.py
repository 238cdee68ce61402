"""Positions: how the model knows where a token stands."""

from __future__ import annotations

import streamlit as st

from bert_probe.analyses.weights import positions as ways
from bert_probe.analyses.weights.positions import Positions, PositionsResult
from bert_probe.runtime import shared_cache
from bert_probe.ui import blocks, figures, positions, state, workbench
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.export import export
from bert_probe.ui.vectors import numbers
from bert_probe.views.positions import of_positions

LABELS = {
    ways.COSINES: "Cosines",
    ways.DISTANCE: "By distance",
    ways.SPECTRUM: "Spectrum",
    ways.TABLE: "Table",
    ways.FREQUENCIES: "Frequencies",
    ways.BIAS: "Bias",
    ways.RELATIVE: "Distances",
}
CAVEATS = {
    ways.COSINES: "Sinusoids depend on the distance alone, so theirs are the same along each diagonal. "
    "What was learned need not be. Positions that few training texts reached may have stayed where they "
    "began.",
    ways.DISTANCE: "The mean over all pairs of positions that are so far apart. Of rotary models: the "
    "cosine of a vector with itself so many positions on, if all its pairs of dimensions were equally "
    "long; in a text, queries and keys decide.",
    ways.SPECTRUM: "Squared singular values of the table less its mean row, as shares, added up. Few "
    "directions: positions lie on a curve that a few numbers tell. A sinusoid whose wave is much longer than "
    "the table hardly varies in it, and adds little.",
    ways.TABLE: "A row for each position, a column for each dimension; each picture has a range of its "
    "own. The order of learned dimensions means nothing. Sinusoids go from short waves on the left to long "
    "ones on the right.",
    ways.FREQUENCIES: "A pair of short wavelength tells neighbours apart, a long one far positions. One "
    "longer than any text never comes round.",
    ways.BIAS: "Positive distances: the key stands after the query. The same in all layers; far distances "
    "share a value. It is added to the score before the softmax, whatever the words are.",
    ways.RELATIVE: "A row for each distance, or for several far ones; − stands before the query. What a "
    "distance adds to a score depends on the words as well, so there is no bias by distance alone.",
}


def draw(found: PositionsResult) -> None:
    """The picture of what is shown."""
    show = found.question.show
    if show == ways.DISTANCE:
        st.markdown(positions.of_distance(found))
        figure, alt = positions.distance_curves(found), "Mean cosine of two positions by their distance"
    elif show == ways.SPECTRUM:
        st.markdown(positions.of_spectrum(found))
        figure, alt = positions.spectrum_curves(found), "Share of the variance by principal direction"
    elif show == ways.FREQUENCIES:
        figure = positions.wavelength_curves(found.rotary, found.positions)
        alt = "Wavelength of each pair of dimensions"
    elif show == ways.BIAS and found.bias is not None:
        figure, alt = positions.bias_curves(found.bias), "What each head adds to a score, by distance"
    else:
        pictures(found)
        return
    st.plotly_chart(figure, width="stretch", config=figures.CONFIG, alt=alt)
    numbers(found.frame())


def pictures(found: PositionsResult) -> None:
    """Heatmaps side by side; one alone is as wide as it needs."""
    drawn = of_positions(found)
    for number, (column, one) in enumerate(zip(st.columns(len(drawn), gap="large"), drawn, strict=True)):
        with column:
            heatmap(one, key=f"positions_{found.question.show}_{number}")


def main() -> None:
    """The page."""
    blocks.heading(
        "Positions",
        "Attention by itself sees no order. This is what tells the model where a token stands.",
    )
    checkpoint = workbench.checkpoint()
    found = shared_cache.answers.of(Positions().of, checkpoint)
    st.markdown(positions.has(found))
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        options = {name: LABELS[name] for name in found.available}
        show = state.pick("positions_show", "View", options, found.available[0])
        st.space("stretch")
        shown = found.showing(show=show)
        export(shown, f"positions-{show}")
    draw(shown)
    blocks.caveat(CAVEATS[show])


main()
