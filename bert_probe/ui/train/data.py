"""What to learn from: the shipped example, a file or pasted lines, looked at before anything runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeGuard, cast

import pandas as pd
import streamlit as st

from bert_probe.analyses.outputs.evaluate import Rows
from bert_probe.errors import InvalidFileError, TextError
from bert_probe.text.labeled_texts import NUMBER, SEPARATOR, SEVERAL, LabeledTexts, parse_labeled_texts
from bert_probe.text.sample_data import everyday_topics
from bert_probe.text.sentence_files import lines, parse_sentences
from bert_probe.text.tagged_sentences import parse_tagged_sentences
from bert_probe.ui import sentence_input, state

SHARES = {"0.1": "10 %", "0.2": "20 %", "0.3": "30 %", "0.5": "50 %", "file": "A file"}
"""What may be held out, by the word in the address."""
_USUAL = "0.2"
_SOURCES = {"example": "Example: six everyday topics", "file": "Your file", "lines": "Pasted lines"}
_TABLES, _TAGGED, _PLAIN = ("csv", "tsv", "jsonl"), ("conll", "conllu"), ("txt",)
_PASTED, _READ = "train_lines", "train_lines_read"
_SHOWN = 100
"""Rows of the preview."""
_FORM = (
    "A table (.csv, .tsv, .jsonl) with a header, **text** and **label**, or **text_a**, **text_b** and "
    "**label**; several labels of a text stand in a column **labels** with | between. Or CoNLL: a word and "
    "its tag a line, with blank lines between sentences. Or plain text (.txt), a text a line, whose words "
    "are masked and guessed."
)
_MASKED = (
    "No labels are needed: in each text 15 % of the tokens are to be guessed, drawn anew each time it is "
    "learned from. Of these 80 % are masked, 10 % become any other token and 10 % stay, as BERT was trained."
)

Given = Rows | Sequence[str]
"""What can be learned from: rows with what is right, or plain lines, whose words are masked."""


def is_plain(rows: Given) -> TypeGuard[Sequence[str]]:
    """Whether these are lines without labels."""
    return not isinstance(rows, LabeledTexts) and all(isinstance(row, str) for row in rows)


@dataclass(frozen=True, eq=False)
class TrainingData:
    """Rows to learn from.

    Attributes:
        rows: of one file, or the example.
        held_out: of another file; None where a share of the rows is held out.
        share: that share.
        name: of the file.
    """

    rows: Given
    held_out: Given | None
    share: float
    name: str


def part() -> TrainingData | None:
    """Draw the choice and what was chosen; None while there is nothing that can be learned from."""
    st.header("1 · Data", anchor=False)
    source = state.pick(
        "data",
        "Texts to learn from",
        _SOURCES,
        "example",
        "With their right answers, or plain: then words are masked.",
    )
    found = _given(source)
    if found is None:
        return None
    name, rows = found
    preview(rows)
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        share = state.pick(
            "held_out",
            "Held out",
            SHARES,
            _USUAL,
            "Texts that are not learned from, but asked afterwards: only they tell what was learned. Of each "
            "class as large a share.",
        )
    if share != "file":
        return TrainingData(rows, None, float(share), name)
    other = _file("train_held_out", "A file to be held out, of the same kind")
    if other is None:
        return None
    preview(other[1])
    return TrainingData(rows, other[1], 0.0, name)


def _given(source: str) -> tuple[str, Given] | None:
    if source == "example":
        return _example()
    found = _pasted() if source == "lines" else _file("train_data", "A file to learn from")
    if found is None:
        st.caption(_MASKED if source == "lines" else _FORM)
    return found


def _pasted() -> tuple[str, Given] | None:
    """Lines that the reader writes; None while there are none."""
    try:
        written = sentence_input.pasted(
            _PASTED,
            "Texts, one a line",
            "Paste texts of the kind whose words are to be guessed, one a line",
            about="Press Ctrl+Enter, or leave the field, to have them read.",
        )
    except TextError as error:
        _refused(error, "pasted lines")
        return None
    held = st.session_state.get(_READ)
    if held is None or held[0] != written:  # what is the same is known by being the same
        held = st.session_state[_READ] = (written, tuple(lines(written)))
    return ("lines.txt", held[1]) if held[1] else None


def _example() -> tuple[str, Given]:
    st.caption(
        "300 short sentences on six topics, 50 each, shipped with the package. They share few words, so that "
        "the topic has to be told by what they mean."
    )
    return "everyday_topics.csv", everyday_topics()


def _file(key: str, label: str) -> tuple[str, Given] | None:
    """A file that the reader gives, read; None while there is none, or it cannot be read, which is said."""
    about = f"UTF-8, at most {sentence_input.MAX_BYTES / 1e6:.0f} MB. It stays on this machine, in memory."
    kept = sentence_input.kept_file(key, label, [*_TABLES, *_TAGGED, *_PLAIN], about, _read)
    if kept is None:
        return None
    name, rows = kept
    if isinstance(rows, TextError):
        _refused(rows, name)
        return None
    st.caption(f"{state.plain(name)} is read.")
    return name, rows


def _read(name: str, content: bytes) -> tuple[str, Given | TextError]:
    """A file's name, and its rows or why it cannot be read: read once, though the page runs often."""
    ending = PurePath(name).suffix.lower().lstrip(".")
    reading: Callable[[bytes, str], Any] = (
        parse_labeled_texts
        if ending in _TABLES
        else parse_sentences
        if ending in _PLAIN
        else parse_tagged_sentences
    )
    try:
        sentence_input.check_size(name, content)
        return name, reading(content, name)
    except TextError as error:
        return name, error


