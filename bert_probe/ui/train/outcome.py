"""What was learned: held against what can be had without a model, class by class, text by text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import streamlit as st

from bert_probe.analyses.outputs.evaluate import MAIN, EvaluateResult
from bert_probe.analyses.outputs.evaluate_masks import AMONG, EvaluateMasksResult
from bert_probe.analyses.outputs.guesses import ABOUT
from bert_probe.analyses.outputs.head_predictions import TAGS
from bert_probe.core.inputs import SENTENCES_FILE
from bert_probe.model.trace import Array
from bert_probe.server import callbacks
from bert_probe.text.labeled_texts import NUMBER, SEVERAL
from bert_probe.text.tables import as_file
from bert_probe.text.tagged_sentences import TaggedSentence
from bert_probe.training.training_result import TrainingResult
from bert_probe.ui import blocks, figures, highlight, state
from bert_probe.ui.components.matrix import heatmap
from bert_probe.ui.export import More, export, written
from bert_probe.ui.train import pictures, saving
from bert_probe.ui.train.data import Given, is_plain
from bert_probe.ui.train.running import TrainingOutcome
from bert_probe.views.answers import of_confusion

_LISTED = 10
"""Texts of a list; the export has all."""
_LISTS = {"wrong": "Surely wrong", "uncertain": "Least certain"}


def part(found: TrainingOutcome) -> None:
    """Draw it."""
    taught, judged = found.taught, found.evaluation
    st.divider()
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.header("What was learned", anchor=False, width="content")
        st.space("stretch")
        export(taught, "training", _data(found), "The course of the training.", label="Export the training")
        if judged is not None:
            export(judged, "evaluation", _more(taught, judged))
        elif found.guessed is not None:
            lines: More = ("The held-out lines", SENTENCES_FILE, partial(_file, taught.held_out))
            every = partial(written, found.guessed.showing(show="masks"), "csv")
            export(found.guessed, "masked-words", [("Every masked token", "masks.csv", every), lines])
    if judged is not None:
        _compared(taught, judged)
    elif found.guessed is not None:
        _guesses(found.guessed, len(taught.held_out))
    else:
        st.markdown("Nothing was held out, so nobody can tell how good it is.")
    for warning in taught.warnings:
        st.warning(state.plain(warning, 1_000))
    for note in taught.notes:
        st.caption(state.plain(note, 1_000))
    saving.part(found)
    if judged is not None:
        _classes(found, judged)
        _texts(found, judged)
    elif is_plain(taught.data):
        _to_fill(found)
    with st.expander("The course of the training"):
        st.plotly_chart(
            pictures.course(taught.history, taught.measure, taught.history[-1].step, taught.best),
            width="stretch",
            config=figures.CONFIG,
            key="course of the outcome",
            alt="Loss and held-out measure by step",
        )


def _compared(taught: TrainingResult, judged: EvaluateResult) -> None:
    """One sentence, and a bar for the model and for each baseline."""
    measure, values = MAIN[judged.kind], judged.measures
    said = sentence(judged)
    st.markdown(said)
    low = values.get(f"{measure}_low")
    interval = None if low is None else (low, values[f"{measure}_high"])
    bars = {"this model": judged.main, **dict(_baselines(judged))}
    st.plotly_chart(
        pictures.against(bars, interval, measure.replace("_", " ")),
        width="stretch",
        config=figures.CONFIG,
        alt=said.replace("*", ""),
    )
    bag = "A bag of words is a regression on words and pairs of words, taught with the same texts."
    blocks.caveat(
        f"The best of {len(taught.history)} evaluations on these very texts was kept, which flatters it a "
        f"little. {'' if judged.kind == TAGS else bag}"
    )


def _baselines(judged: EvaluateResult) -> list[tuple[str, float]]:
    return [(ABOUT[name], judged.baselines[name]) for name in ABOUT if name in judged.baselines]


def sentence(judged: EvaluateResult) -> str:
    """How good the answers are, in Markdown."""
    values, count, measure = judged.measures, len(judged.texts), MAIN[judged.kind]
    if judged.kind == NUMBER:
        others = [f", that of {name} {value:.4g}" for name, value in _baselines(judged)]
        return (
            f"On {count:,} held-out texts its mean squared error is **{judged.main:.4g}**{''.join(others)}."
        )
    what = "has all labels right" if judged.kind == SEVERAL else "is right"
    units = "words" if judged.kind == TAGS else "texts"
    low, high = values.get(f"{measure}_low"), values.get(f"{measure}_high")
    sure = f" (95% interval {low:.0%} to {high:.0%})" if low is not None and high is not None else ""
    others = [f", {name} in {value:.1%}" for name, value in _baselines(judged)]
    return f"On {count:,} held-out {units} the model {what} in **{judged.main:.1%}**{sure}{''.join(others)}."


def _guesses(judged: EvaluateMasksResult, texts: int) -> None:
    """How often masked words are guessed: one sentence, and a bar beside one guess for all."""
    values = judged.measures
    low, high = values["first_guess_low"], values["first_guess_high"]
    said = (
        f"Of {len(judged.tokens):,} tokens that were masked in {texts:,} held-out texts the first guess is "
        f"right for **{values['first_guess']:.1%}** (95% interval {low:.0%} to {high:.0%}), one of the first "
        f"{AMONG} for {values[f'among_{AMONG}']:.1%}; the same guess for all would be right for "
        f"{values['most_frequent_first_guess']:.1%}."
    )
    st.markdown(said)
    bars = {"this model": values["first_guess"], "one guess for all": values["most_frequent_first_guess"]}
    st.plotly_chart(
        pictures.against(bars, (low, high), "first guess right"),
        width="stretch",
        config=figures.CONFIG,
        alt=said.replace("*", ""),
    )


def _to_fill(found: TrainingOutcome) -> None:
    """Texts in which words can be masked, those that were held out where there are any."""
    texts = found.taught.held_out or found.taught.data
    st.header("Mask a word and let it guess", anchor=False)
    for number, text in enumerate(texts[:_LISTED]):
        _row(found, state.plain(text, 300), f"fill {number}", text)
    if len(texts) > _LISTED:
        st.caption(f"The first {_LISTED} of {len(texts):,}.")


def _classes(found: TrainingOutcome, judged: EvaluateResult) -> None:
    """Precision and recall of each class, and which are taken for which."""
    if judged.kind == NUMBER:
        return
    left, right = st.columns([1, 1], gap="large")
    with left:
        st.header("Class by class", anchor=False)
        table = judged.by_class()
        st.dataframe(
            table,
            hide_index=True,
            width="stretch",
            height=min(38 + 35 * len(table), 420),
            column_config={
                name: st.column_config.NumberColumn(name, format="%.2f")
                for name in ("precision", "recall", "f1")
            },
            alt="Precision, recall, F1 and count of each class",
        )
        blocks.caveat(
            "Precision: of the texts answered so, the share that is right. Recall: of those that are so, the "
            "share that is found. F1 is their harmonic mean; count is how many there are."
        )
    if judged.kind == SEVERAL:
        return
    with right:
        st.header("What is taken for what", anchor=False)
        cell = heatmap(of_confusion(judged), key="confusion")
        if cell is None:
            blocks.caveat("Click a cell, or press Enter on it, to see its texts.")
    if cell is not None:
        true, answered = judged.labels[cell.row], judged.labels[cell.column]
        units = judged.where(cell.row, cell.column)
        st.markdown(f"**{state.plain(true)} answered as {state.plain(answered)}**: {len(units):,}")
        _listed(found, judged, units, "cell")


def _texts(found: TrainingOutcome, judged: EvaluateResult) -> None:
    """Those to look at first."""
    if judged.kind == NUMBER:
        st.header("Furthest off", anchor=False)
        _listed(found, judged, judged.surely_wrong, "wrong")
        return
    st.header("Texts to look at", anchor=False)
    which = state.pick("train_texts", "Texts to look at", _LISTS, "wrong")
    units = judged.surely_wrong if which == "wrong" else judged.least_certain
    if not len(units):
        st.caption("None is answered wrong.")
    _listed(found, judged, units, which)


def _listed(found: TrainingOutcome, judged: EvaluateResult, units: Array | Sequence[int], key: str) -> None:
    """Texts with their answers, each to be opened with the model that gave them."""
    table = judged.listed(units[:_LISTED])
    for number, row in enumerate(table.to_dict("records")):
        text, pair = row["text"], row.get("pair")
        written = f"{state.plain(text, 300)} / {state.plain(pair, 300)}" if pair else state.plain(text, 300)
        if judged.kind == TAGS:
            text, written = _in_sentence(found, judged, int(units[number]))
        _row(found, f"{written}  \n:gray[{_answered(row)}]", f"{key} {number}", text, pair)
    if len(units) > _LISTED:
        st.caption(f"The first {_LISTED} of {len(units):,}; the export has all.")


def _row(found: TrainingOutcome, written: str, key: str, text: str, pair: str | None = None) -> None:
    """A text in Markdown, and the button that opens it with the model that was taught."""
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        with st.container(width="stretch"):
            st.markdown(written)
        if st.button("Open in Answer", key=f"open {key}", on_click=saving.ask, args=(found, text, pair)):
            with callbacks.to_the_end():
                st.switch_page(saving.ANSWER)


def _in_sentence(found: TrainingOutcome, judged: EvaluateResult, unit: int) -> tuple[str, str]:
    """The sentence of a word, as it is, and in Markdown with the word and its answer marked."""
    sentence: TaggedSentence = found.taught.held_out[judged.rows[unit]]
    answered = judged.named(judged.predicted[unit])
    start, end = sentence.spans[judged.words[unit]]
    mark = highlight.HighlightSpan(start, end, answered, highlight.COLOURS[0])
    return sentence.text, highlight.markdown(sentence.text, [mark])


def _answered(row: Mapping[Any, Any]) -> str:
    """Right, answered, and how sure, for a line."""
    right, answered = (state.plain(str(row[name])) or "none" for name in ("true", "predicted"))
    sure = f", {row['probability']:.1%} sure" if "probability" in row else ""
    return f"line {row['line']:,} · right is **{right}** · answered **{answered}**{sure}"


def _more(taught: TrainingResult, judged: EvaluateResult) -> list[More]:
    """Further tables, and the files that the lines read."""
    shows = {"classes": "Class by class", "confusion": "Confusion matrix", "texts": "Every text"}
    missing = {NUMBER: ("classes", "confusion"), SEVERAL: ("confusion",)}.get(judged.kind, ())
    tables: list[More] = [
        (label, f"{show}.csv", partial(written, judged.showing(show=show), "csv"))
        for show, label in shows.items()
        if show not in missing
    ]
    said = judged.inputs.sentences["files"]
    files = (("The held-out rows", "rows", taught.held_out), ("The training rows", "training", taught.data))
    return [*tables, *((label, said[name]["file"], partial(_file, rows)) for label, name, rows in files)]


def _data(found: TrainingOutcome) -> list[More]:
    """The files that the lines of a training read."""
    given = {"data": found.data.rows, "held_out": found.data.held_out}
    return [
        (f"The rows, {name}", name, partial(_file, rows))
        for part, name in found.taught.files.items()
        if (rows := given.get(part)) is not None
    ]


def _file(rows: Given, _csv_safe: bool) -> bytes:
    return as_file(rows)
