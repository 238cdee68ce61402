"""The lens section of the Answer page: predictions at every layer, by logit lens or tuned lens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from bert_probe.analyses.outputs.lens import CAVEAT, Lens, LensResult
from bert_probe.analyses.outputs.tuned_lens import (
    TuneLens,
    TuneLensResult,
    lens_folder,
    newest_lens,
    save_lens,
)
from bert_probe.errors import ProbeError, UnavailableError, WeightsError
from bert_probe.model.checkpoint import FILL_MASK, TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.model.trace import Array, Trace
from bert_probe.runtime import permissions, shared_cache
from bert_probe.runtime.cache import cache_key
from bert_probe.text.sentence_files import sentences_in_text
from bert_probe.text.words import truncate_text
from bert_probe.ui import blocks, figures, jobs, sentence_input, state
from bert_probe.ui.export import export
from bert_probe.views.palette import HEADS
from bert_probe.views.text import shorten

MAX_LINES = 5_000
"""Maximum number of lines on which the page trains a tuned lens."""
STEPS = TuneLens().steps

MAX_MASKS = 10
"""Maximum number of masks for which the Answer page draws figures."""
_CURVES = {"probability": "Probability", "rank": "Rank", "entropy": "Entropy"}
_MAX_CURVES = 8
_MAX_TOKENS = 60
"""Maximum number of tokens in the grid of predictions by token and layer."""
_COLORSCALE = [[0, "rgba(99,91,228,0)"], [1, "rgba(99,91,228,0.7)"]]
"""Color scale from transparent to the accent color. The text color of the theme is readable on all of it."""
_SOURCES = {"paste": "Paste", "file": "Upload a file"}
_LENSES = {"plain": "Logit lens", "tuned": "Tuned lens"}


def part(trace: Trace, task: str, word: int | str | None = None, truncate: bool = False) -> None:
    """Draw the lens section of the Answer page.

    Args:
        trace: trace of the text.
        task: the task of the head whose predictions are drawn at every layer.
        word: token that the page masks, as a position or a word; None if it masks no token.
        truncate: whether to truncate training lines that are too long for the model.
    """
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        st.header("Logit lens: predictions by layer", anchor=False)
        st.space("stretch")
        corner = st.container(width="content")
    options, pictures = (
        st.container(horizontal=True, vertical_alignment="bottom", gap="medium"),
        st.container(),
    )
    # Run the training section first, although it is drawn below the figures: they may show the trained lens.
    trained = _tuned_lens(trace.checkpoint, truncate) if task == FILL_MASK else None
    with options:
        tuned = _choose_lens(trained)
    try:
        result: LensResult = shared_cache.checked_answer(Lens(task, mask=word, tuned=tuned), trace)
    except (UnavailableError, WeightsError) as error:
        st.info(state.escape(str(error), 400))
        return
    with corner:
        export(result, f"lens-{task}", label="Export predictions by layer")
    # A regression head has no probabilities and no ranks.
    by, has_ranks = "probability", not np.isnan(result.probabilities).all()
    if task != TOKEN_CLASSIFICATION and has_ranks:
        with options:
            by = state.segmented_control("lens_by", "Curves", _CURVES, "probability")
    with pictures:
        if task == FILL_MASK:
            _masks(trace, result, by)
            if trained is not None and tuned is not None:
                _losses(trained[1], trained[0])
        elif task == TEXT_CLASSIFICATION:
            all_classes = shared_cache.answers.of(
                Lens(task, top=len(trace.checkpoint.outputs[task].labels)).of, trace
            )
            st.markdown(_settled(all_classes, 0))
            _curves(all_classes, 0, by)
        else:
            _tokens(result, "label")
        blocks.caveat(
            f"{CAVEAT} Layer 0 is the output of the embeddings; the last layer gives the model's "
            "prediction (nostalgebraist 2020, “logit lens”)."
        )


def _masks(trace: Trace, result: LensResult, by: str) -> None:
    """Draw the predictions for each mask.

    If the page masked a word, also draw the predictions for all tokens of the original text.

    Args:
        trace: trace of the text.
        result: predictions of each layer for each mask.
        by: the curve to draw: "probability", "rank" or "entropy".
    """
    count = min(MAX_MASKS, len(result.places))
    top_words = _top_words(trace, result, count)
    for number in range(count):
        _mask(result, top_words, number, by)
    if count < len(result.places):
        st.caption(
            f"The first {count} of {len(result.places):,} masks are shown. The export contains all masks."
        )
    question = result.question
    if question.mask is not None:
        lens = (
            ""
            if question.tuned is None
            else " (logit lens, because the tuned lens was trained on masks only)"
        )
        st.markdown(f"**Predictions for every token, with none masked**{lens}.")
        try:
            tokens = shared_cache.checked_answer(Lens(question.task, top=1), trace)
        except UnavailableError as error:
            st.info(state.escape(str(error), 400))
        else:
            _tokens(tokens, "word")


def _top_words(trace: Trace, result: LensResult, count: int) -> LensResult:
    """Return the probabilities and ranks, at each layer, of the words that rank highest at the last layer.

    Args:
        trace: trace of the text.
        result: predictions of each layer for each mask.
        count: number of masks, from the first, whose top words are included.
    """
    question = result.question
    words = tuple(dict.fromkeys(word for names in result.names[-1][:count] for word in names))
    top: LensResult = shared_cache.checked_answer(
        Lens(question.task, len(words), words, mask=question.mask, tuned=question.tuned), trace
    )
    return top


def _mask(result: LensResult, top_words: LensResult, number: int, by: str) -> None:
    mask = result.places[number]
    st.markdown(f"**Token {mask.position}.** {_settled(result, number)}")
    _curves(top_words, number, by, len(result.names[-1][number]))
    layers, count = result.ids.shape[0], result.ids.shape[2]
    _grid(
        [[shorten(name) for name in result.names[layer][number]] for layer in range(layers)],
        result.probabilities[:, number],
        [str(layer) for layer in range(layers)],
        [str(rank + 1) for rank in range(count)],
        ("layer", "rank"),
        f"Top words of each layer at token {mask.position}",
    )


def _tokens(result: LensResult, unit: str) -> None:
    """Draw the most probable word or label of every token at every layer."""
    layers, tokens = result.ids.shape[0], result.places[:_MAX_TOKENS]
    if len(tokens) < len(result.places):
        st.caption(
            f"The first {_MAX_TOKENS} of {len(result.places):,} tokens are shown. The export contains "
            "all tokens."
        )
    _grid(
        [[shorten(result.names[layer][index][0]) for layer in range(layers)] for index in range(len(tokens))],
        result.probabilities[:, : len(tokens), 0].T,
        blocks.labels(tokens),
        [str(layer) for layer in range(layers)],
        ("token", "layer"),
        f"Top {unit} of each token at each layer",
    )


def _settled(result: LensResult, number: int) -> str:
    """Return a sentence with the layer from which the final prediction always has rank 1.

    Args:
        result: predictions of each layer.
        number: index of the mask; 0 for the label of a text.
    """
    name, layer = state.escape(shorten(result.names[-1][number][0])), int(result.settled[number])
    last = len(result.ids) - 1
    if layer == last:
        return f"**{name}** ranks first only at the last layer, {last}."
    return f"**{name}** ranks first from layer {layer} (of {last}) onward."


def _curves(result: LensResult, number: int, by: str, count: int = _MAX_CURVES) -> None:
    """Draw the probability or the rank of the last layer's top words by layer, or the entropy by layer.

    For a regression, draw the predicted value by layer.

    Args:
        result: predictions of each layer.
        number: index of the mask or token whose predictions are drawn.
        by: the curve to draw: "probability", "rank" or "entropy".
        count: maximum number of words or labels, of which the most probable are drawn.
    """
    figure = go.Figure()
    values, axis, title = result.probabilities, "probability", "Probability by layer"
    if np.isnan(values).all():
        values, axis = result.logits, "value"
    if by == "rank":
        values, axis, title = result.ranks, "rank", "Rank by layer"
    if by == "entropy":
        _add_line(figure, result.entropy[:, number], "entropy", HEADS[0])
        axis, title = "bits", "Entropy by layer"
    else:
        for index, id_ in enumerate(result.ids[-1, number][: min(count, _MAX_CURVES)].tolist()):
            by_layer = [
                row[int(np.flatnonzero(ids == id_)[0])]
                for row, ids in zip(values[:, number], result.ids[:, number], strict=True)
            ]
            name = figures.as_text(shorten(result.names[-1][number][index]))
            _add_line(figure, by_layer, name, HEADS[index % len(HEADS)])
    # The rank axis is reversed, because 1 is best, and logarithmic, because the first ranks change most.
    scale = {"type": "log", "autorange": "reversed"} if by == "rank" else {"rangemode": "tozero"}
    figures.apply_layout(
        figure,
        300,
        legend="right",
        xaxis={"title": "layer", "dtick": max(1, len(result.ids) // 12), "zeroline": False},
        yaxis={"title": axis, **scale},
    )
    blocks.chart(figure, title)


def _add_line(figure: go.Figure, values: Sequence[float] | Array, name: str, colour: str) -> None:
    """Add a curve to a figure, with one point per layer from layer 0."""
    figure.add_scatter(
        x=list(range(len(values))),
        y=values,
        mode="lines+markers",
        name=name,
        line={"color": colour, "width": 2.5},
        hovertemplate=f"layer %{{x}}: %{{y:.4~g}}<extra>{name}</extra>",
    )


def _grid(
    names: Sequence[Sequence[str]],
    shares: Array,
    rows: Sequence[str],
    columns: Sequence[str],
    axes: tuple[str, str],
    title: str,
) -> None:
    """Draw a grid of predicted words or labels, colored by probability.

    Args:
        names: the words or labels, [row][column].
        shares: probability of each word or label, [row, column].
        rows, columns: labels of the rows and columns.
        axes: titles of the row axis and the column axis.
        title: heading of the grid.
    """
    indices = np.indices(shares.shape)
    full = [figures.as_text(name) for row in names for name in row]
    short = [figures.as_text(truncate_text(name, 14)) for row in names for name in row]
    figure = go.Figure()
    figure.add_heatmap(
        z=np.sqrt(shares),
        zmin=0,
        zmax=1,
        colorscale=_COLORSCALE,
        xgap=2,
        ygap=2,
        showscale=False,
        hoverinfo="skip",
    )
    # Draw the text as a separate trace, because Plotly chooses a heatmap's text color for a white page.
    figure.add_scatter(
        x=indices[1].ravel(),
        y=indices[0].ravel(),
        mode="text",
        text=short,
        textfont={"color": figures.ink(blocks.is_dark())},
        customdata=np.array([full, [f"{share:.4f}" for share in shares.ravel()]]).T,
        hovertemplate=f"{axes[0]} %{{y}}, {axes[1]} %{{x}}: "
        "%{customdata[0]}, %{customdata[1]}<extra></extra>",
    )
    ticks = {"showgrid": False, "zeroline": False}
    figures.apply_layout(
        figure,
        70 + 30 * len(rows),
        xaxis={**ticks, "title": axes[1], "tickvals": list(range(len(columns))), "ticktext": list(columns)},
        yaxis={
            **ticks,
            "title": axes[0],
            "tickvals": list(range(len(rows))),
            "ticktext": [figures.as_text(row) for row in rows],
            "range": [len(rows) - 0.5, -0.5],
        },
    )
    st.markdown(f"**{title}**", help="Color intensity is the square root of the probability.")
    blocks.chart(figure, title)


# ---------------------------------------------------------------- tuned lens


def _tuned_lens(checkpoint: Checkpoint, truncate: bool) -> tuple[Path, TuneLensResult] | None:
    """Draw widgets for training a tuned lens; return the model's newest lens as (file, result), if any."""
    if not permissions.current().can_train:
        return newest_lens(checkpoint)
    with st.expander("Train a tuned lens"):
        st.markdown(
            ":gray[The logit lens reads every layer as if it were the last layer. A tuned lens (Belrose et "
            "al. 2023) first maps a layer's vectors to the basis of the last layer with an affine map. "
            "The maps are trained on your lines: some words are masked, and the map of each layer "
            "learns to predict the model's own output. A fifth of the lines is held out for evaluation. "
            "A few hundred lines that are similar to your texts are a good start.]"
        )
        source = state.segmented_control("tune_from", "Source of the lines", _SOURCES, "paste")
        try:
            texts = (
                sentences_in_text(
                    sentence_input.paste_text(
                        "tune_pasted", "Lines of text", "The first line\nThe second line", 140
                    ),
                    MAX_LINES + 1,
                )
                if source == "paste"
                else sentence_input.upload_sentences(
                    "tune", "A UTF-8 text file with one text per line", MAX_LINES
                )
            )
            if texts:
                _train(checkpoint, texts, truncate)
        except ProbeError as error:
            blocks.error_box(error, "Empty lines are skipped. The lines that you entered are kept.")
    return newest_lens(checkpoint)


