"""The section of the Search page that finds a threshold of the score from labeled pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import streamlit as st

from bert_probe.analyses.retrieval.threshold import ScoreThreshold, ScoreThresholdResult
from bert_probe.errors import ProbeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.labeled_texts import LabeledTexts, parse_labeled_texts
from bert_probe.ui import blocks, figures, jobs, sentence_input, state
from bert_probe.ui.export import export
from bert_probe.views.text import shorten

MAX_PAIRS = 20_000
"""Maximum number of pairs on the page. The command line has no such limit."""
_TARGETS = {"f1": "Largest F1", "precision": "Required precision"}
_NAMES = {"f1": "F1", "average_precision": "average precision"}


@dataclass(frozen=True)
class _PairsFile:
    """The pairs of an uploaded file, or the error that occurred when they were read."""

    name: str
    pairs: LabeledTexts | ProbeError


def show_threshold(checkpoint: Checkpoint, question: ScoreThreshold, truncate: bool) -> None:
    """Draw an uploader for labeled pairs, and the threshold that separates them.

    Args:
        question: the pooling, the prompts and the dimensions of the search.
    """
    label = "Which score is a match? Find a threshold from labeled pairs"
    with st.expander(label, expanded="threshold_file" in st.session_state):
        file = sentence_input.upload_file(
            "threshold",
            "A table with the columns text_a, text_b and label",
            ["csv", "tsv", "jsonl"],
            "text_a is a query, text_b a document; label is 1 if they match and 0 if not, or a grade. UTF-8, "
            f"{sentence_input.upload_note()}",
            _read_pairs,
        )
        if file is None:
            return
        try:
            if isinstance(file.pairs, ProbeError):
                raise file.pairs
            sentence_input.check_count(file.pairs.rows, MAX_PAIRS, "pairs")
            _show_result(checkpoint, _choose_target(question, file.pairs), file.pairs, truncate)
        except ProbeError as error:
            blocks.error_box(error, "Choose another file, or change the options above.")


def _read_pairs(name: str, content: bytes) -> _PairsFile:
    try:
        sentence_input.check_size(name, content)
        return _PairsFile(name, parse_labeled_texts(content, name))
    except ProbeError as error:
        return _PairsFile(name, error)


def _choose_target(question: ScoreThreshold, pairs: LabeledTexts) -> ScoreThreshold:
    """Draw selectors for the required precision and for the smallest label of a pair that matches."""
    with st.container(horizontal=True, vertical_alignment="bottom", gap="large"):
        target = state.segmented_control(
            "threshold_target",
            "Criterion",
            _TARGETS,
            "f1",
            "F1 is the harmonic mean of precision and recall. With a required precision, the lowest "
            "threshold that reaches it has the highest recall.",
        )
        if target == "precision":
            value = st.number_input("Precision", 0.05, 1.0, 0.9, 0.05, key="threshold_precision", width=140)
            question = replace(question, precision=float(value))
        labels = _grades(pairs)
        if labels is not None:
            value = st.number_input(
                "A pair matches from label",
                float(labels.min()),
                float(labels.max()),
                float(np.median(labels)),
                key=f"threshold_from {labels.min():g} {labels.max():g}",
                width=220,
            )
            question = replace(question, positive_from=float(value))
    return question


def _grades(pairs: LabeledTexts) -> np.ndarray | None:
    """Return the labels of pairs that are numbers other than 0 and 1; None for other labels."""
    try:
        labels = np.array([float(str(row.label)) for row in pairs.rows])
    except ValueError:
        return None
    return None if np.isin(labels, (0, 1)).all() or not np.isfinite(labels).all() else labels


def _show_result(
    checkpoint: Checkpoint, question: ScoreThreshold, pairs: LabeledTexts, truncate: bool
) -> None:
    result: ScoreThresholdResult | None = jobs.answer(
        "score threshold",
        question.of,
        checkpoint,
        pairs,
        truncate,
        label="Score the pairs",
        unit="texts",
        activity="Encoding",
        start=True,
    )
    if result is None:
        return
    name, measures = result.recipe.score_name, result.measures
    st.markdown(
        f"With a {name} of at least **{measures['threshold']:.4f}**, a pair is predicted to match. Of "
        f"{len(result.scores):,} pairs, {int(result.positive.sum()):,} match: precision "
        f"**{measures['precision']:.3f}**, recall **{measures['recall']:.3f}**, F1 **{measures['f1']:.3f}**."
    )
    blocks.chart(
        figures.threshold_histograms(
            result.scores, result.positive, result.threshold, result.bootstrap.interval("threshold"), name
        ),
        f"Histograms of the {name} of pairs that match and of pairs that do not, with the threshold marked",
    )
    table = result.table()
    table["measure"] = [_NAMES.get(measure, shorten(measure)) for measure in table["measure"]]
    blocks.table(
        table,
        "Threshold, precision, recall, F1 and average precision with 95% intervals",
        column_config={
            key: st.column_config.NumberColumn(label, format="%.4f")
            for key, label in {"value": "value", "low": "95% from", "high": "to"}.items()
        },
    )
    blocks.caveat(
        "The threshold is chosen on these pairs, so new pairs will be predicted somewhat worse. The "
        f"intervals are those of {result.metadata['resamples']:,} resamples of the pairs, each with its own "
        "threshold."
    )
    pairs_table = result.showing(show="pairs")
    with st.container(horizontal=True):
        export(
            result,
            "threshold",
            label="Export the threshold",
            caption="The table above.",
            data={"pairs": pairs},
        )
        export(
            pairs_table,
            "threshold-pairs",
            label="Export the pairs",
            caption="Each pair with its score and the prediction.",
            data={"pairs": pairs},
        )
