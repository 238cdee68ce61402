"""Training settings: the parameters to update, epochs, learning rate, batch size and seed, as a question
`Train`."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from typing import Any, cast

import streamlit as st

from bert_probe.analyses.outputs.evaluate import Rows
from bert_probe.model.checkpoint import FILL_MASK, TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.training.schedule import (
    RECOMMENDED_BATCHES,
    RECOMMENDED_EPOCHS,
    RECOMMENDED_RATES,
    default_settings,
)
from bert_probe.training.train import Train, TrainingPlan
from bert_probe.training.trainable_parameters import ALL, HEAD, LORA, TOP, ParameterCount, count_by_scope
from bert_probe.ui import state
from bert_probe.ui.train.data import TrainingData, is_plain

_UPDATES = {HEAD: "Head only", TOP: "Top layers", ALL: "All", LORA: "LoRA"}
_DESCRIPTIONS = {
    HEAD: "The encoder is frozen.",
    TOP: "The head and the last layers: slower, and better if the task is far from the pretraining.",
    ALL: "All parameters of the model; the slowest.",
    LORA: "Low-rank matrices in each layer; the model's own parameters are frozen.",
}
_MAX_EPOCHS = 1_000
_PLAN, _DEPTH = "train_plan", "top_layers"


def choose_plan(checkpoint: Checkpoint, data: TrainingData) -> TrainingPlan:
    """Draw the settings and return the plan of the training.

    Raises:
        ProbeError: the data or the settings are invalid.
    """
    st.header("2 · Trainable parameters", anchor=False)
    update = choose_update(_counts(checkpoint, data))
    st.header("3 · Settings", anchor=False)
    plan = _plan(_question(update, data, checkpoint), checkpoint, data)
    st.markdown(state.escape(str(plan), 1_000))
    for warning in plan.warnings:
        st.warning(state.escape(warning, 1_000))
    for note in plan.notes:
        st.caption(state.escape(note, 1_000))
    return plan


def _counts(checkpoint: Checkpoint, data: TrainingData) -> list[ParameterCount]:
    """Return the number of trainable parameters of each method, for the labels of the data."""
    if is_plain(data.rows):
        return [*count_by_scope(checkpoint, FILL_MASK)]
    rows = cast(Rows, data.rows)
    if isinstance(rows, LabeledTexts):
        return [*count_by_scope(checkpoint, TEXT_CLASSIFICATION, len(rows.labels) or 1)]
    tags = {tag for sentence in rows for tag in sentence.tags}
    return [*count_by_scope(checkpoint, TOKEN_CLASSIFICATION, len(tags))]


def _plan(question: Train, checkpoint: Checkpoint, data: TrainingData) -> TrainingPlan:
    """Return the plan; it is computed again only after a change, as it reads all texts."""
    last: tuple[Hashable, TrainingData, TrainingPlan] | None = st.session_state.get(_PLAN)
    cause = (question, checkpoint.cache_key)
    if (
        last is None
        or last[0] != cause
        or last[1].rows is not data.rows
        or last[1].held_out is not data.held_out
    ):
        with st.spinner("Reading the texts …", show_time=False):
            last = cause, data, question.plan(checkpoint, data.rows, data.held_out)
        st.session_state[_PLAN] = last
    return last[2]


def choose_update(parameter_counts: Sequence[ParameterCount]) -> str:
    """Draw the choice of trainable parameters, each with its number of parameters."""
    by_name = {count.update: count for count in parameter_counts}
    depths = sum(name.startswith(TOP) for name in by_name)
    options = [option for option in _UPDATES if option != TOP or depths]
    state.prepare("update", options, HEAD)
    left, right = st.columns([3, 2], gap="large")
    with right:
        container = st.container()
    depth = _choose_depth(container, depths) if depths and st.session_state["update"] == TOP else 1
    names = {option: f"{TOP}:{depth}" if option == TOP else option for option in options}
    with left:
        option = st.radio(
            "Trainable parameters",
            options,
            format_func=_UPDATES.__getitem__,
            captions=[f"{_describe(by_name[names[option]])} {_DESCRIPTIONS[option]}" for option in options],
            key="update",
            label_visibility="collapsed",
            persist_state="session",
        )
    return names[option or HEAD]


def _choose_depth(container: Any, layers: int) -> int:
    with container:
        state.prepare(_DEPTH, range(1, layers + 1), min(2, layers))
        if layers == 1:
            return 1
        depth: int = st.slider("Last layers", 1, layers, key=_DEPTH, persist_state="session")
        return depth


def _describe(count: ParameterCount) -> str:
    share = count.trainable / count.parameters
    return f"{count.trainable:,} of {count.parameters:,} parameters ({share:.1%})."


def _question(update: str, data: TrainingData, checkpoint: Checkpoint) -> Train:
    """Draw the settings and return the question; settings equal to the default are left out of it.

    Raises:
        SelectionError: the learning rate is invalid.
    """
    defaults = default_settings(update)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        with st.container(width=130):
            epochs = number("epochs", "Epochs", defaults.epochs, 1, _MAX_EPOCHS, f" {update}")
        with st.container(width=170):
            rate = _choose_rate(update, defaults.rate)
        with st.container(width=240):
            sizes = {str(size): str(size) for size in (8, *RECOMMENDED_BATCHES, 64)}
            batch = state.segmented_control("batch", "Batch size", sizes, "16", "Texts per step.")
        with st.container(width=130):
            seed = number("seed", "Seed", 0, 0, 2**32 - 1)
    whole_words = is_plain(data.rows) and state.toggle(
        "whole_words",
        "Whole words",
        False,
        "Whole-word masking: mask all subword tokens of a word or none, which is harder.",
    )
    rates = ", ".join(f"{rate:g}" for rate in RECOMMENDED_RATES)
    st.caption(
        f"For an encoder that is updated, the BERT paper recommends {RECOMMENDED_EPOCHS[0]} to "
        f"{RECOMMENDED_EPOCHS[-1]} epochs, a "
        f"batch size of {' or '.join(map(str, RECOMMENDED_BATCHES))} and a learning rate of "
        f"{rates}. A head alone starts "
        "from random weights and needs a higher learning rate and more epochs. The same seed gives the same "
        "weights."
    )
    address = {"update": update, "batch": batch, "seed": str(seed), "held_out": repr(data.share)}
    address |= {"whole_words": "1"} if whole_words else {}
    address |= {} if epochs == defaults.epochs else {"epochs": str(epochs)}
    address |= {} if rate == f"{defaults.rate:g}" else {"rate": rate}
    return Train.from_address(address, checkpoint.description)


def number(key: str, label: str, default: int, minimum: int, maximum: int, suffix: str = "") -> int:
    """Draw a number input; its value is in the URL unless it is the default.

    Args:
        suffix: of the widget key; a widget with another suffix starts with its own default.
    """
    name = key + suffix
    if name not in st.session_state:
        text = state.url_parameters().get(key, "")
        is_valid = re.fullmatch("[0-9]{1,10}", text) and minimum <= int(text) <= maximum
        st.session_state[name] = int(text) if is_valid else default
    value = int(st.number_input(label, minimum, maximum, key=name, persist_state="session"))
    state.remember(key, None if value == default else str(value))
    return value


def _choose_rate(update: str, default: float) -> str:
    """Draw the choice of a learning rate, which can also be typed."""
    key, default_text = f"rate {update}", f"{default:g}"
    options = [f"{rate:g}" for rate in sorted({default, *RECOMMENDED_RATES}, reverse=True)]
    if key not in st.session_state:
        st.session_state[key] = state.url_parameters().get("rate") or default_text
    value = st.selectbox(
        "Learning rate",
        list(dict.fromkeys([*options, st.session_state[key] or default_text])),
        key=key,
        accept_new_options=True,
        help="The maximum: the rate rises for the first tenth of the steps (warmup), then falls to 0. You "
        "can type another value.",
        persist_state="session",
    )
    rate = (value or default_text).strip().lower()
    state.remember("rate", None if rate == default_text else rate)
    return rate
