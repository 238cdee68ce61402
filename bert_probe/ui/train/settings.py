"""What is updated, how long and how fast: a question `Train`, put together by hand."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any, cast

import streamlit as st

from bert_probe.analyses.outputs.evaluate import Rows
from bert_probe.model.checkpoint import CLASSIFYING, FILLING, LABELLING, Checkpoint
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.training.schedule import BATCHES, EPOCHS, RATES, usual
from bert_probe.training.train import Train, TrainingPlan
from bert_probe.training.trainable_parameters import ALL, HEAD, LORA, TOP, ParameterCount, counts
from bert_probe.ui import state
from bert_probe.ui.train.data import TrainingData, is_plain

_WAYS = {HEAD: "Head only", TOP: "Top layers", ALL: "All", LORA: "LoRA"}
_ABOUT = {
    HEAD: "The encoder stays as it is.",
    TOP: "The last layers too: slower, and better where the task is far from what the model knows.",
    ALL: "Every number of the model; the slowest.",
    LORA: "Narrow matrices beside those of the layers; the model's own stay.",
}
_MOST_EPOCHS = 1_000
_PLAN, _DEPTH = "train_plan", "top_layers"


def part(checkpoint: Checkpoint, data: TrainingData) -> TrainingPlan:
    """Draw all choices and what they would take.

    Raises:
        ProbeError: data or settings that cannot be.
    """
    st.header("2 · What is updated", anchor=False)
    chosen = update(_counts(checkpoint, data))
    st.header("3 · Settings", anchor=False)
    asked = _question(chosen, data, checkpoint)
    planned = _plan(asked, checkpoint, data)
    st.markdown(state.plain(str(planned), 1_000))
    for warning in planned.warnings:
        st.warning(state.plain(warning, 1_000))
    for note in planned.notes:
        st.caption(state.plain(note, 1_000))
    return planned


def _counts(checkpoint: Checkpoint, data: TrainingData) -> list[ParameterCount]:
    """How many parameters each way changes, for so many labels."""
    if is_plain(data.rows):
        return [*counts(checkpoint, FILLING)]
    rows = cast(Rows, data.rows)
    if isinstance(rows, LabeledTexts):
        return [*counts(checkpoint, CLASSIFYING, len(rows.labels) or 1)]
    tags = {tag for sentence in rows for tag in sentence.tags}
    return [*counts(checkpoint, LABELLING, len(tags))]


def _plan(asked: Train, checkpoint: Checkpoint, data: TrainingData) -> TrainingPlan:
    """What it would take; worked out again only when something changes, as it reads all texts."""
    held: tuple[Hashable, TrainingData, TrainingPlan] | None = st.session_state.get(_PLAN)
    cause = (asked, checkpoint.cause)
    if (
        held is None
        or held[0] != cause
        or held[1].rows is not data.rows
        or held[1].held_out is not data.held_out
    ):
        with st.spinner("Reading the texts …", show_time=False):
            held = cause, data, asked.plan(checkpoint, data.rows, data.held_out)
        st.session_state[_PLAN] = held
    return held[2]


def update(known: Sequence[ParameterCount]) -> str:
    """What is to be updated, each way with the number of its parameters."""
    by_name = {one.update: one for one in known}
    tops = [one for one in by_name if one.startswith(TOP)]
    ways = [way for way in _WAYS if way != TOP or tops]
    state.prepare("update", ways, HEAD)
    left, right = st.columns([3, 2], gap="large")
    with right:
        place = st.container()
    deep = _layers(place, len(tops)) if tops and st.session_state["update"] == TOP else 1
    named = {way: f"{TOP}:{deep}" if way == TOP else way for way in ways}
    with left:
        way = st.radio(
            "What is updated",
            ways,
            format_func=_WAYS.__getitem__,
            captions=[f"{_counted(by_name[named[way]])} {_ABOUT[way]}" for way in ways],
            key="update",
            label_visibility="collapsed",
            persist_state="session",
        )
    return named[way or HEAD]


def _layers(place: Any, most: int) -> int:
    with place:
        state.prepare(_DEPTH, range(1, most + 1), min(2, most))
        if most == 1:
            return 1
        chosen: int = st.slider("Last layers", 1, most, key=_DEPTH, persist_state="session")
        return chosen


def _counted(one: ParameterCount) -> str:
    """How many parameters change, in words for a caption."""
    return f"{one.trainable:,} of {one.parameters:,} parameters ({one.trainable / one.parameters:.1%})."


def _question(chosen: str, data: TrainingData, checkpoint: Checkpoint) -> Train:
    """All settings. What is as usual for this way of updating is left to the question.

    Raises:
        SelectionError: a learning rate that is none.
    """
    meant = usual(chosen)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=130):
            epochs = number("epochs", "Epochs", meant.epochs, 1, _MOST_EPOCHS, f" {chosen}")
        with st.container(width=170):
            rate = _rate(chosen, meant.rate)
        with st.container(width=240):
            sizes = {str(size): str(size) for size in (8, *BATCHES, 64)}
            batch = state.pick("batch", "Texts in a step", sizes, "16", "The batch.")
        with st.container(width=130):
            seed = number("seed", "Seed", 0, 0, 2**32 - 1)
    whole_words = is_plain(data.rows) and state.switch(
        "whole_words", "Whole words", False, "Mask all pieces of a word or none, which is harder."
    )
    st.caption(
        f"Where the encoder is updated, the BERT paper found {EPOCHS[0]} to {EPOCHS[-1]} epochs, batches of "
        f"{' or '.join(map(str, BATCHES))} and a rate of {', '.join(f'{one:g}' for one in RATES)} to work. A "
        "head alone begins with nothing known: it takes larger steps, and more of them. The same seed gives "
        "the same weights again."
    )
    given = {"update": chosen, "batch": batch, "seed": str(seed), "held_out": repr(data.share)}
    given |= {"whole_words": "1"} if whole_words else {}
    given |= {} if epochs == meant.epochs else {"epochs": str(epochs)}
    given |= {} if rate == f"{meant.rate:g}" else {"rate": rate}
    return Train.from_address(given, checkpoint.description)


def number(key: str, label: str, default: int, least: int, most: int, of: str = "") -> int:
    """A whole number, in the address where it is not the usual one; ``of`` is what that depends on."""
    name = key + of
    if name not in st.session_state:
        written = state.address().get(key, "")
        inside = re.fullmatch("[0-9]{1,10}", written) and least <= int(written) <= most
        st.session_state[name] = int(written) if inside else default
    value = int(st.number_input(label, least, most, key=name, persist_state="session"))
    state.remember(key, None if value == default else str(value))
    return value


def _rate(chosen: str, default: float) -> str:
    """One of the offered learning rates, or another that is written."""
    key, usual_one = f"rate {chosen}", f"{default:g}"
    offered = [f"{one:g}" for one in sorted({default, *RATES}, reverse=True)]
    if key not in st.session_state:
        st.session_state[key] = state.address().get("rate") or usual_one
    written = st.selectbox(
        "Learning rate",
        list(dict.fromkeys([*offered, st.session_state[key] or usual_one])),
        key=key,
        accept_new_options=True,
        help="The highest one: it rises for a tenth of the steps, then falls to 0. You can type another.",
        persist_state="session",
    )
    rate = (written or usual_one).strip().lower()
    state.remember("rate", None if rate == usual_one else rate)
    return rate
