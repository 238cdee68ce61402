"""Building a store on the page, from a file or from sample sentences."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import islice
from pathlib import Path, PurePath
from typing import Final

import streamlit as st

from bert_probe.analyses.vectors.similarity_baseline import baseline_sentences
from bert_probe.corpus.build import build_corpus
from bert_probe.corpus.ingest import NEIGHBORS, PROFILES, VECTORS, IngestConfig
from bert_probe.corpus.inputs import find_inputs, records
from bert_probe.errors import StoreError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress
from bert_probe.server import sessions
from bert_probe.text.sentence_files import everyday_topics
from bert_probe.ui import jobs, sentence_input, state
from bert_probe.ui.corpus import stores
from bert_probe.ui.examples import CONTEXT, SENTENCES

MAX_FILE_BYTES: Final = 1_000_000
"""Maximum size of a file; its vectors take several hundred times as much."""
MAX_ROWS: Final = 5_000

BUILT: Final = "corpus made"
"""Session key of the name of a store that was just built and is to be shown."""

_SEEN: Final = "corpus stores seen"
"""Session key of the names of stores that have been shown."""
_SOURCES: Final = {"example": "Sample sentences", "file": "Your sentences"}
_TYPES: Final = ("txt", "csv", "tsv", "jsonl", "parquet", "conllu")
_TABLE_SUFFIXES: Final = (".csv", ".tsv", ".jsonl", ".parquet")
_TAGGED_SUFFIX: Final = ".conllu"
_SHARD_ROWS: Final = 500
_SAMPLE_NAME: Final = "everyday-sentences.txt"
_MIN_TOKEN_BYTES: Final = 2
"""Minimum bytes of text per token, except in text that consists of symbols."""

NamedFile = tuple[str, bytes]


def part(checkpoint: Checkpoint) -> None:
    """Draw the choice of sentences and the job that builds a store."""
    if state.segmented_control("corpus_from", "Sentences", _SOURCES, "example") == "file":
        _from_file(checkpoint)
        return
    sentences = _sample_sentences()
    st.caption(f"{len(sentences):,} short English sentences, some with words that have several senses.")
    content = "\n".join(sentences).encode()
    file = (_SAMPLE_NAME, content)
    _build("corpus example", "Build a sample store", checkpoint, file, _config(checkpoint))


def _from_file(checkpoint: Checkpoint) -> None:
    file = sentence_input.upload_file(
        "corpus",
        "A file of sentences",
        _TYPES,
        f"UTF-8, at most {MAX_FILE_BYTES / 1e6:.0f} MB and {MAX_ROWS:,} sentences. It stays on this machine.",
        lambda name, content: (PurePath(name).name, content),
    )
    if file is None:
        st.caption("Lines of text, CSV, JSON lines, Parquet, or CoNLL-U, whose tags are stored too.")
        return
    name, content = file
    if len(content) > MAX_FILE_BYTES:
        raise TextError(
            f"{name} is larger than {MAX_FILE_BYTES / 1e6:.0f} MB. Split it, or use bert-probe corpus run."
        )
    suffix = PurePath(name).suffix.lower()
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        column = _choose_column() if suffix in _TABLE_SUFFIXES else None
        words = st.toggle(
            "Whole words",
            key="corpus_words",
            help="Merge subword tokens into words first: the store then contains words.",
            persist_state="session",
        )
    config = _config(checkpoint, words, suffix == _TAGGED_SUFFIX)
    _build("corpus file", "Build a store from this file", checkpoint, file, config, column)


def _choose_column() -> str | None:
    """Draw the field for a column of a table; None for the default."""
    with st.container(width=260):
        column: str = st.text_input(
            "Column",
            key="corpus_column",
            placeholder="text, sentence, or the only one",
            persist_state="session",
        )
    return column or None


def _sample_sentences() -> tuple[str, ...]:
    texts = [str(row.text) for row in everyday_topics().rows]
    return tuple(dict.fromkeys([*texts, *baseline_sentences(), *SENTENCES, *(text for text, _ in CONTEXT)]))


def _config(checkpoint: Checkpoint, words: bool = False, tagged: bool = False) -> IngestConfig:
    """Return what to store: vectors of a middle layer and the last; for tagged sentences also attended
    words."""
    last = checkpoint.description.layers
    keep = (PROFILES, VECTORS, *((NEIGHBORS,) if tagged else ()))
    return IngestConfig(layers=tuple(sorted({(last + 1) // 2, last})), keep=keep, words=words).of(checkpoint)


def _build(
    key: str,
    label: str,
    checkpoint: Checkpoint,
    file: NamedFile,
    config: IngestConfig,
    column: str | None = None,
) -> None:
    """Draw a button, then progress; then run the page again with the new store."""
    name, content = file
    built = jobs.run(
        key,
        (checkpoint.cache_key, config, name, hashlib.sha256(content).hexdigest(), column),
        label,
        _work(checkpoint, file, config, column, sessions.current()),
        "sentences",
    )
    if built is None:
        return
    state.preserve(_SEEN)
    seen: set[str] = st.session_state.setdefault(_SEEN, set())
    if built not in seen:
        seen.add(built)
        st.session_state[BUILT] = built
        st.rerun()
    st.caption(f"The store of {state.escape(name)} was built; choose it above.")


def _work(
    checkpoint: Checkpoint, file: NamedFile, config: IngestConfig, column: str | None, session: str
) -> Callable[[Progress], str]:
    """Return the work of the job, which returns the store's name."""
    name, content = file

    def work(progress: Progress) -> str:
        _check_space(checkpoint, config, len(content))
        folder = stores.new_folder(PurePath(name).stem)
        try:
            inputs = _write_input(folder.parent / "given", name, content)
            count = sum(1 for _ in islice(records(find_inputs(inputs, column), column), MAX_ROWS + 1))
            if count > MAX_ROWS:
                raise TextError(
                    f"{name} has more than {MAX_ROWS:,} sentences. Remove some, or use bert-probe corpus run."
                )
            build_corpus(
                checkpoint, config, [inputs], folder, column=column, shard_rows=_SHARD_ROWS, progress=progress
            )
        except BaseException:
            stores.discard(folder)
            raise
        return stores.register(f"{PurePath(name).stem} (built here)", folder, session)

    return work


def _check_space(checkpoint: Checkpoint, config: IngestConfig, size: int) -> None:
    """Raise StoreError if a store might be too large, before it is built."""
    vectors = checkpoint.description.hidden_size * 4 * len(config.layers or ())
    required, free = size // _MIN_TOKEN_BYTES * vectors, stores.free_bytes()
    if required > free:
        raise StoreError(
            f"The store may need {required / 1e6:,.0f} MB, but only {free / 1e6:,.0f} MB are free for the "
            "stores of all readers. Use a smaller file, or bert-probe corpus run."
        )


def _write_input(folder: Path, name: str, content: bytes) -> Path:
    """Write a file into a folder of its own, so that its name in the store does not contain a path."""
    stem = "".join(
        character if character.isalnum() or character in " -_." else "-" for character in PurePath(name).stem
    )
    folder.mkdir(parents=True)
    file = folder / f"{stem.strip(' .')[:60] or 'sentences'}{PurePath(name).suffix.lower()}"
    file.write_bytes(content)
    return folder
