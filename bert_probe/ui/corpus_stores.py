"""The stores that a page may open: stores in the folders configured at startup, and stores built in the app.

A URL contains the name of a store. The name is looked up among these stores and never used as a path.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path, PurePath
from typing import Any, Final

import streamlit as st

from bert_probe.analyses.vectors.similarity import baseline_sentences
from bert_probe.corpus.build import build_corpus
from bert_probe.corpus.inputs import (
    NEIGHBORS,
    PROFILES,
    SENTENCE_VECTORS,
    VECTORS,
    IngestConfig,
    find_inputs,
    records,
    sentence_pooling,
)
from bert_probe.corpus.store import Store, open_corpus
from bert_probe.errors import CheckpointError, StoreError, TextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.progress import Progress
from bert_probe.runtime.cache import Cache
from bert_probe.server import paths, sessions
from bert_probe.text.datasets import everyday_topics
from bert_probe.text.parquet import check_upload
from bert_probe.ui import jobs, sentence_input, state
from bert_probe.ui.sentence_input import CONTEXT, SENTENCES

PREFIX: Final = "made-"
"""Prefix of the names of stores built in the app, followed by a random string."""

MAX_TOTAL_BYTES: Final = 2_000_000_000
"""Maximum total size in bytes of all stores built in the app."""

_MAX_OPEN: Final = 8
"""Maximum number of open stores. An open store keeps its list of shards in memory, but not its rows."""

_built: dict[str, _BuiltStore] = {}
_lock = threading.Lock()
_open_stores: Cache[tuple[Any, ...], Store] = Cache(_MAX_OPEN)


@dataclass
class _BuiltStore:
    """A store that was built in the app.

    Attributes:
        size: total size of its files in bytes.
        sessions: ids of the sessions that show the store.
    """

    title: str
    folder: Path
    size: int
    sessions: set[str] = field(default_factory=set)


def available(requested: str = "") -> dict[str, str]:
    """Return a mapping from the name to the title of each store that this session may open.

    Stores in the configured folders come first, followed by stores that the session has built or opened.

    Args:
        requested: store name in the URL. Anyone who knows the name of a store built in the app may open it.
    """
    _built_folder(requested)
    names = {name: name for name in paths.stores()}
    session = sessions.current()
    with _lock:
        own = {name: store.title for name, store in _built.items() if session in store.sessions}
    return names | own


def open_store(name: str) -> Store:
    """Open a store by name. The opened store is cached until its files change.

    Raises:
        StoreError: the store does not exist or cannot be read.
    """
    folder = paths.stores().get(name)
    if folder is None and name.startswith(PREFIX):
        folder = _built_folder(name)
    if folder is None:
        raise StoreError(missing_message(name))
    return _open_stores.once((folder, _stamp(folder)), lambda: open_corpus(folder))


def missing_message(name: str) -> str:
    """Return an error message for a store that does not exist."""
    if name.startswith(PREFIX):
        return (
            "The store in this URL was built on a page that was closed, so the store was deleted. Build the "
            "store again."
        )
    return (
        f"No store {name[:60]} was found. Start the app with --corpus and the folder that contains the store."
    )


def is_temporary(store: Store) -> bool:
    """Return whether a store was built in the app and is therefore deleted after its last page closes."""
    return store.folder.parent.parent == _root()


def free_bytes() -> int:
    """Return the maximum size of a new store in bytes, after deleting stores that no page shows."""
    with _lock:
        _delete_unused()
        free = shutil.disk_usage(_root()).free // 2
        return max(0, min(MAX_TOTAL_BYTES - sum(store.size for store in _built.values()), free))


def new_folder(title: str) -> Path:
    """Return a path for a new store, ending with a name that is used in file names and provenance."""
    name = "".join(character if character.isalnum() or character in "-_" else "-" for character in title)
    return _root() / secrets.token_hex(16) / (name[:60].strip("-") or "store")


def discard(folder: Path) -> None:
    """Delete the folder of a store, as returned by `new_folder`, and its contents."""
    shutil.rmtree(folder.parent, ignore_errors=True)


def register(title: str, folder: Path, session: str) -> str:
    """Register a store that a session built in a folder from `new_folder`; return its name."""
    name = PREFIX + folder.parent.name
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    with _lock:
        _built[name] = _BuiltStore(title, folder, size, {session})
    return name


def _built_folder(name: str) -> Path | None:
    """Return the folder of a store built in the app, and record that this session shows the store."""
    with _lock:
        _delete_unused()
        store = _built.get(name)
        if store is None:
            return None
        store.sessions.add(sessions.current())
        return store.folder


def _delete_unused() -> None:
    """Delete the stores that were built in the app and that no session shows anymore.

    A disconnected session is kept for some time, so that a store is not deleted when its page is reloaded.
    """
    for name, store in list(_built.items()):
        store.sessions = {session for session in store.sessions if sessions.is_kept(session)}
        if not store.sessions:
            del _built[name]
            discard(store.folder)


def _stamp(folder: Path) -> str:
    """Return a digest that changes when a file of a store changes."""
    stamp = hashlib.blake2b()
    with suppress(OSError):  # ignored, because opening the store reports the error
        for table in sorted(os.scandir(folder), key=lambda entry: entry.name):
            for entry in os.scandir(table) if table.is_dir() else [table]:
                status = entry.stat()
                properties = (entry.path, status.st_size, status.st_mtime_ns, status.st_ino)
                stamp.update(repr(properties).encode("utf-8", "surrogateescape"))
    return stamp.hexdigest()


@cache
def _temporary() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that is deleted when the app ends."""
    return tempfile.TemporaryDirectory(prefix="bert-probe-corpora-")


