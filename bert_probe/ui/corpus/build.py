"""A store made on the page, of a file or of the sentences that are shipped."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from itertools import islice
from pathlib import Path, PurePath
from typing import Final

import streamlit as st

from bert_probe.analyses.vectors.similarity_baseline import baseline_sentences
from bert_probe.corpus.build import build_corpus
from bert_probe.corpus.ingest import NEIGHBOURS, PROFILES, VECTORS, IngestConfig
from bert_probe.corpus.inputs import find_inputs, records
from bert_probe.errors import StoreError, TextError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress
from bert_probe.server import sessions
from bert_probe.text.sample_data import everyday_topics
from bert_probe.ui import jobs, sentence_input, state
from bert_probe.ui.corpus import stores
from bert_probe.ui.examples import CONTEXT, SENTENCES

MOST_BYTES: Final = 1_000_000
"""Of a file: its vectors take several hundred times the room of its letters."""
MOST_ROWS: Final = 5_000

MADE: Final = "corpus made"
"""Session key of the name of a store that was just made, which the page is to show."""

_SEEN: Final = "corpus stores seen"
"""Session key of the names of those that were shown already."""
_SOURCES: Final = {"example": "Everyday sentences", "file": "Your sentences"}
_TYPES: Final = ("txt", "csv", "tsv", "jsonl", "parquet", "conllu")
_WITH_COLUMNS: Final = (".csv", ".tsv", ".jsonl", ".parquet")
_TAGGED: Final = ".conllu"
_SHARD_ROWS: Final = 500
_EXAMPLE: Final = "everyday-sentences.txt"
_LEAST_LETTERS: Final = 2
"""Bytes of text that a token has at least, in all but a text of signs."""

Uploaded = tuple[str, bytes]


def part(checkpoint: Checkpoint) -> None:
    """Draw what can be made, and what is being made; the page shows it as soon as it is there."""
    if state.pick("corpus_from", "Sentences", _SOURCES, "example") == "file":
        _of_file(checkpoint)
        return
    st.caption(
        f"{len(_shipped()):,} short English sentences that are shipped, among them words of several senses."
    )
    content = "\n".join(_shipped()).encode()
    _job("corpus example", "Make an example store", checkpoint, (_EXAMPLE, content), _question(checkpoint))


def _of_file(checkpoint: Checkpoint) -> None:
    given = sentence_input.kept_file(
        "corpus",
        "A file of sentences",
        _TYPES,
        f"In UTF-8, at most {MOST_BYTES / 1e6:.0f} MB and {MOST_ROWS:,} sentences. It stays on this machine.",
        lambda name, read: (PurePath(name).name, read),
    )
    if given is None:
        st.caption("Lines of text, CSV, JSON lines, Parquet, or CoNLL-U, whose tags are kept.")
        return
    name, content = given
    if len(content) > MOST_BYTES:
        raise TextError(
            f"{name} is larger than {MOST_BYTES / 1e6:.0f} MB. Give a part, or use bert-probe corpus run."
        )
    ending = PurePath(name).suffix.lower()
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        column = _column() if ending in _WITH_COLUMNS else None
        words = st.toggle(
            "Whole words",
            key="corpus_words",
            help="Merge pieces into words first: all that is kept is of words then.",
            persist_state="session",
        )
    _job(
        "corpus file",
        "Make a store of it",
        checkpoint,
        given,
        _question(checkpoint, words, ending == _TAGGED),
        column,
    )


def _column() -> str | None:
    """Of a table; None for the usual one."""
    with st.container(width=260):
        written: str = st.text_input(
            "Column",
            key="corpus_column",
            placeholder="text, sentence, or the only one",
            persist_state="session",
        )
    return written or None


def _shipped() -> tuple[str, ...]:
    texts = [str(row.text) for row in everyday_topics().rows]
    return tuple(dict.fromkeys([*texts, *baseline_sentences(), *SENTENCES, *(text for text, _ in CONTEXT)]))


def _question(checkpoint: Checkpoint, words: bool = False, tagged: bool = False) -> IngestConfig:
    """What is kept: a layer in the middle and the last one; of tagged sentences also where heads look."""
    last = checkpoint.description.layers
    keep = (PROFILES, VECTORS, *((NEIGHBOURS,) if tagged else ()))
    return IngestConfig(layers=tuple(sorted({(last + 1) // 2, last})), keep=keep, words=words).of(checkpoint)


def _job(
    key: str,
    label: str,
    checkpoint: Checkpoint,
    given: Uploaded,
    question: IngestConfig,
    column: str | None = None,
) -> None:
    """A button, then progress; then the page is run again with the store."""
    name, content = given
    made = jobs.run(
        key,
        (checkpoint.cause, question, name, hashlib.sha256(content).hexdigest(), column),
        label,
        _work(checkpoint, given, question, column, sessions.current()),
        "sentences",
    )
    if made is None:
        return
    state.hold(_SEEN)
    seen: set[str] = st.session_state.setdefault(_SEEN, set())
    if made not in seen:
        seen.add(made)
        st.session_state[MADE] = made
        st.rerun()
    st.caption(f"{state.plain(name)} was read; choose its store above.")


def _work(
    checkpoint: Checkpoint, uploaded: Uploaded, question: IngestConfig, column: str | None, session: str
) -> Callable[[Progress], str]:
    """What the job does; it returns the store's name."""
    name, content = uploaded

    def work(report: Progress) -> str:
        _check_room(checkpoint, question, len(content))
        folder = stores.new_folder(PurePath(name).stem)
        try:
            given = _written(folder.parent / "given", name, content)
            count = sum(1 for _ in islice(records(find_inputs(given, column), column), MOST_ROWS + 1))
            if count > MOST_ROWS:
                raise TextError(
                    f"{name} has more than {MOST_ROWS:,} sentences. Give fewer, or use bert-probe corpus run."
                )
            build_corpus(
                checkpoint, question, [given], folder, column=column, shard_rows=_SHARD_ROWS, report=report
            )
        except BaseException:
            stores.discard(folder)
            raise
        return stores.keep(f"{PurePath(name).stem} (made here)", folder, session)

    return work


def _check_room(checkpoint: Checkpoint, question: IngestConfig, size: int) -> None:
    """Refuse what might not fit, before it is begun.

    Raises:
        StoreError: it might not.
    """
    vectors = checkpoint.description.hidden_size * 4 * len(question.layers or ())
    needed, room = size // _LEAST_LETTERS * vectors, stores.room()
    if needed > room:
        raise StoreError(
            f"A store of it may need {needed / 1e6:,.0f} MB, and there are {room / 1e6:,.0f} MB left for "
            "those of all readers. Give a smaller file, or use bert-probe corpus run."
        )


def _written(folder: Path, name: str, content: bytes) -> Path:
    """A folder with the file alone, which is then called by its own name and not by its place here."""
    stem = "".join(sign if sign.isalnum() or sign in " -_." else "-" for sign in PurePath(name).stem)
    folder.mkdir(parents=True)
    file = folder / f"{stem.strip(' .')[:60] or 'sentences'}{PurePath(name).suffix.lower()}"
    file.write_bytes(content)
    return folder
