"""Text fields and file uploaders for sentences and documents, with limits on their number and size.

Texts and files are kept while the user opens other pages. The limits apply to the app, not to the library.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Hashable, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import streamlit as st
from streamlit.runtime.uploaded_file_manager import DeletedFile

from bert_probe.errors import InvalidFileError, ProbeError, TextError
from bert_probe.model.progress import Progress
from bert_probe.runtime import permissions
from bert_probe.server import paths, sessions
from bert_probe.text.datasets import everyday_topics, sample_search, to_file
from bert_probe.text.documents import DocumentList, as_documents, documents_in_text, parse_documents
from bert_probe.text.formats import FASTA_ENDINGS
from bert_probe.text.labeled_texts import CLASSES, parse_labeled_texts
from bert_probe.text.sentence_files import (
    check_lines,
    check_unpacked_size,
    column_names,
    parse_sentences,
    sentences_in_text,
)
from bert_probe.text.tables import default_column
from bert_probe.text.words import truncate_text
from bert_probe.ui import blocks, jobs, state, url_texts

if TYPE_CHECKING:
    # At runtime, import this module only to read vectors, because it imports torch, which takes seconds.
    from bert_probe.corpus.vector_files import VectorSet

T = TypeVar("T")
_queue = sessions.ReadingQueue()
MAX_DOCUMENTS = 20_000
"""Maximum number of documents on a page. The command line has no such limit."""

FASTA_TYPES = [ending.removeprefix(".") for ending in FASTA_ENDINGS]
"""Extensions of FASTA files without the period, for uploaders."""

_SOURCES = {"typed": "Text", "file": "File"}
_SENTENCE_SOURCES = {**_SOURCES, "sample": "Sample sentences"}


def choose_sentences(maximum: int) -> tuple[str, ...] | None:
    """Draw the selected input of sentences and return the sentences, or None if no file is uploaded yet.

    Raises:
        TextError, SelectionError: a file has more than `maximum` sentences or cannot be read; see
            `parse_sentences`.
    """
    source = state.segmented_control("sentences_from", "Source of the sentences", _SENTENCE_SOURCES, "typed")
    if source == "sample":
        texts = tuple(str(row.text) for row in everyday_topics().rows)
        st.caption(f"{len(texts)} sentences on six topics; the topics are the labels.")
        return texts
    if source == "file":
        return _sentences_from_file(maximum)
    return sentences_in_text(_SENTENCES.draw(), maximum + 1)


def sentence_labels(sentences: tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the label of each sentence that `choose_sentences` returned; None if they have no labels.

    The sample sentences have labels. The sentences of a table have labels if it has the columns text and
    label, and no row without a text. Other sentences have no labels.
    """
    source = st.session_state.get("sentences_from")
    if source == "sample":
        rows = everyday_topics().rows
    elif source == "file" and (file := _stored_file("sentences")) is not None:
        name, content = file
        try:
            if "label" not in {column.casefold() for column in column_names(content, name)}:
                return None
            with _queue.turn():
                rows = parse_labeled_texts(content, name, CLASSES, max_rows=len(sentences)).rows
        except ProbeError:
            return None
    else:
        return None
    labels = tuple(str(row.label) for row in rows)
    return labels if tuple(row.text for row in rows) == tuple(map(str, sentences)) else None


def check_size(name: str, content: bytes | str) -> None:
    """Raise TextError if a text or a decompressed file is larger than `max_bytes`, or fails `check_lines`."""
    if len(content if isinstance(content, bytes) else content.encode()) > max_bytes():
        size = f"{max_bytes() / 1e6:.0f} MB"
        raise TextError(f"{name} is larger than {size}. Split the file, or use the command line.")
    if isinstance(content, bytes):
        check_unpacked_size(content, name, max_bytes())
    else:
        check_lines(content, name)


def max_bytes() -> int:
    """Return the size limit of a file or a pasted text, in bytes."""
    return permissions.current().max_file_bytes


def upload_note() -> str:
    """Return help text: the size limit of an uploaded file, and where the file is stored."""
    place = "on the server until you close the page" if permissions.current().is_public else "on this machine"
    return f"at most {max_bytes() / 1e6:.0f} MB. The file is kept in memory {place}."


