"""Sentence input: a text field or an uploaded file, whose content is kept while other pages are open.

The module also limits the number of sentences and the size of files on pages. The library has no such limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass
from typing import Literal, TypeVar

import streamlit as st
from streamlit.runtime.uploaded_file_manager import DeletedFile

from bert_probe.errors import TextError
from bert_probe.reports.drafts import Draft, DraftEntry
from bert_probe.reports.view_files import TextInput, ViewFile
from bert_probe.text.sentence_files import column_names, default_column, lines, parse_sentences
from bert_probe.ui import blocks, state, url_texts

T = TypeVar("T")

MAX_BYTES = 5_000_000
"""Size limit of a file, in bytes. It equals Streamlit's setting `server.maxUploadSize`."""

_DRAFT, _TYPED, _UPLOAD, _FILE = "sentences_draft", "sentences_typed", "sentences_upload", "sentences_file"
_SOURCES = {"typed": "Text", "file": "File"}


def choose_sentences() -> tuple[str, ...] | None:
    """Draw a text field or an uploader, and return the sentences, or None if no file is uploaded yet.

    Raises:
        TextError, SelectionError: the file cannot be read; see `parse_sentences`.
    """
    source = state.segmented_control("sentences_from", "Source of the sentences", _SOURCES, "typed")
    return _typed_sentences() if source == "typed" else _sentences_from_file()


def check_size(name: str, content: bytes | str) -> None:
    """Raise TextError if a file or a text is larger than `MAX_BYTES`."""
    if len(content) > MAX_BYTES or (isinstance(content, str) and len(content.encode()) > MAX_BYTES):
        raise TextError(f"{name} is larger than {MAX_BYTES / 1e6:.0f} MB. Split it, or use the command line.")


def upload_file(
    key: str, label: str, types: Sequence[str], help_text: str, read: Callable[[str, bytes], T]
) -> T | None:
    """Draw an uploader and return the data read from its file, which is kept while other pages are open.

    Args:
        key: prefix of the session keys of the widget and of the file.
        read: function that is called once per file with its name and content.
    """
    upload, kept = f"{key}_upload", f"{key}_file"

    def keep() -> None:
        file = st.session_state[upload]
        if file is None:
            st.session_state.pop(kept, None)
        elif not is_deleted(file):
            st.session_state[kept] = read(file.name, file.getvalue())
            state.preserve(kept, upload)

    st.file_uploader(label, types, key=upload, on_change=keep, help=help_text)
    value: T | None = st.session_state.get(kept)
    return value


def is_deleted(file: object) -> bool:
    """Return whether an uploader returned a file that the server deleted to free memory.

    Only the uploaded content is lost; data that was read from the file is kept.
    """
    return isinstance(file, DeletedFile)


def store_file(key: str, value: object) -> None:
    """Store a value as if `upload_file` had read it from an uploaded file."""
    st.session_state[f"{key}_file"] = value
    state.preserve(f"{key}_file")


def use_file(name: str, content: bytes) -> None:
    """Use a file of sentences as if the user had uploaded it."""
    store_file("sentences", (name, content))


def paste_text(
    key: str, label: str, placeholder: str, height: int = 180, help_text: str | None = None
) -> str:
    """Draw a text area whose text is kept while other pages are open.

    Raises:
        TextError: the text is larger than `MAX_BYTES`.
    """
    state.preserve(key)
    text = st.text_area(
        label, key=key, height=height, placeholder=placeholder, help=help_text, persist_state="session"
    )
    check_size("The pasted text", text or "")
    return text or ""


def upload_sentences(key: str, label: str) -> tuple[str, ...]:
    """Draw an uploader for a text file and return its sentences, or () without a file.

    Raises:
        TextError: the file is larger than `MAX_BYTES` or cannot be read; see `parse_sentences`.
    """
    kept = f"{key}_file"
    upload = st.file_uploader(label, type=["txt"], key=f"{key}_upload")
    if upload is not None and not is_deleted(upload):
        st.session_state[kept] = (upload.name, upload.getvalue())
        state.preserve(kept)
    if kept not in st.session_state:
        return ()
    name, content = st.session_state[kept]
    check_size(name, content)
    if upload is None:
        blocks.caveat(f"{state.escape(name)} was uploaded earlier.")
    return parse_sentences(content, name)


