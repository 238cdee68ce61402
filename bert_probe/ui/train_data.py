"""Widgets of the Train page for the dataset, the trainable parameters and the training settings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeGuard, cast

import pandas as pd
import streamlit as st

from bert_probe.analyses.outputs.evaluate import Rows
from bert_probe.errors import InvalidFileError, TextError
from bert_probe.model.checkpoint import (
    FILL_MASK,
    SENTENCE_SIMILARITY,
    TEXT_CLASSIFICATION,
    TOKEN_CLASSIFICATION,
    Checkpoint,
)
from bert_probe.server import sessions
from bert_probe.text.datasets import everyday_topics
from bert_probe.text.labeled_texts import MULTI_LABEL, NUMBER, SEPARATOR, LabeledTexts, parse_labeled_texts
from bert_probe.text.sentence_files import column_names, parse_sentences, sentences_in_text
from bert_probe.text.similarity_examples import (
    COLUMNS,
    SCORED,
    SimilarityExamples,
    parse_similarity_examples,
    similarity_kind,
)
from bert_probe.text.tagged_sentences import parse_tagged_sentences
from bert_probe.text.words import truncate_text
from bert_probe.training.contrastive import AUTO as LOSS_DEFAULT
from bert_probe.training.contrastive import LOSSES, losses_for
from bert_probe.training.models import ALL, HEAD, LORA, TOP, ParameterCount, count_by_scope
from bert_probe.training.schedule import (
    RECOMMENDED_BATCHES,
    RECOMMENDED_EPOCHS,
    RECOMMENDED_RATES,
    default_settings,
)
from bert_probe.training.sentence_classifier import (
    AUTO,
    CLS,
    PENALTIES,
    SENTENCE,
    count_sentence_head,
    sentence_head_problem,
)
from bert_probe.training.train import Train, TrainingPlan
from bert_probe.ui import blocks, sentence_input, state
from bert_probe.views.text import percentage

HELD_OUT_OPTIONS = {"0.1": "10%", "0.2": "20%", "0.3": "30%", "0.5": "50%", "file": "File"}
"""URL value → label of each option for the held-out split: a share of the rows, or a file."""
_DEFAULT_SHARE = "0.2"
_SOURCES = {"example": "Sample: six everyday topics", "file": "Your file", "lines": "Pasted lines"}
_TABLES, _TAGGED, _PLAIN = ("csv", "tsv", "jsonl"), ("conll", "conllu"), ("txt", *sentence_input.FASTA_TYPES)
_PASTED, _READ = "train_lines", "train_lines_read"
_PREVIEW_ROWS, _PREVIEW_CHARACTERS = 100, 1_000
_FORMATS = (
    "A table (.csv, .tsv, .jsonl) with a header and the columns **text** and **label**, or **text_a**, "
    "**text_b** and **label**; for several labels per text, a column **labels** with | between them. To "
    "train the model's sentence vector, use **text_a**, **text_b** and **score**, or **anchor**, "
    "**positive** and optionally **negative**. You can also upload CoNLL, with a word and its tag per "
    "line and empty lines between sentences. For masked-language modeling, upload plain text (.txt), with "
    "one text per line, or FASTA."
)
_MASKING = (
    "No labels are needed. In each epoch, 15% of the tokens of each text are selected for prediction. Of "
    "these, 80% are masked, 10% replaced by a random token and 10% unchanged, as in BERT's training."
)

TrainingRows = Rows | SimilarityExamples | Sequence[str]
"""Rows of a dataset: labeled rows, similarity examples, or plain lines for masked-language modeling."""


def is_plain(rows: TrainingRows) -> TypeGuard[Sequence[str]]:
    """Return whether the rows of a dataset are plain lines without labels."""
    return not isinstance(rows, LabeledTexts | SimilarityExamples) and all(
        isinstance(row, str) for row in rows
    )


@dataclass(frozen=True, eq=False)
class TrainingData:
    """A dataset with its held-out split.

    Attributes:
        held_out: rows of a separate held-out file; None to hold out a share of `rows`.
        share: share of `rows` that is held out, in [0, 1]; 0 with a separate file.
        name: name of the training file.
    """

    rows: TrainingRows
    held_out: TrainingRows | None
    share: float
    name: str


def choose_data() -> TrainingData | None:
    """Draw selectors for the dataset and the held-out split; return the data, or None without a file."""
    st.header("1 · Data", anchor=False)
    source = state.segmented_control(
        "data", "Dataset", _SOURCES, "example", "Labeled texts, or plain text for masked-language modeling."
    )
    named_rows = _choose_rows(source)
    if named_rows is None:
        return None
    name, rows = named_rows
    _preview(rows)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        share = state.segmented_control(
            "held_out",
            "Held-out split",
            HELD_OUT_OPTIONS,
            _DEFAULT_SHARE,
            "Examples that are held out from training and used for evaluation. The split is stratified "
            "by class.",
        )
    if share != "file":
        return TrainingData(rows, None, float(share), name)
    held_out = _upload("train_held_out", "Held-out file with the same columns")
    if held_out is None:
        return None
    _preview(held_out[1])
    return TrainingData(rows, held_out[1], 0.0, name)


def _choose_rows(source: str) -> tuple[str, TrainingRows] | None:
    if source == "example":
        st.caption(
            "300 short sentences on six topics, 50 per topic, included in the package. Sentences on the "
            "same topic share few words, so the topic must be recognized by meaning."
        )
        return "everyday_topics.csv", everyday_topics()
    named_rows = _paste() if source == "lines" else _upload("train_data", "Training file")
    if named_rows is None:
        st.caption(_MASKING if source == "lines" else _FORMATS)
    return named_rows


def _paste() -> tuple[str, TrainingRows] | None:
    """Draw a text area; return a file name and the pasted lines, or None if there are no lines."""
    try:
        text = sentence_input.paste_text(
            _PASTED,
            "Texts, one per line",
            "Paste texts, one per line",
            about="Press Ctrl+Enter, or click outside the field, to read the texts.",
        )
        last = st.session_state.get(_READ)
        # Keep the list of lines while the text is unchanged, because `_plan` compares rows by identity.
        if last is None or last[0] != text:
            lines = sentences_in_text(text, _MAX_ROWS + 1)
            sentence_input.check_count(lines, _MAX_ROWS, "lines")
            last = st.session_state[_READ] = (text, lines)
    except TextError as error:
        _file_error(error, "pasted lines")
        return None
    return ("lines.txt", last[1]) if last[1] else None


def _upload(key: str, label: str) -> tuple[str, TrainingRows] | None:
    """Draw an uploader; return the name and rows of the file, or None if it is missing or invalid."""
    help_text = f"UTF-8, {sentence_input.upload_note()}"
    file = sentence_input.upload_file(key, label, [*_TABLES, *_TAGGED, *_PLAIN], help_text, _read)
    if file is None:
        return None
    name, rows = file
    if isinstance(rows, TextError):
        _file_error(rows, name)
        return None
    st.caption(f"{state.escape(name)} was read.")
    return name, rows


def _read(name: str, content: bytes) -> tuple[str, TrainingRows | TextError]:
    """Return the name of a file, and its rows or the error that occurred while reading it."""
    suffix = PurePath(name).suffix.lower().lstrip(".")
    try:
        sentence_input.check_size(name, content)
        if suffix in _TABLES:
            is_similarity = similarity_kind(column_names(content, name)) is not None
            parse_table = parse_similarity_examples if is_similarity else parse_labeled_texts
            return name, parse_table(content, name, max_rows=_MAX_ROWS)
        if suffix in _PLAIN:
            return name, parse_sentences(content, name, max_sentences=_MAX_ROWS)
        sentences = parse_tagged_sentences(content, name)
        sentence_input.check_count(sentences, _MAX_ROWS)
        return name, sentences
    except TextError as error:
        return name, error


def _file_error(error: TextError, name: str) -> None:
    """Draw the errors found in a training file."""
    with st.container(border=True, key=f"refusal {name}"):
        st.markdown("**This file cannot be read**")
        if not isinstance(error, InvalidFileError):
            st.text(str(error))
            return
        noun = "error" if error.count == 1 else "errors"
        st.markdown(f"{state.escape(name)} has {error.count:,} {noun}:")
        errors = sorted(error.faults)
        st.markdown("\n".join(f"- line {line:,}: {state.escape(message)}" for line, message in errors))
        if error.count > len(error.faults):
            st.caption(f"Further errors: {error.count - len(error.faults):,}.")
        st.caption("Fix the file, and upload the file again. Your other settings are kept.")


def _preview(rows: TrainingRows) -> None:
    """Draw a preview of a dataset: the first rows, and label frequencies or a description."""
    texts, labels = st.columns([3, 2], gap="large")
    with texts:
        first = _first_rows(rows).map(_shortened)
        st.markdown(f"**First {len(first):,} rows**")
        blocks.table(first, "The first rows", max_height=250)
    with labels:
        if is_plain(rows):
            st.markdown(f"**{len(rows):,} texts for masked-language modeling**")
            st.markdown(_MASKING)
            return
        if isinstance(rows, SimilarityExamples):
            st.markdown(f"**{len(rows.rows):,} {rows.kind} for sentence similarity**")
            st.markdown(
                "Training fine-tunes the model's own sentence vectors, starting from the current weights."
            )
            return
        rows = cast(Rows, rows)
        if isinstance(rows, LabeledTexts) and rows.kind == NUMBER:
            numbers = pd.Series([row.label for row in rows.rows], dtype=float)
            st.markdown(f"**{len(numbers):,} texts with numeric labels**")
            st.markdown(f"{numbers.min():g} to {numbers.max():g}, mean {numbers.mean():.4g}.")
            return
        counts = _counts(rows)
        size = f"{len(rows.rows):,} texts" if isinstance(rows, LabeledTexts) else f"{len(rows):,} sentences"
        st.markdown(f"**{size}, {len(counts):,} {_label_noun(rows)}**")
        table = pd.DataFrame(counts.most_common(), columns=["label", "count"])
        blocks.table(
            table,
            "Frequency of each label",
            max_height=250,
            column_config={
                "count": st.column_config.ProgressColumn(
                    "count", format="%d", min_value=0, max_value=max(counts.values(), default=1)
                )
            },
        )


def _label_noun(rows: Rows) -> str:
    if not isinstance(rows, LabeledTexts):
        return "tags"
    return "labels" if rows.kind == MULTI_LABEL else "classes"


def _counts(rows: Rows) -> Counter[str]:
    if not isinstance(rows, LabeledTexts):
        return Counter(tag for sentence in rows for tag in sentence.tags)
    counts: Counter[str] = Counter()
    for row in rows.rows:
        counts.update(row.label if isinstance(row.label, tuple) else [str(row.label)])
    return counts


def _shortened(cell: Any) -> Any:
    """Shorten a text for the preview, because the browser measures complete texts to draw a table."""
    return truncate_text(cell, _PREVIEW_CHARACTERS) if isinstance(cell, str) else cell


def _first_rows(rows: TrainingRows) -> pd.DataFrame:
    if is_plain(rows):
        numbered = [
            (getattr(row, "line", number), str(row)) for number, row in enumerate(rows[:_PREVIEW_ROWS], 1)
        ]
        return pd.DataFrame(numbered, columns=["line", "text"])
    if isinstance(rows, SimilarityExamples):
        cells = [
            (row.line, *((row.score,) if row.score is not None else ()), *row.texts)
            for row in rows.rows[:_PREVIEW_ROWS]
        ]
        *texts, last = COLUMNS[rows.kind]
        names = [last, *texts] if rows.kind == SCORED else [*texts, last]
        return pd.DataFrame(cells, columns=["line", *names])
    rows = cast(Rows, rows)
    if not isinstance(rows, LabeledTexts):
        return pd.DataFrame(
            [(row.line, row.text, " ".join(row.tags)) for row in rows[:_PREVIEW_ROWS]],
            columns=["line", "text", "tags"],
        )
    first = rows.rows[:_PREVIEW_ROWS]
    columns: dict[str, Sequence[Any]] = {
        "line": [row.line for row in first],
        # The label precedes the text, because a long text would push it out of a narrow table.
        "label": [SEPARATOR.join(row.label) if isinstance(row.label, tuple) else row.label for row in first],
        "text": [row.text for row in first],
    }
    if any(row.pair is not None for row in first):
        columns["pair"] = [row.pair for row in first]
    return pd.DataFrame(columns)


_UPDATES = {HEAD: "Head only", TOP: "Top layers", ALL: "All", LORA: "LoRA"}
_DESCRIPTIONS = {
    HEAD: "The encoder is frozen.",
    TOP: "The head and the last layers are trained. This option is slower, but better if the task "
    "differs from pretraining.",
    ALL: "All parameters of the model are trained. This is the slowest option.",
    LORA: "Low-rank matrices are added to each layer, and the model's own parameters are frozen.",
}
_HEADS = {SENTENCE: "Sentence vector", CLS: "Transformers head"}
_HEAD_HELP = (
    "Sentence vector: a linear head on the sentence vector of the checkpoint. This head is usually more "
    "accurate, and needs no epochs. Transformers head: the classification head of the model class. A model "
    "that is saved with this head can be loaded with transformers alone. For most models, the input of this "
    "head is the vector of [CLS]."
)
_LOSS_HELP = " ".join(f"{name}: {text}" for name, text in LOSSES.items() if name != LOSS_DEFAULT)
_MAX_EPOCHS = 1_000
_MAX_ROWS = 50_000
"""Maximum number of examples in a file. The command line has no such limit."""
_PLAN, _DEPTH = "train_plan", "top_layers"


def choose_plan(checkpoint: Checkpoint, data: TrainingData) -> TrainingPlan:
    """Draw the training settings and return the training plan.

    Raises:
        ProbeError: the data or the settings are invalid.
    """
    st.header("2 · Trainable parameters", anchor=False)
    has_sentence_head = not sentence_head_problem(checkpoint, data.rows)
    update = choose_update(_format_counts(checkpoint, data, has_sentence_head))
    st.header("3 · Settings", anchor=False)
    head = AUTO
    if has_sentence_head and update == HEAD:
        head = state.segmented_control("train_head", "Head", _HEADS, SENTENCE, _HEAD_HELP)
    plan = _plan(_question(update, head, data, checkpoint), checkpoint, data)
    st.markdown(state.escape(str(plan), 1_000))
    for warning in plan.warnings:
        st.warning(state.escape(warning, 1_000))
    for note in plan.notes:
        st.caption(state.escape(note, 1_000))
    return plan


def _format_counts(
    checkpoint: Checkpoint, data: TrainingData, has_sentence_head: bool
) -> list[ParameterCount]:
    """Return the parameter counts of each update method, such as "head", "top:2" or "lora"."""
    if isinstance(data.rows, SimilarityExamples):
        return [*count_by_scope(checkpoint, SENTENCE_SIMILARITY)]
    if is_plain(data.rows):
        return [*count_by_scope(checkpoint, FILL_MASK)]
    rows = cast(Rows, data.rows)
    if isinstance(rows, LabeledTexts):
        counts = [*count_by_scope(checkpoint, TEXT_CLASSIFICATION, len(rows.labels) or 1)]
        return (
            [count_sentence_head(checkpoint, len(rows.labels) or 1), *counts[1:]]
            if has_sentence_head
            else counts
        )
    tags = {tag for sentence in rows for tag in sentence.tags}
    return [*count_by_scope(checkpoint, TOKEN_CLASSIFICATION, len(tags))]


_EXAMPLE_BYTES = 3_000
"""Approximate memory for an example of a plan; a triple of words takes 2,500 bytes."""
_PlanOf = tuple[Hashable, TrainingData, TrainingPlan]
"""A plan, with the cause and the data that it was made for."""


def _plan(question: Train, checkpoint: Checkpoint, data: TrainingData) -> TrainingPlan:
    """Return the training plan, cached until the data or a setting changes. Planning reads all texts."""
    stored: sessions.SessionValue[_PlanOf] | None = st.session_state.get(_PLAN)
    last = None if stored is None else stored.value
    cause = (question, checkpoint.cache_key)
    if (
        last is None
        or last[0] != cause
        or last[1].rows is not data.rows
        or last[1].held_out is not data.held_out
    ):
        with st.spinner("Reading the texts …", show_time=False):
            last = cause, data, question.plan(checkpoint, data.rows, data.held_out)
        material = last[2].material
        size = _EXAMPLE_BYTES * (len(material.training) + len(material.held_out))
        st.session_state[_PLAN] = sessions.SessionValue(last, sessions.current(), size)
    return last[2]


def _share(count: ParameterCount) -> str:
    """Return the percentage of trainable parameters; 0.0% and 100.0% are exact."""
    share = 100 * count.trainable / count.parameters
    return "less than 0.1%" if 0 < share < 0.1 else percentage(share)


def choose_update(parameter_counts: Sequence[ParameterCount]) -> str:
    """Draw a selector for the update method, and return the method, such as "head", "top:2" or "lora".

    Args:
        parameter_counts: number of trainable parameters of each available method.
    """
    by_name = {count.update: count for count in parameter_counts}
    depths = sum(name.startswith(TOP) for name in by_name)
    options = [option for option in _UPDATES if option in by_name or (option == TOP and depths)]
    state.prepare("update", options, options[0])
    left, right = st.columns([3, 2], gap="large")
    with right:
        container = st.container()
    depth = _choose_depth(container, depths) if depths and st.session_state["update"] == TOP else 1
    names = {option: f"{TOP}:{depth}" if option == TOP else option for option in options}
    counts = [by_name[names[option]] for option in options]
    captions = [
        f"Training updates {count.trainable:,} of {count.parameters:,} parameters "
        f"({_share(count)}). {_DESCRIPTIONS[option]}"
        for option, count in zip(options, counts, strict=True)
    ]
    with left:
        option = st.radio(
            "Trainable parameters",
            options,
            format_func=_UPDATES.__getitem__,
            captions=captions,
            key="update",
            label_visibility="collapsed",
            persist_state="session",
        )
    return names[option or options[0]]


def _choose_depth(container: Any, layers: int) -> int:
    with container:
        state.prepare(_DEPTH, range(1, layers + 1), min(2, layers))
        if layers == 1:
            return 1
        depth: int = st.slider("Last layers", 1, layers, key=_DEPTH, persist_state="session")
        return depth


def _question(update: str, head: str, data: TrainingData, checkpoint: Checkpoint) -> Train:
    """Draw the training settings and return the `Train` question with these settings.

    Args:
        update: update method, such as "head", "top:2" or "lora".
        head: type of the task head, a key of `_HEADS`, or `AUTO`.

    Raises:
        SelectionError: the learning rate is invalid.
    """
    if head == SENTENCE:
        return _sentence_question(data, checkpoint)
    defaults = default_settings(update)
    with st.container(horizontal=True, gap="medium"):
        with st.container(width=130):
            epochs = number("epochs", "Epochs", defaults.epochs, 1, _MAX_EPOCHS, f" {update}")
        with st.container(width=170):
            rate = _choose_rate(update, defaults.rate)
        with st.container(width=240):
            sizes = {str(size): str(size) for size in (8, *RECOMMENDED_BATCHES, 64)}
            batch = state.segmented_control(
                "batch", "Batch size", sizes, "16", "Number of texts per training step."
            )
        with st.container(width=130):
            seed = number("seed", "Seed", 0, 0, 2**32 - 1)
    loss = LOSS_DEFAULT
    if isinstance(data.rows, SimilarityExamples):
        losses = {name: name for name in losses_for(data.rows.kind)}
        loss = state.segmented_control("loss", "Loss", losses, next(iter(losses)), _LOSS_HELP)
    whole_words = is_plain(data.rows) and state.toggle(
        "whole_words",
        "Whole words",
        False,
        "Whole-word masking: mask all subword tokens of a word together, which makes prediction harder.",
    )
    *rates, last_rate = [_shorten_rate(f"{rate:g}") for rate in RECOMMENDED_RATES]
    st.caption(
        f"To train the encoder, the BERT paper recommends {RECOMMENDED_EPOCHS[0]} to "
        f"{RECOMMENDED_EPOCHS[-1]} epochs, a batch size of {' or '.join(map(str, RECOMMENDED_BATCHES))} and "
        f"a learning rate of {', '.join(rates)} or {last_rate}. A head that is trained without the encoder "
        "starts from random weights and needs a higher learning rate and more epochs. The same seed gives "
        "the same weights."
    )
    address = {"update": update, "batch": batch, "seed": str(seed), "held_out": repr(data.share)}
    address |= {"whole_words": "1"} if whole_words else {}
    address |= {"train_head": head} if head != AUTO else {}
    address |= {"loss": loss} if loss != LOSS_DEFAULT else {}
    address |= {} if epochs == defaults.epochs else {"epochs": str(epochs)}
    address |= {} if rate == f"{defaults.rate:g}" else {"rate": rate}
    return Train.from_address(address, checkpoint.description)


def _sentence_question(data: TrainingData, checkpoint: Checkpoint) -> Train:
    """Draw the settings for a head on the sentence vector, and return the `Train` question."""
    with st.container(width=130):
        seed = number("seed", "Seed", 0, 0, 2**32 - 1)
    st.caption(
        f"scikit-learn fits the head for {len(PENALTIES)} strengths of the L2 penalty, and the strength "
        "with the best result on the held-out texts is selected. This head has no epochs and no "
        "learning rate. The seed selects the held-out texts."
    )
    return Train.from_address({"seed": str(seed), "held_out": repr(data.share)}, checkpoint.description)


def number(key: str, label: str, default: int, minimum: int, maximum: int, suffix: str = "") -> int:
    """Draw a number input and return its value. A value other than the default is written to the URL.

    Args:
        key: name of the URL parameter.
        suffix: suffix of the widget key. Widgets with the same `key` and different suffixes have separate
            values.
    """
    name = key + suffix
    if name not in st.session_state:
        text = state.url_parameters().get(key, "")
        is_valid = re.fullmatch("[0-9]{1,10}", text) and minimum <= int(text) <= maximum
        st.session_state[name] = int(text) if is_valid else default
    value = int(st.number_input(label, minimum, maximum, key=name, persist_state="session"))
    state.remember(key, None if value == default else str(value))
    return value


def _shorten_rate(rate: str) -> str:
    """Return a learning rate with a shorter exponent, such as 5e-5 for 5e-05."""
    return rate.replace("e-0", "e-")


def _choose_rate(update: str, default: float) -> str:
    """Draw a selector for the learning rate, which also accepts typed values, and return the rate as text."""
    key, default_text = f"rate {update}", f"{default:g}"
    options = [f"{rate:g}" for rate in sorted({default, *RECOMMENDED_RATES}, reverse=True)]
    if key not in st.session_state:
        st.session_state[key] = state.url_parameters().get("rate") or default_text
    value = st.selectbox(
        "Learning rate",
        list(dict.fromkeys([*options, st.session_state[key] or default_text])),
        format_func=_shorten_rate,
        key=key,
        accept_new_options=True,
        help="The maximum learning rate. The learning rate reaches this value after a warmup of a tenth "
        "of the steps, and then falls to 0. You can type another value.",
        persist_state="session",
    )
    rate = (value or default_text).strip().lower()
    state.remember("rate", None if rate == default_text else rate)
    return rate