def _root() -> Path:
    return Path(_temporary().name)


MAX_FILE_BYTES: Final = 1_000_000
"""Size limit of a corpus file, in bytes. Its vectors take several hundred times as much space."""
MAX_ROWS: Final = 5_000

BUILT: Final = "corpus made"
"""Session key of the name of a newly built store that the page shows next."""

_SEEN: Final = "corpus stores seen"
"""Session key of the names of newly built stores that the page has already shown."""
_SOURCES: Final = {"example": "Sample sentences", "file": "Your sentences"}
_TYPES: Final = ("txt", "csv", "tsv", "jsonl", "parquet", "conllu", *sentence_input.FASTA_TYPES)
_TABLE_SUFFIXES: Final = (".csv", ".tsv", ".jsonl", ".parquet")
_TAGGED_SUFFIX: Final = ".conllu"
_SHARD_ROWS: Final = 500
_SAMPLE_NAME: Final = "everyday-sentences.txt"
_MIN_TOKEN_BYTES: Final = 2
"""Assumed minimum number of bytes of text per token. Only text that consists of symbols has fewer."""

NamedFile = tuple[str, bytes]


def build_part(checkpoint: Checkpoint) -> None:
    """Draw a selector for the input sentences, and the job that builds a store from them."""
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
        "Sentence file",
        _TYPES,
        f"UTF-8, at most {MAX_FILE_BYTES / 1e6:.0f} MB and {MAX_ROWS:,} sentences. The file stays on this "
        "machine.",
        _read_upload,
    )
    if file is None:
        st.caption(
            "Accepted formats: text with one sentence per line, CSV, TSV, JSON Lines, Parquet, FASTA and "
            "CoNLL-U. The tags of a CoNLL-U file are stored too."
        )
        return
    name, content = file
    if isinstance(content, TextError):
        raise content.with_traceback(None)  # frames of earlier runs would stay in memory
    if len(content) > MAX_FILE_BYTES:
        raise TextError(
            f"{name} is larger than {MAX_FILE_BYTES / 1e6:.0f} MB. Split the file, or use bert-probe corpus "
            "run."
        )
    suffix = PurePath(name).suffix.lower()
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        column = _choose_column() if suffix in _TABLE_SUFFIXES else None
        words = st.toggle(
            "Whole words",
            key="corpus_words",
            help="Merge subword tokens, so that the store contains words instead of tokens.",
            persist_state="session",
        )
    config = _config(checkpoint, words, suffix == _TAGGED_SUFFIX)
    source = (name, content)
    _build("corpus file", "Build a store from this file", checkpoint, source, config, column)