def _train(checkpoint: Checkpoint, texts: tuple[str, ...], truncate: bool) -> None:
    """Draw the job that trains a tuned lens and, when the job is done, the path of the saved lens."""
    sentence_input.check_count(texts, MAX_LINES)
    question, folder = TuneLens(STEPS), lens_folder(checkpoint)
    path = jobs.run(
        "tuned lens",
        cache_key(question, checkpoint, texts, truncate),
        f"Train on {len(texts):,} {'line' if len(texts) == 1 else 'lines'}",
        lambda progress: save_lens(question.of(checkpoint, texts, truncate, progress), folder),
        "",
        "Training takes one or two minutes for a small model. You can cancel at any time. The lens is "
        f"saved in {state.escape(str(folder), 400)}.",
        activity="Training the lens",
    )
    if path is not None:
        st.success(
            f"The lens was trained and saved as {state.escape(str(path), 400)}. Choose “Tuned lens” above.",
            icon=":material/check:",
        )


def _choose_lens(trained: tuple[Path, TuneLensResult] | None) -> str | None:
    """Draw a selector for the lens; return the path of the tuned lens, or None for the logit lens."""
    if trained is None:
        return None
    help_text = "The tuned lens first maps each layer to the last layer's basis by a trained affine map."
    lens = state.segmented_control("lens_through", "Lens", _LENSES, "plain", help_text)
    return str(trained[0]) if lens == "tuned" else None


