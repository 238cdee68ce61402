"""What the probes page is given, tagged sentences or texts with labels: two files, read once each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

import streamlit as st

from bert_probe.errors import ProbeError
from bert_probe.text.labeled_texts import LabeledTexts, parse_labeled_texts
from bert_probe.text.sentence_files import is_table
from bert_probe.text.tagged_sentences import TaggedSentence, parse_tagged_sentences
from bert_probe.ui import blocks, sentence_input, state

MOST = 20_000
"""Sentences of a file that this page takes."""
TYPES = ["conllu", "conll", "txt", "csv", "tsv", "jsonl", "gz"]

CONLL = """The DET
boat NOUN
crosses VERB
the DET
river NOUN

Nobody PRON
slept VERB"""
CONLLU = """# genre = log
1\tThe\t_\tDET\t_\t_\t2\tdet\t_\t_
2\tboat\t_\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\tcrosses\t_\tVERB\t_\t_\t0\troot\t_\t_
4\tit\t_\tPRON\t_\t_\t3\tobj\t_\tSpaceAfter=No
5\t.\t_\tPUNCT\t_\t_\t3\tpunct\t_\t_"""
TABLE = """text,label
"The boat, at last, crosses.",river
Nobody slept.,night"""
"""What the files look like; a treebank has tabs between its ten columns."""

Tagged = tuple[TaggedSentence, ...]


@dataclass(frozen=True)
class ProbeFiles:
    """What was uploaded: sentences to learn or choose from, and others to measure on, if there are any."""

    data: Tagged | LabeledTexts
    held_out: Tagged | LabeledTexts | None


def chosen() -> ProbeFiles | None:
    """The files; None while there is nothing to learn from.

    Raises:
        TextError: a file that cannot be read; see `parse_tagged_sentences` and `parse_labeled_texts`.
    """
    left, right = st.columns(2, gap="large")
    with left:
        data = _file("probes_data", "To learn from, or to choose heads by")
    with right:
        held_out = _file("probes_held_out", "To measure on (optional for layers and trees)")
    if isinstance(data, ProbeError):
        raise data  # now that both fields are there
    if isinstance(held_out, ProbeError):
        raise held_out
    return None if data is None else ProbeFiles(data, held_out)


def formats() -> None:
    """What to upload, where nothing is yet."""
    st.info(
        "Upload sentences whose words have tags; a treebank, whose words have heads too; or texts with a "
        "label each."
    )
    left, right = st.columns(2, gap="large")
    with left:
        st.markdown("**CoNLL**: a word and its tag on each line, a blank line between sentences.")
        st.code(CONLL, language=None)
        st.markdown("**A table** (.csv or .tsv) with a header: a text and its label in each row.")
        st.code(TABLE, language=None)
    with right:
        st.markdown(
            "**CoNLL-U** (ending in .conllu), as of [Universal Dependencies]"
            "(https://universaldependencies.org): ten columns with tabs between, of which word, UPOS, head "
            "and relation are read. A comment such as genre can be a label of the sentence."
        )
        st.code(CONLLU, language=None)


def _file(key: str, label: str) -> Tagged | LabeledTexts | ProbeError | None:
    size = f"{sentence_input.MAX_BYTES / 1e6:.0f} MB"
    about = f"CoNLL (also .gz) or a table in UTF-8, at most {size}. It stays on this machine, in memory."
    kept = sentence_input.kept_file(key, label, TYPES, about, _read)
    if kept is None:
        return None
    name, found = kept
    if isinstance(found, ProbeError):
        return found
    if isinstance(found, LabeledTexts):
        count = f"{len(found.rows):,} texts, {len(found.labels):,} labels"
    else:
        count = f"{len(found):,} sentences, {sum(len(one.words) for one in found):,} words"
    blocks.caveat(f"{state.plain(name)}: {count}.")
    return found


def take(files: Sequence[tuple[str, bytes]]) -> None:
    """Keep files, names and contents in the order of the page, as if they had been chosen here."""
    for key, file in zip_longest(("probes_data", "probes_held_out"), files):
        sentence_input.hand_in(key, None if file is None else _read(*file))


def _read(name: str, content: bytes) -> tuple[str, Tagged | LabeledTexts | ProbeError]:
    """A file's name, and what is in it or why it cannot be read: read once, though the page runs often."""
    try:
        sentence_input.check_size(name, content)
        found = (
            parse_labeled_texts(content, name) if is_table(name) else parse_tagged_sentences(content, name)
        )
        sentence_input.check_number(found.rows if isinstance(found, LabeledTexts) else found, MOST)
    except ProbeError as error:
        return name, error
    return name, found
