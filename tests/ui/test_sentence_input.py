"""Test that uploaded files are kept after the server has deleted them, and that inputs are limited."""

from __future__ import annotations

import gzip
import tracemalloc
from typing import Any

import pytest
import streamlit as st
from streamlit.runtime.uploaded_file_manager import DeletedFile
from streamlit.testing.v1 import AppTest

from bert_probe.errors import TextError
from bert_probe.text.sentence_files import parse_sentences
from bert_probe.ui.sentence_input import check_size


def page() -> None:
    import streamlit as st

    from bert_probe.ui import sentence_input

    file = sentence_input.upload_file(
        "demo", "File", ["txt"], "A file", lambda name, content: (name, content)
    )
    st.text(f"kept: {file}")
    st.text(f"sentences: {sentence_input.upload_sentences('lines', 'Lines', 2_000)}")


def test_deleted_upload_keeps_its_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    def uploader(*_: Any, key: str, on_change: Any = None, **__: Any) -> DeletedFile:
        st.session_state[key] = DeletedFile("file id")
        if on_change is not None:
            on_change()
        return DeletedFile("file id")

    monkeypatch.setattr(st, "file_uploader", uploader)
    app = AppTest.from_function(page)
    app.session_state["demo_file"] = ("a.txt", b"One")
    app.session_state["lines_file"] = ("b.txt", b"Two\nThree")
    app.run()
    assert not app.exception
    assert [text.value for text in app.text] == ["kept: ('a.txt', b'One')", "sentences: ('Two', 'Three')"]


def test_removed_file_is_not_used() -> None:
    app = AppTest.from_function(page).run()
    for content, shown in ((b"One\nTwo\n", "('One', 'Two')"), (None, "()")):
        file = None if content is None else ("a.txt", content, "text/plain")
        app.file_uploader(key="lines_upload").set_value(file).run()
        assert not app.exception
        assert app.text[1].value == f"sentences: {shown}"


@pytest.mark.parametrize("content", [b"a" * 5_000_001, "a" * 5_000_001, "é" * 2_500_001])
def test_size_is_limited_in_bytes(content: bytes | str) -> None:
    with pytest.raises(TextError, match=r"Notes is larger than 5 MB\. Split the file"):
        check_size("Notes", content)
    check_size("Notes", content[:-1])


def test_size_is_limited_after_decompression() -> None:
    with pytest.raises(TextError, match=r"notes\.txt\.gz is larger than 5 MB after decompression\. Split"):
        check_size("notes.txt.gz", gzip.compress(bytes(5_000_001)))
    check_size("notes.txt.gz", gzip.compress(bytes(5_000_000)))


def test_reading_stops_at_the_maximum_of_the_page() -> None:
    """A compressed file of 2 KB can contain a million lines."""
    content = gzip.compress(b"a\n" * 1_000_000)
    tracemalloc.start()
    try:
        for name in ("lines.txt.gz", "table.csv.gz"):
            with pytest.raises(TextError, match=r"has more than 2,000 sentences\. Split the file"):
                parse_sentences(content, name, max_sentences=2_000)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("line_break", ["\n", "\r", "\x0b", "\u2028"])
def test_typed_text_with_too_many_lines_is_refused(line_break: str) -> None:
    """Otherwise, each page that shows a text of 5 MB could need 400 MB for its lines."""
    check_size("The text", f"a{line_break}" * 100_000)
    with pytest.raises(TextError, match=r"The text has more than 100,000 lines\. Remove lines"):
        check_size("The text", f"a{line_break}" * 100_001)