def _losses(lens: TuneLensResult, file: Path) -> None:
    """Draw the held-out losses of the tuned lens and the logit lens."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.subheader("Held-out loss by layer", anchor=False)
        st.space("stretch")
        more = [("Tuned lens (safetensors)", file.name, lambda _: file.read_bytes())]
        export(lens, "tuned-lens", more, label="Export tuned lens")
    st.markdown(
        f"{lens.verdict} The tuned lens was trained on {lens.learned:,} masked words of "
        f"{lens.inputs.sentences['sentences']:,} lines."
    )
    picture, numbers = st.columns([3, 2], gap="large", vertical_alignment="center")
    with picture:
        blocks.chart(_loss_curves(lens), "Loss of each lens by layer")
    with numbers:
        blocks.table(
            lens.table().rename(columns={"plain_loss_bits": "logit lens", "tuned_loss_bits": "tuned lens"}),
            "Loss of each lens by layer",
            column_config={
                name: st.column_config.NumberColumn(f"{name}, bits", format="%.4f")
                for name in ("logit lens", "tuned lens")
            },
        )
    blocks.caveat(
        "The loss is the Kullback-Leibler divergence between the lens's prediction at a layer and the "
        "model's output, averaged over the masked words of the held-out lines; 0 means identical "
        "predictions. A tuned lens shows what an affine map can read from a layer on similar text, not "
        "what the model uses."
    )


def _loss_curves(lens: TuneLensResult) -> go.Figure:
    figure = go.Figure()
    layers = np.arange(len(lens.logit_lens)).tolist()
    curves = (
        ("logit lens", lens.logit_lens, figures.GRAY, "dot"),
        ("tuned lens", lens.tuned, figures.ACCENT, "solid"),
    )
    for name, values, colour, dash in curves:
        figure.add_scatter(
            x=layers,
            y=values,
            mode="lines+markers",
            name=name,
            line={"color": colour, "width": 2.5, "dash": dash},
            hovertemplate=f"layer %{{x}}: %{{y:.4f}} bits<extra>{name}</extra>",
        )
    return figures.apply_layout(
        figure,
        240,
        legend="above",
        xaxis={"title": "layer", "dtick": max(1, len(layers) // 12), "zeroline": False},
        yaxis={"title": "bits", "rangemode": "tozero"},
    )