def upload_file(
    key: str, label: str, types: Sequence[str], help_text: str, read: Callable[[str, bytes], T]
) -> T | None:
    """Draw an uploader and return the data that `read` returned for the file, or None without a file.

    Args:
        key: prefix of the session keys of the widget and of the data.
        read: function that is called once per file with the name and the content of the file.
    """
    upload, file_key = upload_key(key), f"{key}_file"

    def keep() -> None:
        file = st.session_state[upload]
        if file is None:
            st.session_state.pop(file_key, None)
        elif not is_deleted(file):
            with _queue.turn():
                store_file(key, read(file.name, file.getvalue()))
            state.preserve(upload)

    st.file_uploader(label, types, key=upload, on_change=keep, help=help_text)
    value: T | None = _stored_file(key)
    return value


def _stored_file(key: str) -> Any:
    """Return what `store_file` stored, or None, with a message if it was dropped to free memory."""
    value = st.session_state.get(f"{key}_file")
    if not isinstance(value, sessions.SessionValue):
        return value
    if value.value is None:
        blocks.caveat("The file was removed from memory to make room for other files. Upload it again.")
    return value.value


def is_deleted(file: object) -> bool:
    """Return whether the server has deleted an uploaded file to free memory; data read from it are kept."""
    return isinstance(file, DeletedFile)


def store_file(key: str, value: object) -> None:
    """Store a value as if `upload_file` had read it from a file. It may be dropped, see `SessionValue`."""
    stored = None if value is None else sessions.SessionValue(value, sessions.current())
    st.session_state[f"{key}_file"] = stored
    state.preserve(f"{key}_file")


def upload_key(key: str) -> str:
    """Return the key of the widget of an uploader, which changes with each `replace_file`."""
    count = st.session_state.get(f"{key}_replaced", 0)
    return f"{key}_upload_{count}" if count else f"{key}_upload"


def replace_file(key: str, value: object) -> None:
    """Store a value as `store_file` does, and empty the uploader, which may show another file."""
    st.session_state[f"{key}_replaced"] = st.session_state.get(f"{key}_replaced", 0) + 1
    state.preserve(f"{key}_replaced")
    store_file(key, value)


def use_file(name: str, content: bytes) -> None:
    """Use a file of sentences as if the user had uploaded it."""
    replace_file("sentences", (name, content))


def paste_text(key: str, label: str, placeholder: str, height: int = 180, about: str | None = None) -> str:
    """Draw a text area whose text is kept while other pages are open.

    Raises:
        TextError: the text is larger than `max_bytes`.
    """
    state.preserve(key)
    text = st.text_area(
        label, key=key, height=height, placeholder=placeholder, help=about, persist_state="session"
    )
    check_size("The pasted text", text or "")
    return text or ""


def upload_sentences(key: str, label: str, maximum: int) -> tuple[str, ...]:
    """Draw an uploader for a text file and return the sentences of the file, or () without a file.

    Raises:
        TextError: the file is too large, has more than `maximum` sentences, or cannot be read.
    """
    help_text = f"One sentence per line, {upload_note()}"
    file = upload_file(key, label, ["txt", *FASTA_TYPES, "gz"], help_text, lambda *file: file)
    if file is None:
        return ()
    name, content = file
    check_size(name, content)
    if st.session_state.get(upload_key(key)) is None:
        blocks.caveat(f"{state.escape(name)} was uploaded earlier.")
    return parse_sentences(content, name, max_bytes=max_bytes(), max_sentences=maximum)


def check_count(texts: Sized, maximum: int, name: str = "sentences") -> None:
    """Raise TextError if there are more than `maximum` texts; `name` is their plural in the message."""
    if len(texts) > maximum:
        raise TextError(
            f"There are more than {maximum:,} {name}, the limit of this page. Remove some {name}, or use the "
            "command line."
        )


