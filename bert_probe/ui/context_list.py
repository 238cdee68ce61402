"""The sentences of the context page, each with its chosen word: kept in the session and in the address."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, zip_longest
from typing import cast

import streamlit as st

from bert_probe.errors import SelectionError
from bert_probe.model.trace import Trace
from bert_probe.text.sentence_files import lines
from bert_probe.text.words import Unit, find_word, word_lens, word_name
from bert_probe.ui import url_texts
from bert_probe.ui.examples import CONTEXT

MOST = 50
"""Sentences that a page can show with their words to click on."""

_LINES, _DRAFT = "context_lines", "context_draft"
_numbers = count()


@dataclass(frozen=True)
class ContextRow:
    """A sentence and its word.

    Attributes:
        key: tells it apart from others of the same text.
        word: as `find_word` knows it; "" where none is chosen.
    """

    key: str
    text: str
    word: str = ""


def held() -> tuple[ContextRow, ...]:
    """The sentences: those of the session, else of the address, else the example."""
    if _LINES not in st.session_state:
        texts = lines(url_texts.recall("context") or "")[:MOST]
        words = (url_texts.recall("context_words") or "").split("\n")
        if url_texts.gone("context"):
            st.session_state[_LINES] = ()
        elif texts:
            _keep([_line(text, word) for text, word in zip_longest(texts, words[: len(texts)], fillvalue="")])
        else:
            example()
    return cast(tuple[ContextRow, ...], st.session_state[_LINES])


def example() -> None:
    """Take the example's sentences."""
    _keep([_line(text, word) for text, word in CONTEXT])


def clear() -> None:
    """Take all sentences away."""
    _keep([])


def add() -> None:
    """Take the lines typed into the field named `draft_key`; what does not fit stays there."""
    typed = lines(st.session_state[_DRAFT])
    room = MOST - len(held())
    _keep([*held(), *(_line(text) for text in typed[:room])])
    st.session_state[_DRAFT] = "\n".join(typed[room:])


def draft_key() -> str:
    """Key of the field for new sentences."""
    return _DRAFT


def remove(key: str) -> None:
    """Take one sentence away."""
    _keep([line for line in held() if line.key != key])


def choose(line: ContextRow, word: str) -> None:
    """Choose a word of a sentence."""
    if word != line.word:
        _keep([replace(one, word=word) if one.key == line.key else one for one in held()])


def chosen_unit(trace: Trace, line: ContextRow) -> Unit | None:
    """The unit of the line's word; where none is chosen, one that is chosen in another sentence."""
    for word in [line.word] if line.word else dict.fromkeys(one.word for one in held() if one.word):
        try:
            return find_word(trace, word)
        except SelectionError:
            continue
    return None


def name_of(trace: Trace, place: int) -> str:
    """Name of the word at a place among the units of a text."""
    return word_name(trace, word_lens(trace).units[place])


def _line(text: str, word: str = "") -> ContextRow:
    return ContextRow(f"context_word_{next(_numbers)}", text, word)


def _keep(kept: Sequence[ContextRow]) -> None:
    st.session_state[_LINES] = tuple(kept)
    texts = "\n".join(line.text for line in kept)
    words = "\n".join(line.word for line in kept)
    url_texts.remember("context", texts or None)
    url_texts.remember("context_words", words if texts else None)
