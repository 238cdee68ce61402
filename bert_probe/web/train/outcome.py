"""What was learned: held against what can be had without a model, class by class, text by text; and saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st

from bert_probe.analyses.evaluation import MAIN, Evaluation, Rows
from bert_probe.analyses.guesses import ABOUT
from bert_probe.analyses.judging import TAGS
from bert_probe.errors import ProbeError
from bert_probe.model.trace import Array
from bert_probe.results import spelling
from bert_probe.text.labelled import NUMBER, SEVERAL
from bert_probe.text.tables import as_file
from bert_probe.training.taught import Taught
from bert_probe.views.answers import of_confusion
from bert_probe.web import blocks, figures, places, state, store, workbench
from bert_probe.web.components.matrix import heatmap
from bert_probe.web.export import More, export, written
from bert_probe.web.train import pictures
from bert_probe.web.train.running import Outcome

_LISTED = 10
"""Texts of a list; the export has all."""
_PLACE, _REPLACE, _SAVED, _NAME = "train_folder", "train_replace", "train_saved", "train_name"
_LISTS = {"wrong": "Surely wrong", "uncertain": "Least certain"}
ANSWER = places.page("answer")


def part(found: Outcome) -> None:
    """Draw it."""
    taught, judged = found.taught, found.evaluation
    st.divider()
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.header("What was learned", anchor=False, width="content")
        st.space("stretch")
        export(taught, "training", [], "The course of the training.", label="Export the training")
        if judged is not None:
            export(judged, "evaluation", _more(taught, judged))
    if judged is None:
        st.markdown("Nothing was held out, so nobody can tell how good it is.")
    else:
        _compared(taught, judged)
    for note in taught.notes:
        st.caption(state.plain(note, 1_000))
    _save(taught)
    if judged is not None:
        _classes(taught, judged)
        _texts(taught, judged)
    with st.expander("The course of the training"):
        st.plotly_chart(
            pictures.course(taught.history, taught.measure, taught.history[-1].step, taught.best),
            width="stretch",
            config=figures.CONFIG,
            key="course of the outcome",
            alt="Loss and held-out measure by step",
        )


def _compared(taught: Taught, judged: Evaluation) -> None:
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
    blocks.caveat(
        f"Of {len(taught.history)} evaluations on these very texts the best was kept, which flatters the model a "
        "little. A bag of words is a regression on words and pairs of words (tf-idf), learned from the same texts."
    )


def _baselines(judged: Evaluation) -> list[tuple[str, float]]:
    return [(ABOUT[name], judged.baselines[name]) for name in ABOUT if name in judged.baselines]


def sentence(judged: Evaluation) -> str:
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


def _classes(taught: Taught, judged: Evaluation) -> None:
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
        _listed(taught, judged, units, "cell")


def _texts(taught: Taught, judged: Evaluation) -> None:
    """Those to look at first."""
    if judged.kind == NUMBER:
        st.header("Furthest off", anchor=False)
        _listed(taught, judged, judged.surely_wrong, "wrong")
        return
    st.header("Texts to look at", anchor=False)
    which = state.pick("train_texts", "Texts to look at", _LISTS, "wrong")
    units = judged.surely_wrong if which == "wrong" else judged.least_certain
    if not len(units):
        st.caption("None is answered wrong.")
    _listed(taught, judged, units, which)


def _listed(taught: Taught, judged: Evaluation, units: Array | Sequence[int], key: str) -> None:
    """Texts with their answers, each to be opened with the model that gave them."""
    table = judged.listed(units[:_LISTED])
    for number, row in enumerate(table.to_dict("records")):
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            with st.container(width="stretch"):
                pair = f" / {state.plain(row['pair'], 300)}" if row.get("pair") else ""
                st.markdown(f"{state.plain(row['text'], 300)}{pair}  \n:gray[{_answered(row)}]")
            if judged.kind != TAGS and st.button("Open in Answer", key=f"open {key} {number}"):
                _ask(taught, row["text"], row.get("pair"))
    if len(units) > _LISTED:
        st.caption(f"The first {_LISTED} of {len(units):,}; the export has all.")


def _answered(row: Mapping[Any, Any]) -> str:
    """Right, answered, and how sure, for a line."""
    right, answered = (state.plain(str(row[name])) or "none" for name in ("true", "predicted"))
    sure = f", {row['probability']:.1%} sure" if "probability" in row else ""
    return f"line {row['line']:,} · right is **{right}** · answered **{answered}**{sure}"


def _ask(taught: Taught, text: str, pair: str | None) -> None:
    """Show what the trained model makes of a text."""
    name = st.session_state.get(_SAVED) or _lent(taught)
    asked = replace(workbench.request(), a=text, b=pair or "", model=name, revision="", truncate=True)
    workbench.ask(replace(asked, relation="pair") if pair else asked)
    st.switch_page(ANSWER)


def _lent(taught: Taught) -> str:
    """The name by which the pages open a model that is in memory only."""
    held: str | None = st.session_state.get(_NAME)
    name = st.session_state[_NAME] = store.lend(taught.checkpoint, held)
    state.hold(_NAME)
    return name


def _save(taught: Taught) -> None:
    """Write the model where the reader wants it, and let the workbench have it."""
    with st.container(border=True, key="save"):
        st.markdown("**Keep it**")
        state.hold(_PLACE, _SAVED)
        with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
            with st.container(width=460):
                place = st.text_input(
                    "Folder",
                    key=_PLACE,
                    placeholder="/home/me/models/topics",
                    help="On the machine that the app runs on. An ordinary Hugging Face folder is written.",
                    persist_state="session",
                )
            replaces = st.checkbox("Replace a model that is there", key=_REPLACE)
            if st.button("Save", disabled=not place.strip()):
                _write(taught, place.strip(), replaces)
        saved = st.session_state.get(_SAVED)
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            if saved:
                st.caption(f"Saved in {state.plain(saved, 400)}, which every page can open.", width="content")
            else:
                st.caption(
                    "Until it is saved it is in memory, and gone when this page is closed.", width="content"
                )
            if st.button("Open it", help="The workbench's model becomes this one, on every page."):
                name = saved or _lent(taught)
                workbench.ask(replace(workbench.request(), model=name, revision=""))
                st.switch_page(ANSWER)


def _write(taught: Taught, place: str, replaces: bool) -> None:
    try:
        folder = taught.save_model(Path(place), replaces).absolute()
    except ProbeError as error:
        st.error(state.plain(str(error), 600))
        return
    store.forget(str(folder))
    st.session_state[_SAVED] = str(folder)


def _more(taught: Taught, judged: Evaluation) -> list[More]:
    """Further tables, and the files that the lines read."""
    shows = {"classes": "Class by class", "confusion": "Confusion matrix", "texts": "Every text"}
    missing = {NUMBER: ("classes", "confusion"), SEVERAL: ("confusion",)}.get(judged.kind, ())
    tables: list[More] = [
        (label, f"{show}.csv", partial(written, judged.showing(show=show), "csv"))
        for show, label in shows.items()
        if show not in missing
    ]
    held_out, training = spelling.labelled_files(judged.kind)
    files = (("The held-out rows", held_out, taught.held_out), ("The training rows", training, taught.data))
    return [*tables, *((label, name, partial(_file, rows)) for label, name, rows in files)]


def _file(rows: Rows, _csv_safe: bool) -> bytes:
    return as_file(rows)