@dataclass(frozen=True)
class TypedList:
    """A text field for sentences or documents. Its text is used when the user clicks the button below it.

    Attributes:
        key: name of the URL parameter, and prefix of the session keys.
        example: initial text.
        button: label of the button that submits the text.
        others: for other fields, session key and example; the button Example fills them if they are empty.
    """

    key: str
    label: str
    placeholder: str
    example: str
    button: str
    others: tuple[tuple[str, str], ...] = ()

    def draw(self) -> str:
        """Draw the text field and its buttons; return the submitted text.

        Raises:
            TextError: the text is larger than `max_bytes`, or is no longer stored.
        """
        if self._typed not in st.session_state:
            if url_texts.missing(self.key):
                st.session_state[self._typed] = ""
            else:
                self._set(url_texts.recall(self.key) or self.example)
        if self._draft not in st.session_state:
            st.session_state[self._draft] = st.session_state[self._typed]
        # Do not use st.form, because a form loses unsubmitted text when the user opens another page.
        st.text_area(
            self.label,
            key=self._draft,
            height=180,
            placeholder=self.placeholder,
            persist_state="session",
        )
        typed: str = st.session_state[self._typed]
        state.keep_draft(self._draft, self.key, typed)
        with st.container(horizontal=True, vertical_alignment="center"):
            st.button(self.button, type="primary", on_click=self._submit)
            st.button("Example", on_click=self._use_example)
            blocks.not_run({self._draft: typed}, "content")
        if not typed:
            url_texts.check(self.key)
        check_size("The typed text", typed)
        return typed

    @property
    def _draft(self) -> str:
        return f"{self.key}_draft"

    @property
    def _typed(self) -> str:
        return f"{self.key}_typed"

    def _submit(self) -> None:
        self._set(st.session_state[self._draft])

    def _use_example(self) -> None:
        st.session_state[self._draft] = self.example
        for key, example in self.others:
            if not st.session_state.get(key, "").strip():
                st.session_state[key] = example
        self._submit()

    def _set(self, typed: str) -> None:
        st.session_state[self._typed] = typed
        url_texts.remember(self.key, typed if typed and typed != self.example else None)


def _sentences_from_file(maximum: int) -> tuple[str, ...] | None:
    file = upload_file(
        "sentences",
        "A text file with one sentence per line, a table with a header, or FASTA",
        ["txt", "csv", "tsv", "jsonl", *FASTA_TYPES, "gz"],
        f"UTF-8, {upload_note()}",
        lambda name, content: (name, content),
    )
    if file is None:
        return None
    name, content = file
    check_size(name, content)
    columns = column_names(content, name)
    column = choose_column("sentences_column", columns, name) if columns else None
    sentences = parse_sentences(content, name, column, max_bytes=max_bytes(), max_sentences=maximum)
    of_column = f", column {state.escape(column)}" if column is not None else ""
    st.caption(f"{len(sentences):,} sentences from {state.escape(name)}{of_column}. Empty lines are skipped.")
    return sentences


def choose_column(key: str, columns: tuple[str, ...], name: str) -> str:
    """Draw a select box for the table column that contains the texts; return the name of the column."""
    if st.session_state.get(key) not in columns:
        st.session_state[key] = columns[default_column(columns) or 0]
    column: str = st.selectbox(
        f"Column of {state.escape(name)}", list(dict.fromkeys(columns)), key=key, persist_state="session"
    )
    return column


Relation = Literal["compare", "pair"]


@dataclass(frozen=True)
class Example:
    """An example for the workbench, with one or two texts.

    Attributes:
        a, b: the texts; ``b`` may be empty.
        relation: "compare" if B is a separate input, "pair" if B is the second segment of A's input.
    """

    title: str
    a: str
    b: str = ""
    relation: Relation = "compare"


EXAMPLES = (
    Example(
        "Pronoun resolution: full or empty",
        "I poured water from the bottle into the cup until it was full.",
        "I poured water from the bottle into the cup until it was empty.",
    ),
    Example(
        "One word, two senses: Python",
        "The coolest programming language is Python",
        "Python can be aggressive sometimes during hunting",
    ),
    Example(
        "Paraphrase: different words, same meaning",
        "President greets the press in Chicago",
        "Obama speaks to media in Illinois",
    ),
    Example(
        "A passage with a repeated word",
        "Almost before we knew it, we had left the ground. The unknown holds its grounds.",
    ),
    Example(
        "A question and its context, as a pair",
        "Where do emperor penguins keep their egg?",
        "Emperor penguins balance their only egg on their feet and cover it with a fold of skin.",
        "pair",
    ),
    Example(
        "A name that splits into subword tokens", "Mehdi Wolpertinger moved to Tallahassee unexpectedly."
    ),
)

