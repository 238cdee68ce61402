"""Test snippets that reproduce a result, for texts that are too long for a single line."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

import bert_probe
from bert_probe.core import snippets
from bert_probe.core.field_types import Index
from bert_probe.model.checkpoint import Checkpoint


@pytest.mark.parametrize("letter", ["a", "語", "'"])
def test_command_with_a_too_long_argument_is_a_comment(letter: str, minilm: Checkpoint) -> None:
    max_letters = snippets.MAX_ARGUMENT_BYTES // len(letter.encode())
    texts = [letter * max_letters, letter * (max_letters + 1)]
    fits, too_long = (bert_probe.Tokens().of(minilm.trace(text, truncate=True)) for text in texts)
    assert shlex.split(fits.shell)[-1] == texts[0]
    assert re.fullmatch(
        r"# A text has 131,07\d bytes, but an argument of a command has at most 131,071; use Python\.",
        too_long.shell,
    )
    assert repr(texts[1]) in too_long.python
    paired = bert_probe.Tokens().of(minilm.trace("a", texts[1], truncate=True))
    assert paired.shell == too_long.shell


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
