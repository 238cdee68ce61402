"""Test snippets that reproduce a result, for texts that are too long for a single line."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bert_probe
from bert_probe.core import snippets
from bert_probe.core.field_types import Index
from bert_probe.model.checkpoint import Checkpoint
from tests.helpers.gate import prove_unless


@pytest.mark.parametrize("letter", prove_unless({"語"}, ["a", "語", "'"]))
def test_command_with_a_too_long_argument_is_a_comment(letter: str, minilm: Checkpoint) -> None:
    max_letters = snippets.MAX_ARGUMENT_BYTES // len(letter.encode())
    texts = [letter * max_letters, letter * (max_letters + 1)]
    fits, too_long = (bert_probe.Tokens().of(minilm.trace(text, truncate=True)) for text in texts)
    assert shlex.split(fits.shell.replace("\\\n", ""))[-1] == texts[0]
    assert re.fullmatch(
        r"# A text has 131,07\d bytes, but an argument of a command has at most 131,071; use Python\.",
        too_long.shell,
    )
    assert repr(texts[1]) in too_long.python
    paired = bert_probe.Tokens().of(minilm.trace("a", texts[1], truncate=True))
    assert paired.shell == too_long.shell


CONTROLS = "".join(map(chr, [*range(1, 32), 127]))


def test_words_that_begin_with_an_equals_sign_are_quoted() -> None:
    """zsh replaces =ls by /bin/ls."""
    assert [snippets.shell_join([word]) for word in ("=ls", "a=b", "=1+1 2")] == ["'=ls'", "a=b", "'=1+1 2'"]


SHELLS = [shell for shell in ("sh", "dash", "bash", "zsh", "ksh") if shutil.which(shell)]


def run_in_shell(shell: str, command: str, program: str, folder: Path) -> list[str]:
    """Return the arguments that a shell passes to a program in a command."""
    script = folder / program
    script.write_text("#!/bin/sh\nprintf '%s\\0' \"$@\"\n")
    script.chmod(0o700)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
    ended = subprocess.run([shell, "-c", command], env=environment, capture_output=True, check=True)
    assert ended.stderr == b""
    return ended.stdout.decode().split("\0")[:-1]


@pytest.mark.skipif(not SHELLS, reason="needs a POSIX shell")
@pytest.mark.parametrize(
    "text",
    [
        f"{CONTROLS}a{CONTROLS}",
        "A text\x03\nid > file\n and more",
        "-\x1b[2J%s %b 'it' \\0101\\c \"$HOME\" `id` $(id) !! \x7f7 \x8f语",
        "\x04 text\r\n\n",
        "\nb\x03\n",
        "two\nlines!\n",
        "/etc/passw\t; id #\n",
        "a\n^foo^bar",
    ],
)
def test_shells_get_the_text_from_a_command_without_control_characters(
    text: str, minilm: Checkpoint, tmp_path: Path
) -> None:
    result = bert_probe.Tokens().of(minilm.trace(f"text {text}", text))
    assert set(CONTROLS) & {*result.shell, *result.http} <= {"\n"}
    assert "\n^" not in result.shell
    for shell in SHELLS:
        words = run_in_shell(shell, result.shell, "bert-probe", tmp_path)
        assert words[words.index("--pair") + 1] == text
        assert words[-1] == f"text {text}"
        _, option, body = run_in_shell(shell, result.http, "curl", tmp_path)
        assert (option, json.loads(body)) == ("--json", {"text": f"text {text}", "pair": text})


def test_command_with_nul_is_a_comment(minilm: Checkpoint) -> None:
    result = bert_probe.Tokens().of(minilm.trace("a\0b"))
    assert result.shell.startswith("# A text contains NUL, but an argument of a command cannot contain")
    assert json.loads(shlex.split(result.http)[-1]) == {"text": "a\0b"}


@pytest.mark.skipif(not SHELLS, reason="needs a POSIX shell")
@pytest.mark.parametrize(
    "words",
    [
        ["A" * 4_075 + "'\nid > file #"],
        ["x" * 9_000, "a b", "'" * 3_000, "\\" * 5_000, ""],
        ["语" * 4_000, "\t" * 2_000, ("word\n" * 99 + "^") * 8 + "\n" * 600],
        [f"sentence {number}" for number in range(1_000)],
    ],
)
def test_lines_of_a_command_are_short_enough_for_terminals(words: list[str], tmp_path: Path) -> None:
    """A terminal cuts a line after 4,095 bytes, so that a shell would run the next line of the text."""
    command = snippets.shell_join(["bert-probe", "tokens", *words])
    assert max(len(line.encode()) for line in command.split("\n")) <= snippets.MAX_LINE_BYTES
    for shell in SHELLS:
        assert run_in_shell(shell, command, "bert-probe", tmp_path) == ["tokens", *words]


def test_short_command_is_one_line() -> None:
    words = ["bert-probe", "tokens", "a b" * 1_000]
    assert snippets.shell_join(words) == shlex.join(words)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have other limits")
def test_longest_argument_is_the_limit_of_linux() -> None:
    subprocess.run(["true", "a" * snippets.MAX_ARGUMENT_BYTES], check=True)
    with pytest.raises(OSError, match="Argument list too long"):
        subprocess.run(["true", "a" * (snippets.MAX_ARGUMENT_BYTES + 1)], check=True)


@pytest.mark.parametrize(("layer", "plain"), [(0, 1), (2, 3), (-1, "last"), (-2, "last-1"), (-3, "last-2")])
def test_layer_is_written_from_1_and_read_back(layer: int, plain: int | str, minilm: Checkpoint) -> None:
    field = Index("layer")
    assert field.to_json(layer) == plain
    read = field.from_json("layer", plain, minilm.description)
    assert read % minilm.description.layers == layer % minilm.description.layers
