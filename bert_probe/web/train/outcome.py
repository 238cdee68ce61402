"""What was learned: held against what can be had without a model, class by class, text by text; and saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import streamlit as st

from bert_probe.analyses.evaluation import MAIN, Evaluation, Rows
from bert_probe.analyses.guesses import ABOUT
from bert_probe.analyses.judging import TAGS
from bert_probe.errors import ExportError, ProbeError
from bert_probe.model.trace import Array
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
_PLACE, _REPLACE = "train_folder", "train_replace"
_LISTS = {"wrong": "Surely wrong", "uncertain": "Least certain"}
ANSWER = places.page("answer")


def part(found: Outcome) -> None:
    """Draw it."""
    taught, judged = found.taught, found.evaluation
    st.divider()
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.header("What was learned", anchor=False, width="content")
        st.space("stretch")
        export(taught, "training", _data(found), "The course of the training.", label="Export the training")
        if judged is not None:
            export(judged, "evaluation", _more(taught, judged))
    if judged is None:
        st.markdown("Nothing was held out, so nobody can tell how good it is.")
    else:
        _compared(taught, judged)
    for note in taught.notes:
        st.caption(state.plain(note, 1_000))
    _save(found)
    if judged is not None:
        _classes(found, judged)
        _texts(found, judged)
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
        f"The best of {len(taught.history)} evaluations on these very texts was kept, which flatters it a "
        "little. A bag of words is a regression on words and pairs of words, taught with the same texts."
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


def _classes(found: Outcome, judged: Evaluation) -> None:
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


def _texts(found: Outcome, judged: Evaluation) -> None:
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


def _listed(found: Outcome, judged: Evaluation, units: Array | Sequence[int], key: str) -> None:
    """Texts with their answers, each to be opened with the model that gave them."""
    table = judged.listed(units[:_LISTED])
    for number, row in enumerate(table.to_dict("records")):
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            with st.container(width="stretch"):
                pair = f" / {state.plain(row['pair'], 300)}" if row.get("pair") else ""
                st.markdown(f"{state.plain(row['text'], 300)}{pair}  \n:gray[{_answered(row)}]")
            if judged.kind != TAGS and st.button(
                "Open in Answer",
                key=f"open {key} {number}",
                on_click=_ask,
                args=(found, row["text"], row.get("pair")),
            ):
                st.switch_page(ANSWER)
    if len(units) > _LISTED:
        st.caption(f"The first {_LISTED} of {len(units):,}; the export has all.")


def _answered(row: Mapping[Any, Any]) -> str:
    """Right, answered, and how sure, for a line."""
    right, answered = (state.plain(str(row[name])) or "none" for name in ("true", "predicted"))
    sure = f", {row['probability']:.1%} sure" if "probability" in row else ""
    return f"line {row['line']:,} · right is **{right}** · answered **{answered}**{sure}"


def _ask(found: Outcome, text: str, pair: str | None) -> None:
    """Let the workbench hold the trained model and a text."""
    asked = replace(workbench.request(), a=text, b=pair or "", model=_name(found), revision="")
    workbench.ask(replace(asked, relation="pair") if pair else asked)


def _use(found: Outcome) -> None:
    """Let the workbench hold the trained model, with the text that it has."""
    workbench.ask(replace(workbench.request(), model=_name(found), revision=""))


def _name(found: Outcome) -> str:
    """By which the pages open the model: its folder, or the name that it is lent by."""
    if not found.folder:
        found.lent = store.lend(found.taught.checkpoint, found.lent)
    return found.folder or found.lent


def _save(found: Outcome) -> None:
    """Write the model where the reader wants it, and let the workbench have it."""
    with st.container(border=True, key="save"):
        st.markdown("**Keep it**")
        state.hold(_PLACE)
        with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
            with st.container(width=460):
                place = st.text_input(
                    "Folder",
                    key=_PLACE,
                    placeholder="/home/me/models/topics",
                    help="On the machine that the app runs on. An ordinary Hugging Face folder is written.",
                    persist_state="session",
                ).strip()
            replaces = st.checkbox("Replace a model that is there", key=_REPLACE)
            wanted = st.button("Save")
        if wanted:
            _write(found, place, replaces)
        kept = (
            f"Saved in {state.plain(found.folder, 400)}, which every page can open."
            if found.folder
            else "Until it is saved it is in memory only, and gone when this page is closed."
        )
        with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
            st.caption(kept, width="content")
            about = "The workbench's model becomes this one, on every page."
            if st.button("Open it", help=about, on_click=_use, args=(found,)):
                st.switch_page(ANSWER)


def _write(found: Outcome, place: str, replaces: bool) -> None:
    try:
        if not place:
            raise ExportError("No folder is given. Write one, such as the one shown in gray.")
        folder = str(found.taught.save_model(place, replaces).absolute())
    except ProbeError as error:
        st.error(state.plain(str(error), 600))
        return
    store.forget(folder)
    found.folder = folder


def _more(taught: Taught, judged: Evaluation) -> list[More]:
    """Further tables, and the files that the lines read."""
    shows = {"classes": "Class by class", "confusion": "Confusion matrix", "texts": "Every text"}
    missing = {NUMBER: ("classes", "confusion"), SEVERAL: ("confusion",)}.get(judged.kind, ())
    tables: list[More] = [
        (label, f"{show}.csv", partial(written, judged.showing(show=show), "csv"))
        for show, label in shows.items()
        if show not in missing
    ]
    said = judged.subject.sentences["files"]
    files = (("The held-out rows", "rows", taught.held_out), ("The training rows", "training", taught.data))
    return [*tables, *((label, said[name]["file"], partial(_file, rows)) for label, name, rows in files)]


def _data(found: Outcome) -> list[More]:
    """The files that the lines of a training read."""
    given = {"data": found.data.rows, "held_out": found.data.held_out}
    return [
        (f"The rows, {name}", name, partial(_file, rows))
        for part, name in found.taught.files.items()
        if (rows := given.get(part)) is not None
    ]


def _file(rows: Rows, _csv_safe: bool) -> bytes:
    return as_file(rows)