CONTEXT: tuple[tuple[str, str], ...] = (
    ("The coolest programming language is Python", "Python"),
    ("Python can be aggressive sometimes during hunting", "Python"),
    ("The snake swallowed its prey whole", "snake"),
    ("She learned programming at school", "programming"),
)
"""Example of the Context page: (sentence, selected word). The words show different senses of "Python"."""

SENTENCES = (
    "Global warming is happening",
    "The weather is not good to play golf today",
    "Never compare an apple to an orange",
    "Apple and orange are completely different from each other",
    "Ocean temperature is rising rapidly",
    "AI has taken the world by storm",
    "It is rainy today so we should postpone our golf game",
    "I love reading books than watching TV",
    "People say I am a bookworm, in fact, I do not want to waste my time on TV",
    "AI has transformed the way the world works",
)
"""Example of the Sentences page: ten sentences on five topics."""

_SENTENCES = TypedList(
    "sentences",
    "Sentences, one per line",
    "Type or paste at least two sentences, one per line",
    "\n".join(SENTENCES),
    "Compare",
)

QUERY = "I cannot log in"
"""Example query of the Search page."""

DOCUMENTS = tuple(map(str, sample_search()[0][:12]))
"""Example of the Search page: articles of a help center, of which four are relevant to `QUERY`."""

_DOCUMENTS = TypedList(
    "documents",
    "Documents, one per line or separated by empty lines",
    "Type or paste documents, one per line",
    "\n".join(DOCUMENTS),
    "Search",
    others=(("search_query", QUERY),),
)


def choose_query() -> str:
    """Draw a text field for the query of a search, and return the query.

    Raises:
        TextError: the query is no longer stored.
    """
    key = "search_query"
    if key not in st.session_state:
        is_missing = bool(url_texts.missing(key))
        st.session_state[key] = "" if is_missing else url_texts.recall(key) or QUERY
    query: str = st.text_input("Query", key=key, placeholder="Type or paste a query", persist_state="session")
    if query:
        url_texts.remember(key, None if query == QUERY else query)
    else:
        url_texts.check(key)
    return query


def choose_documents() -> DocumentList | VectorSet | None:
    """Draw the selected document input: a text field, an uploader, or a selector for vectors on the server.

    Returns:
        The documents or their vectors; None without an uploaded file, or until its vectors are read.

    Raises:
        TextError, EmptyTextError, SelectionError: the documents cannot be read; see `read_documents`.
    """
    sources = _SOURCES | ({"vectors": "Vectors"} if paths.vector_files() else {})
    source = state.segmented_control("documents_from", "Source of the documents", sources, "typed")
    if source == "typed":
        texts = documents_in_text(_DOCUMENTS.draw())
        check_count(texts, MAX_DOCUMENTS, "documents")
        return as_documents(texts)
    if source == "vectors":
        return _choose_vectors()
    file = upload_file(
        "documents",
        "A text file with one document per line, a table with a column named text, FASTA, or vectors",
        ["txt", "csv", "tsv", "jsonl", *FASTA_TYPES, "parquet", "npz", "npy", "gz", "zst"],
        "A table may also have the columns _id and title, as in the BEIR benchmark. Precomputed vectors "
        "can be in an .npz file (vectors, ids, texts), an .npy file, or JSON Lines (vector, id, text). "
        f"UTF-8, optionally compressed (.gz, .zst), {upload_note()}",
        _read_documents,
    )
    if file is None:
        return None
    documents = file.documents
    if isinstance(documents, bytes):
        vectors = parse_vectors_in_job("documents", file.name, documents, max_bytes())
        if vectors is not None:
            blocks.caveat(f"{len(vectors):,} vectors from {state.escape(file.name)}.")
        return vectors
    if file.remaining is not None:
        label = f"Skip the invalid rows, and search the other {len(file.remaining):,} documents"
        if st.checkbox(label, key="documents_skip_broken", persist_state="session"):
            documents = file.remaining
    if isinstance(documents, ProbeError):
        raise documents.with_traceback(None)  # frames of earlier runs would stay in memory
    blocks.caveat(f"{len(documents):,} documents from {state.escape(file.name)}.")
    if documents.skipped_sentence:
        st.warning(state.escape(documents.skipped_sentence, 2000), icon=":material/warning:")
    return documents