def _refused(error: TextError, name: str) -> None:
    """What is wrong with a file, its faults as a list."""
    with st.container(border=True, key=f"refusal {name}"):
        st.markdown("**This file cannot be read**")
        if not isinstance(error, InvalidFileError):
            st.text(str(error))
            return
        faults = "fault" if error.count == 1 else "faults"
        st.markdown(f"{state.plain(name)} has {error.count:,} {faults}:")
        st.markdown("\n".join(f"- line {line:,}: {state.plain(what)}" for line, what in sorted(error.faults)))
        if error.count > len(error.faults):
            st.caption(f"And {error.count - len(error.faults):,} more.")
        st.caption("Mend the file and give it again. What you chose is still there.")


def preview(rows: Given) -> None:
    """The first rows, and how often each answer is right."""
    texts, answers = st.columns([3, 2], gap="large")
    with texts:
        st.dataframe(_first(rows), hide_index=True, width="stretch", height=250, alt="The first rows")
    with answers:
        if is_plain(rows):
            st.markdown(f"**{len(rows):,} texts, whose words are masked and guessed**")
            st.markdown(_MASKED)
            return
        rows = cast(Rows, rows)
        if isinstance(rows, LabeledTexts) and rows.kind == NUMBER:
            numbers = pd.Series([row.label for row in rows.rows], dtype=float)
            st.markdown(f"**{len(numbers):,} texts with a number each**")
            st.markdown(f"{numbers.min():g} to {numbers.max():g}, on average {numbers.mean():.4g}.")
            return
        counts = _counts(rows)
        st.markdown(f"**{_size(rows)}, {len(counts):,} {_names(rows)}**")
        table = pd.DataFrame(counts.most_common(), columns=["label", "count"])
        st.dataframe(
            table,
            hide_index=True,
            width="stretch",
            height=min(38 + 35 * len(table), 250),
            column_config={
                "count": st.column_config.ProgressColumn(
                    "count", format="%d", min_value=0, max_value=max(counts.values(), default=1)
                )
            },
            alt="How often each answer is right",
        )


def _size(rows: Rows) -> str:
    if isinstance(rows, LabeledTexts):
        return f"{len(rows.rows):,} texts"
    return f"{len(rows):,} sentences"


def _names(rows: Rows) -> str:
    if not isinstance(rows, LabeledTexts):
        return "tags"
    return "labels" if rows.kind == SEVERAL else "classes"


def _counts(rows: Rows) -> Counter[str]:
    if not isinstance(rows, LabeledTexts):
        return Counter(tag for sentence in rows for tag in sentence.tags)
    found: Counter[str] = Counter()
    for row in rows.rows:
        found.update(row.label if isinstance(row.label, tuple) else [str(row.label)])
    return found


def _first(rows: Given) -> pd.DataFrame:
    if is_plain(rows):
        numbered = [(getattr(row, "line", place), str(row)) for place, row in enumerate(rows[:_SHOWN], 1)]
        return pd.DataFrame(numbered, columns=["line", "text"])
    rows = cast(Rows, rows)
    if not isinstance(rows, LabeledTexts):
        return pd.DataFrame(
            [(row.line, row.text, " ".join(row.tags)) for row in rows[:_SHOWN]],
            columns=["line", "text", "tags"],
        )
    kept = rows.rows[:_SHOWN]
    columns: dict[str, Sequence[Any]] = {
        "line": [row.line for row in kept],
        "text": [row.text for row in kept],
    }
    if any(row.pair is not None for row in kept):
        columns["pair"] = [row.pair for row in kept]
    columns["label"] = [
        SEPARATOR.join(row.label) if isinstance(row.label, tuple) else row.label for row in kept
    ]
    return pd.DataFrame(columns)
