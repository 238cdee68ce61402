"""File uploaders on the Map, Probes, Evaluate and Search pages, mostly for labeled data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np
import streamlit as st

from bert_probe.core.evaluation_inputs import JudgedQueries
from bert_probe.errors import ProbeError
from bert_probe.model.trace import Array
from bert_probe.text.datasets import TREEBANK_FILES, sample_treebank
from bert_probe.text.labeled_texts import LabeledTexts, parse_labeled_texts, parse_number
from bert_probe.text.sentence_files import column_names, parse_sentences
from bert_probe.text.tables import is_table
from bert_probe.text.tagged_sentences import TaggedSentence, parse_tagged_sentences
from bert_probe.ui import blocks, sentence_input, state

MAX_MAP_TEXTS = 5_000
"""Maximum number of texts in a file for the Map page."""


@dataclass(frozen=True)
class _MapFile:
    """An uploaded file.

    Attributes:
        rows: the labeled texts, None if the file has no labels, or the error if it cannot be read.
    """

    name: str
    content: bytes
    columns: tuple[str, ...]
    rows: LabeledTexts | ProbeError | None


def choose_map_file() -> tuple[str, ...] | LabeledTexts | None:
    """Draw the uploader of the Map page and return the texts of the file, or None if no file is uploaded.

    Raises:
        TextError, EmptyTextError, SelectionError: the file cannot be read, or has too many texts.
    """
    help_text = (
        "One text per line, FASTA, or a table with a header. A column named label divides the texts into "
        "groups. "
        f"UTF-8, {sentence_input.upload_note()}"
    )
    types = ["txt", "csv", "tsv", "jsonl", *sentence_input.FASTA_TYPES, "gz"]
    file = sentence_input.upload_file("map", "Text file", types, help_text, _read_map_file)
    if file is None:
        return None
    if isinstance(file.rows, ProbeError):
        raise file.rows.with_traceback(None)  # frames of earlier runs would stay in memory
    if file.rows is not None:
        sentence_input.check_count(file.rows.rows, MAX_MAP_TEXTS)
        labels = f"{len(file.rows.labels):,} labels" if file.rows.labels else "numeric labels"
        blocks.caveat(f"{len(file.rows.rows):,} texts from {state.escape(file.name)}, with {labels}.")
        return file.rows
    texts = parse_sentences(
        file.content,
        file.name,
        _choose_text_column(file),
        max_bytes=sentence_input.max_bytes(),
        max_sentences=MAX_MAP_TEXTS,
    )
    blocks.caveat(f"{len(texts):,} texts from {state.escape(file.name)}. Empty lines are skipped.")
    return texts


def use_map_file(name: str, content: bytes) -> None:
    """Use a file on the Map page as if the user had uploaded it."""
    sentence_input.replace_file("map", _read_map_file(name, content))


def _read_map_file(name: str, content: bytes) -> _MapFile:
    try:
        sentence_input.check_size(name, content)
        columns = column_names(content, name)
        names = {column.casefold() for column in columns}
        has_labels = bool(names & {"label", "labels"})
        rows = parse_labeled_texts(content, name, max_rows=MAX_MAP_TEXTS) if has_labels else None
    except ProbeError as error:
        return _MapFile(name, b"", (), error)
    return _MapFile(name, content, columns, rows)


def _choose_text_column(file: _MapFile) -> str | None:
    """Return the name of the column that contains the texts, or None if the file is not a table."""
    if len(file.columns) < 2:
        return file.columns[0] if file.columns else None
    return sentence_input.choose_column("map_column", file.columns, file.name)


MAX_PROBE_SENTENCES = 20_000
"""Maximum number of sentences in a file for the Probes page."""
_PROBE_FILE_TYPES = ["conllu", "conll", "txt", "csv", "tsv", "jsonl", "gz"]

EXAMPLE_NOTE = (
    "A treebank of 24 short English sentences, included in the package: 16 for training, 8 held out. "
    "The treebank shows how the page works, but is too small for conclusions about a model."
)
_KEYS = ("probes_data", "probes_held_out")
"""Prefixes of the session keys of the training file and the held-out file."""

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
"""Example of a table. `CONLL` and `CONLLU` are examples of the other file formats."""

Tagged = tuple[TaggedSentence, ...]


@dataclass(frozen=True)
class ProbeFiles:
    """The data uploaded on the Probes page.

    Attributes:
        data: data for training probes or for selecting heads.
        held_out: data for evaluation, if any.
    """

    data: Tagged | LabeledTexts
    held_out: Tagged | LabeledTexts | None

    @property
    def is_example(self) -> bool:
        """Whether the data is the sample treebank, which is so small that results take only seconds."""
        return (self.data, self.held_out) == sample_treebank()


def choose_probe_files() -> ProbeFiles | None:
    """Draw the two uploaders of the Probes page and return their data, or None without training data.

    Raises:
        TextError: a file cannot be read; see `parse_tagged_sentences` and `parse_labeled_texts`.
    """
    left, right = st.columns(2, gap="large")
    with left:
        data = _upload(
            _KEYS[0], "Training data (under Heads and relations: the data on which the heads are selected)"
        )
    with right:
        held_out = _upload(_KEYS[1], "Held-out data (optional for layers and trees)")
    if isinstance(data, ProbeError):
        # raise the error only now, after both uploaders have been drawn
        raise data.with_traceback(None)
    if isinstance(held_out, ProbeError):
        raise held_out.with_traceback(None)
    if data is None:
        return None
    files = ProbeFiles(data, held_out)
    if files.is_example:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(EXAMPLE_NOTE, width="content")
            st.button("Remove the example", type="tertiary", on_click=use_probe_files, args=((),))
    return files


def explain_formats() -> None:
    """Draw a button that uses the sample treebank, and examples of the file formats."""
    st.info(
        "Upload sentences with tagged words, a treebank (tagged words with syntactic heads), or labeled "
        "texts."
    )
    st.button("Try an example", type="primary", on_click=_use_example)
    st.caption(EXAMPLE_NOTE)
    left, right = st.columns(2, gap="large")
    with left:
        st.markdown("**CoNLL**: a word and its tag on each line, and an empty line between sentences.")
        st.code(CONLL, language=None)
        st.markdown("**Table** (.csv or .tsv) with a header: a text and its label in each row.")
        st.code(TABLE, language=None)
    with right:
        st.markdown(
            "**CoNLL-U** (.conllu), as in [Universal Dependencies](https://universaldependencies.org): "
            "ten tab-separated columns, of which the word, UPOS, head and relation are read. A comment, "
            "such as genre, can be used as the label of its sentence."
        )
        st.code(CONLLU, language=None)


def _upload(key: str, label: str) -> Tagged | LabeledTexts | ProbeError | None:
    help_text = f"CoNLL (also .gz) or a table in UTF-8, {sentence_input.upload_note()}"
    file = sentence_input.upload_file(key, label, _PROBE_FILE_TYPES, help_text, _read_probe_file)
    if file is None:
        return None
    name, content = file
    if isinstance(content, ProbeError):
        return content
    if isinstance(content, LabeledTexts):
        count = f"{len(content.rows):,} texts, {len(content.labels):,} labels"
    else:
        words = sum(len(sentence.words) for sentence in content)
        count = f"{len(content):,} sentences, {words:,} words"
    blocks.caveat(f"{state.escape(name)}: {count}.")
    return content


def use_probe_files(files: Sequence[tuple[str, bytes]]) -> None:
    """Use files on the Probes page as if the user had uploaded them.

    Args:
        files: (name, content) of the training file and optionally of the held-out file; () to remove both.
    """
    for key, file in zip_longest(_KEYS, files):
        sentence_input.replace_file(key, None if file is None else _read_probe_file(*file))


def _use_example() -> None:
    for key, name, sentences in zip(_KEYS, TREEBANK_FILES, sample_treebank(), strict=True):
        sentence_input.replace_file(key, (name, sentences))


def _read_probe_file(name: str, content: bytes) -> tuple[str, Tagged | LabeledTexts | ProbeError]:
    """Return the name of a file, and its data or the error that occurred while reading it."""
    try:
        sentence_input.check_size(name, content)
        if is_table(name):
            return name, parse_labeled_texts(content, name, max_rows=MAX_PROBE_SENTENCES)
        data = parse_tagged_sentences(content, name)
        sentence_input.check_count(data, MAX_PROBE_SENTENCES)
    except ProbeError as error:
        return name, error
    return name, data


def use_sentences(name: str, content: bytes) -> None:
    """Use a file as if the user had uploaded it under Many sentences on the Heads page."""
    sentence_input.replace_file("many", (name, content))
    state.select("sentences_source", "file")


# ---------------------------------------------------------------- Evaluate page

MAX_EVALUATION_TEXTS = 20_000
"""Maximum number of pairs or texts on the page. The command line has no such limit."""


@dataclass(frozen=True)
class EvaluationFile:
    """The rows of an uploaded file, or the error that occurred when they were read."""

    name: str
    rows: Any


def use_evaluation_files(files: Mapping[str, tuple[str, bytes]]) -> None:
    """Use files as if the user had uploaded them on the Evaluate page.

    Args:
        files: name and content of each file, by argument: "pairs"; "documents", "queries" and "judgments"; or
            "texts" with labels.
    """
    for argument, file in files.items():
        sentence_input.replace_file(f"evaluate_{argument}", read_evaluation_file(argument, *file))


def source_parameter(argument: str) -> str:
    """Return the URL parameter that states whether an argument of an evaluation is sample data or a file."""
    return {"pairs": "evaluate_pairs_from", "texts": "evaluate_labels_from"}.get(
        argument, "evaluate_search_from"
    )


def read_evaluation_file(argument: str, name: str, content: bytes) -> EvaluationFile:
    """Parse a file for an argument; see `use_evaluation_files`."""
    try:
        sentence_input.check_size(name, content)
        if argument in ("documents", "queries"):
            return EvaluationFile(name, sentence_input.parse_valid_documents(content, name))
        if argument == "judgments":
            return EvaluationFile(name, JudgedQueries().files[argument].parse(content, name))
        return EvaluationFile(name, parse_labeled_texts(content, name, max_rows=MAX_EVALUATION_TEXTS))
    except ProbeError as error:
        return EvaluationFile(name, error)


def choose_evaluation_file(argument: str, label: str, types: Sequence[str], help_text: str) -> Any:
    """Draw an uploader and return the rows of its file; None without a file.

    Args:
        argument: see `use_evaluation_files`.
        label: label of the uploader.
        types: allowed file extensions.
        help_text: description of the file format, shown as help.
    """
    help_text = f"{help_text} UTF-8, {sentence_input.upload_note()}"
    uploaded = sentence_input.upload_file(
        f"evaluate_{argument}", label, types, help_text, partial(read_evaluation_file, argument)
    )
    if uploaded is None:
        return None
    if isinstance(uploaded.rows, ProbeError):
        raise uploaded.rows.with_traceback(None)
    if st.session_state.get(sentence_input.upload_key(f"evaluate_{argument}")) is None:
        blocks.caveat(f"The data are from {state.escape(uploaded.name)}.")
    return uploaded.rows


# ---------------------------------------------------------------- labeled pairs of the Search page

MIN_PRECISION, PRECISION = 0.05, "threshold_precision"
"""Minimum of the required precision, and the key of its widget."""


def use_pairs(name: str, content: bytes, fields: Mapping[str, str]) -> None:
    """Use a file of labeled pairs as if the user had uploaded it, with the fields of a `ScoreThreshold`."""
    file = read_evaluation_file("pairs", name, content)
    sentence_input.replace_file("threshold", file)
    labels = None if isinstance(file.rows, ProbeError) else grades(file.rows)
    precision, _ = parse_number(fields.get("precision", ""))
    if MIN_PRECISION <= precision <= 1:
        st.session_state[PRECISION] = precision
    positive_from, problem = parse_number(fields.get("positive_from", ""))
    if labels is not None and not problem and labels.min() <= positive_from <= labels.max():
        st.session_state[positive_from_key(labels)] = positive_from


def positive_from_key(labels: Array) -> str:
    """Return the key of the widget for the smallest label of a match."""
    return f"threshold_from {labels.min():g} {labels.max():g}"


def grades(pairs: LabeledTexts) -> np.ndarray | None:
    """Return the labels as numbers if they are graded, or None if they are 0 and 1 or not finite numbers."""
    try:
        labels = np.array([float(str(row.label)) for row in pairs.rows])
    except ValueError:
        return None
    return None if np.isin(labels, (0, 1)).all() or not np.isfinite(labels).all() else labels