def _choose_column() -> str | None:
    """Draw a field for the text column of a table; return its name, or None for the default column."""
    with st.container(width=260):
        column: str = st.text_input(
            "Column",
            key="corpus_column",
            placeholder="Default: text, sentence, or the only column",
            persist_state="session",
        )
    return column or None


def _sample_sentences() -> tuple[str, ...]:
    texts = [str(row.text) for row in everyday_topics().rows]
    return tuple(dict.fromkeys([*texts, *baseline_sentences(), *SENTENCES, *(text for text, _ in CONTEXT)]))


def _config(checkpoint: Checkpoint, words: bool = False, tagged: bool = False) -> IngestConfig:
    """Return settings that store head profiles, vectors of a middle and the last layer, and sentence vectors.

    For tagged sentences, the most attended words are stored too.
    """
    last = checkpoint.description.layers
    keep = [PROFILES, VECTORS, *([NEIGHBORS] if tagged else [])]
    with suppress(UnavailableError, CheckpointError):  # the vectors are sparse, or the pooling is unsupported
        sentence_pooling(checkpoint)
        keep.append(SENTENCE_VECTORS)
    layers = tuple(sorted({(last + 1) // 2, last}))
    return IngestConfig(layers=layers, keep=tuple(keep), words=words).of(checkpoint)


def _build(
    key: str,
    label: str,
    checkpoint: Checkpoint,
    file: NamedFile,
    config: IngestConfig,
    column: str | None = None,
) -> None:
    """Draw the job that builds a store; when it is done, rerun the page to show the new store."""
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
    announced: set[str] = st.session_state.setdefault(_SEEN, set())
    if built not in announced:
        announced.add(built)
        st.session_state[BUILT] = built
        st.rerun()
    st.caption(f"The store for {state.escape(name)} is ready. Select the store above.")


def _work(
    checkpoint: Checkpoint, file: NamedFile, config: IngestConfig, column: str | None, session: str
) -> Callable[[Progress], str]:
    """Return a function for a job that builds a store and returns the store's name."""
    name, content = file

    def work(progress: Progress) -> str:
        _check_space(checkpoint, config, len(content))
        folder = new_folder(PurePath(name).stem)
        try:
            inputs = _write_input(folder.parent / "given", name, content)
            count = sum(1 for _ in islice(records(find_inputs(inputs, column), column), MAX_ROWS + 1))
            if count > MAX_ROWS:
                raise TextError(
                    f"{name} has more than {MAX_ROWS:,} sentences. Remove sentences, or use bert-probe "
                    "corpus run."
                )
            build_corpus(
                checkpoint, config, [inputs], folder, column=column, shard_rows=_SHARD_ROWS, progress=progress
            )
        except BaseException:
            discard(folder)
            raise
        return register(f"{PurePath(name).stem} (built here)", folder, session)

    return work


def _check_space(checkpoint: Checkpoint, config: IngestConfig, size: int) -> None:
    """Raise StoreError if the new store might exceed the free space."""
    vectors = checkpoint.description.hidden_size * 4 * len(config.layers or ())
    required, free = size // _MIN_TOKEN_BYTES * vectors, free_bytes()
    if required > free:
        raise StoreError(
            f"The store may need {required / 1e6:,.0f} MB, but only {free / 1e6:,.0f} MB of the storage "
            "that all users share are free. Use a smaller file, or bert-probe corpus run."
        )


def _read_upload(name: str, content: bytes) -> tuple[str, bytes | TextError]:
    """Return the name of an uploaded file, and its content or the error that prevents reading it."""
    try:
        if PurePath(name).suffix.lower() == ".parquet":
            check_upload(content, name)
    except TextError as error:
        return PurePath(name).name, error
    return PurePath(name).name, content


def _write_input(folder: Path, name: str, content: bytes) -> Path:
    """Write a file to a new folder and return the folder, so that the store records no path outside of it."""
    stem = "".join(
        character if character.isalnum() or character in " -_." else "-" for character in PurePath(name).stem
    )
    folder.mkdir(parents=True)
    file = folder / f"{stem.strip(' .')[:60] or 'sentences'}{PurePath(name).suffix.lower()}"
    file.write_bytes(content)
    return folder