def check_count(sentences: Sized, maximum: int) -> None:
    """Raise TextError if there are more than `maximum` sentences."""
    if len(sentences) > maximum:
        raise TextError(
            f"{len(sentences):,} sentences, but this page accepts at most {maximum:,}. "
            "Remove some, or use the command line."
        )


def _typed_sentences() -> tuple[str, ...]:
    if _TYPED not in st.session_state:
        if url_texts.missing("sentences"):
            st.session_state[_TYPED] = ""
        else:
            _set_typed(url_texts.recall("sentences") or "\n".join(SENTENCES))
    if _DRAFT not in st.session_state:
        st.session_state[_DRAFT] = st.session_state[_TYPED]
    # Do not use a form, which would lose the draft when the user opens another page.
    st.text_area(
        "Sentences, one per line",
        key=_DRAFT,
        height=180,
        placeholder="Type or paste at least two sentences, one per line",
        persist_state="session",
    )
    typed = st.session_state[_TYPED]
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button("Compare", type="primary", on_click=_submit)
        st.button("Example", on_click=_example)
        blocks.not_run({_DRAFT: typed}, "content")
    if not typed:
        url_texts.check("sentences")
    check_size("The typed text", typed)
    return tuple(lines(typed))


def _submit() -> None:
    _set_typed(st.session_state[_DRAFT])


def _example() -> None:
    st.session_state[_DRAFT] = "\n".join(SENTENCES)
    _submit()


def _set_typed(typed: str) -> None:
    st.session_state[_TYPED] = typed
    url_texts.remember("sentences", typed if typed and typed != "\n".join(SENTENCES) else None)


def _sentences_from_file() -> tuple[str, ...] | None:
    st.file_uploader(
        "A text file with one sentence per line, or a table with a header",
        ["txt", "csv", "tsv", "jsonl"],
        key=_UPLOAD,
        on_change=_keep_file,
        help=f"UTF-8, at most {MAX_BYTES / 1e6:.0f} MB. The file stays in memory on this machine.",
    )
    if _FILE not in st.session_state:
        return None
    name, content = st.session_state[_FILE]
    check_size(name, content)
    columns = column_names(content, name)
    column = choose_column("sentences_column", columns, name) if columns else None
    sentences = parse_sentences(content, name, column)
    of_column = f", column {state.escape(column)}" if column is not None else ""
    st.caption(f"{len(sentences):,} sentences from {state.escape(name)}{of_column}. Empty lines are skipped.")
    return sentences


def _keep_file() -> None:
    """Store the uploaded file, which the widget loses when the user opens another page."""
    file = st.session_state[_UPLOAD]
    if file is None:
        st.session_state.pop(_FILE, None)
    elif not is_deleted(file):
        st.session_state[_FILE] = (file.name, file.getvalue())
        state.preserve(_FILE, _UPLOAD)


def choose_column(key: str, columns: tuple[str, ...], name: str) -> str:
    """Draw a select box for the table column that contains the texts; return the column's name."""
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
        relation: whether B is a separate text to compare, or the second segment of A's input.
    """

    title: str
    a: str
    b: str = ""
    relation: Relation = "compare"


EXAMPLES = (
    Example(
        "Pronoun: what was full, what was empty?",
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
"""Example of the Context page: sentences with their selected words, which compare senses of "Python"."""

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


def report_draft() -> Draft:
    """Return a draft with three views of the first example."""
    a, b = EXAMPLES[0].a, EXAMPLES[0].b
    texts = (TextInput(a), TextInput(b))
    address = {"a": a, "b": b}
    return Draft(
        "Example: full or empty?",
        (
            DraftEntry(
                ViewFile("MinimalPair", texts=texts, page="compare", address=address),
                "The two sentences differ in one word. Head {{1, head}} of layer {{1, layer}} has the "
                "largest change of attention: a total variation of {{1, total_variation}}.",
            ),
            DraftEntry(
                ViewFile("Similarity", texts=texts, page="similarity", address=address),
                "The cosine of every token of one sentence with every token of the other, in the last layer.",
            ),
            DraftEntry(
                ViewFile(
                    "Attention", texts=texts[:1], page="attention", address=address | {"show": "heatmap"}
                ),
                "The mean attention of all heads of the last layer. The mean hides what individual heads do.",
            ),
        ),
    )