def _choose_vectors() -> VectorSet | None:
    """Draw a selector for the vector stores and files in the folders configured at startup.

    Returns:
        The vectors of the selected store or file, which a job reads; None until the job is done.

    Raises:
        TextError, StoreError, UnavailableError, OutOfMemoryError: the vectors cannot be read.
    """
    files = paths.vector_files()
    with st.container(width=420):
        names = {name: truncate_text(name, 100) for name in files}
        name = state.selectbox("vectors", "Vectors", names, next(iter(names)), show_label=True)
    path = files[name]
    try:
        # A store changes when a shard is added, which updates the modification time of its folder of shards.
        status = (path / "shards" if path.is_dir() else path).stat()
    except OSError as error:
        raise TextError(f"{name} cannot be opened: {error.strerror}. Choose another file.") from None
    from bert_probe.corpus.build import incomplete_note
    from bert_probe.corpus.store import open_corpus
    from bert_probe.corpus.vector_files import read_vectors

    if path.is_dir() and (note := incomplete_note(open_corpus(path))):
        st.warning(note)
    return _read_in_job(
        "read vectors", (path, status.st_mtime_ns, status.st_size), partial(read_vectors, path)
    )


def _read_in_job(key: str, cause: Hashable, read: Callable[[Progress], VectorSet]) -> VectorSet | None:
    return jobs.run(
        key, cause, "Read the vectors", read, unit="B", activity="Reading", start=True, droppable=True
    )


def parse_vectors_in_job(key: str, name: str, content: bytes, limit: int) -> VectorSet | None:
    """Parse the vectors of an uploaded file in a job and return them, or None until the job is done.

    Args:
        key: prefix of the key of the job.
        limit: maximum size of the decompressed arrays of an NPZ file in bytes.

    Raises:
        TextError, OutOfMemoryError: the file cannot be read.
    """

    from bert_probe.corpus.vector_files import parse_vectors

    return _read_in_job(
        f"{key} parsed",
        (name, hashlib.sha256(content).digest()),
        partial(parse_vectors, content, name, limit),
    )


def use_documents(name: str, content: bytes) -> None:
    """Use a file of documents as if the user had uploaded it."""
    replace_file("documents", _read_documents(name, content))


def search_button(query: str, documents: DocumentList, label: str = "Open the query in Search") -> None:
    """Draw a button that opens a query and documents on the Search page."""
    if st.button(label, icon=":material/search:"):
        use_documents("documents.jsonl", to_file(documents))
        st.session_state["search_query"] = query
        url_texts.remember("search_query", query)
        state.select("documents_from", "file")
        st.switch_page(paths.page_script("search"))


@dataclass(frozen=True)
class _DocumentsFile:
    """The documents of an uploaded file, or the error that occurred when the file was read.

    Attributes:
        documents: the documents, or the error. If the file contains vectors, its unparsed contents, because a
            job parses them.
        remaining: the valid documents of a file with broken rows; None if no row or every row is broken.
    """

    name: str
    documents: DocumentList | bytes | ProbeError
    remaining: DocumentList | None = None


def _read_documents(name: str, content: bytes) -> _DocumentsFile:
    from bert_probe.corpus.vector_files import has_vectors

    try:
        check_size(name, content)
        if has_vectors(name, io.BytesIO(content)):
            return _DocumentsFile(name, content)
        return _DocumentsFile(name, _parse(name, content))
    except InvalidFileError as error:
        try:
            return _DocumentsFile(name, error, _parse(name, content, skip_broken=True))
        except InvalidFileError:  # raised if every row is broken
            return _DocumentsFile(name, error)
    except ProbeError as error:
        return _DocumentsFile(name, error)


def parse_valid_documents(content: bytes, name: str) -> DocumentList:
    """Return the documents of a file without its broken rows, which `DocumentList.skipped` lists."""
    return _parse(name, content, skip_broken=True)


def _parse(name: str, content: bytes, skip_broken: bool = False) -> DocumentList:
    # Pass the size limit again, because a compressed file may expand to much more than the uploaded bytes.
    return parse_documents(io.BytesIO(content), name, skip_broken, MAX_DOCUMENTS, max_bytes())
