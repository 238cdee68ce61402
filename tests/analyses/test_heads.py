"""Test head profiles: labels, merged words, provenance, and the command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import bert_probe
from bert_probe.analyses.attention.heads import (
    MEASURES,
    SHARES,
    Heads,
    HeadsResult,
    head_labels,
    measure_heads,
)
from bert_probe.cli.main import main
from bert_probe.core.provenance import InputRecord
from bert_probe.errors import SelectionError, ShapeError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.words import word_lens

TEXT = "Mehdi loves Tallahassee, and we love it."


def test_label_is_largest_share_above_threshold(minilm: Checkpoint) -> None:
    profiles = Heads().of(minilm.trace(TEXT))
    values = profiles.values
    for layer, labels in enumerate(profiles.labels):
        for head, label in enumerate(labels):
            largest = max(SHARES, key=lambda name: values[name][layer, head])
            if values[largest][layer, head] >= 0.5:
                assert label not in ("", "broad")
            else:
                assert label == ("broad" if values["relative_entropy"][layer, head] >= 0.85 else "")
    assert profiles.labels[0][2] == "previous token"


@pytest.mark.parametrize("words", [False, True])
def test_profiles_equal_measures_of_tokens_or_words(minilm: Checkpoint, words: bool) -> None:
    trace = minilm.trace(TEXT)
    profiles = Heads(words).of(trace)
    measured = measure_heads(trace, word_lens(trace) if words else None)
    assert list(profiles.values) == list(MEASURES)
    for name in MEASURES:
        np.testing.assert_array_equal(profiles.values[name], measured[name])
    assert (profiles.values["same_word"].max() == 0) == words


def test_profiles_have_provenance(minilm: Checkpoint) -> None:
    a, b = minilm.trace(TEXT), minilm.trace("We left.", "You did not.")
    profiles = Heads().of(a)
    description = profiles.table().attrs["provenance"]
    assert (description["text"], description["pair"], description["tokens"]) == (TEXT, None, len(a.tokens))
    assert description["question"] == {"analysis": "heads", "words": False}
    assert "[" not in repr(profiles)
    # `table` takes no arguments, so it cannot be called for another text, model or option.
    with pytest.raises(TypeError):
        profiles.table(b)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        profiles.inputs = InputRecord.of(b)  # type: ignore[misc]
    with pytest.raises(SelectionError, match=r"Compute a new Heads\."):
        profiles.showing(words=True)


def test_measures_of_other_shapes_raise(minilm: Checkpoint) -> None:
    trace = minilm.trace(TEXT)
    values = Heads().of(trace).values
    labels = head_labels(values)
    with pytest.raises(ShapeError, match="self must have shape"):
        HeadsResult(Heads(), InputRecord.of(trace), {"self": values["self"][:, :-1]}, labels)


def test_command_line_equals_library(minilm: Checkpoint, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["heads", TEXT, "--words", "--out", str(tmp_path / "heads.json")])
    assert stopped.value.code == 0
    columns = json.loads((tmp_path / "heads.json").read_text(encoding="utf-8"))["columns"]
    assert list(columns) == ["layer", "head", *MEASURES, "label"]
    profiles = bert_probe.Heads(words=True).of(minilm.trace(TEXT))
    assert columns["entropy_bits"] == profiles.values["entropy_bits"].ravel().tolist()
    assert columns["label"] == [label for row in profiles.labels for label in row]
    assert columns["layer"][12:14] == [2, 2]
    assert columns["head"][12:14] == [1, 2]
