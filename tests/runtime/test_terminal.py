"""Test terminal output: control characters are escaped, and write errors are handled."""

from __future__ import annotations

import io
import logging
import os
import sys
import unicodedata
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bert_probe.errors import ExportError
from bert_probe.runtime.terminal import SafeStream, use_safe_streams, visible

TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b2J\x07\x7f", "\\x9b2J\\x07\\x7f"),
        ("a\r\nb\tc\x00", "a\\r\\nb\\tc\\x00"),
        ("exe.\u202etxt\u2066\u061c\u200f", "exe.\\u202etxt\\u2066\\u061c\\u200f"),
        ("\udc9b\ud800", "\\udc9b\\ud800"),
        ("one\u2028two", "one\\u2028two"),
        ("Straße 東京 👩\u200d🚀 שלום “a” — \\x1b", "Straße 東京 👩\u200d🚀 שלום “a” — \\x1b"),
    ],
)
def test_control_characters_are_escaped(given_text: str, expected: str) -> None:
    assert visible(given_text) == expected


@given(st.text(st.characters()))
def test_only_control_characters_are_escaped(text: str) -> None:
    def steers(char: str) -> bool:
        turns = unicodedata.bidirectional(char) in TURNING or char in "\u061c\u200e\u200f"
        return unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or turns

    expected = [char.encode("unicode_escape").decode() if steers(char) else char for char in text]
    assert visible(text) == "".join(expected)


def test_text_is_escaped_and_bytes_are_not() -> None:
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), use_safe_streams():
        logging.StreamHandler().emit(logging.makeLogRecord({"msg": "a\x1b[2J\nb"}))
        print("tab\tand \u202e")
        assert isinstance(sys.stdout, SafeStream)
        sys.stdout.write_bytes(b"exact \x1b[2J\n")
    assert err.getvalue() == "a\\x1b[2J\nb\n"
    out.flush()
    assert isinstance(out.buffer, io.BytesIO)
    assert out.buffer.getvalue() == b"tab\tand \\u202e\nexact \x1b[2J\n"


class TerminalOutput(io.TextIOWrapper):
    """A terminal that records bytes."""

    def isatty(self) -> bool:
        return True


def test_control_characters_of_bytes_are_escaped_on_a_terminal() -> None:
    """A report that is verified can contain sequences that clear the screen and hide what follows."""
    out = TerminalOutput(io.BytesIO(), "utf-8")
    with redirect_stdout(out), use_safe_streams():
        assert isinstance(sys.stdout, SafeStream)
        sys.stdout.write_bytes("é,\x1b[2J\t1\r\n".encode())
    assert isinstance(out.buffer, io.BytesIO)
    assert out.buffer.getvalue() == "é,\\x1b[2J\t1\r\n".encode()


def test_unencodable_character_is_escaped() -> None:
    out = io.TextIOWrapper(io.BytesIO(), "ascii")
    with redirect_stdout(out), use_safe_streams():
        print("1 − cosine")
    assert isinstance(out.buffer, io.BytesIO)
    out.flush()
    assert out.buffer.getvalue() == b"1 \\u2212 cosine\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_write_error_is_reported_once() -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        stream = SafeStream(full, "Standard output")
        stream.write("a")
        with pytest.raises(ExportError, match=r"^Standard output cannot be written: No space left on dev"):
            stream.flush()
        stream.flush()
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        unnamed = SafeStream(full)
        unnamed.write("the reader is gone")
        unnamed.flush()


def test_broken_pipe_is_ignored() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as pipe:
        SafeStream(pipe, "Standard output").write_bytes(b"a")
