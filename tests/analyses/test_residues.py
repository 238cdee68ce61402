"""Test residue numbers, and texts with mostly unknown tokens, in protein models and other models."""

from __future__ import annotations

import pytest

import bert_probe
from bert_probe.analyses.vocabulary.tokens import find_unknown_tokens
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.words import word_lens
from bert_probe.views.text import place_name, positions
from tests.helpers.proteins import SEQUENCE, save_esm, save_protbert


@pytest.fixture(scope="module")
def esm(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return bert_probe.load(save_esm(tmp_path_factory.mktemp("esm")))


@pytest.fixture(scope="module")
def protbert(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return bert_probe.load(save_protbert(tmp_path_factory.mktemp("protbert")))


def numbers(checkpoint: Checkpoint, text: str, pair: str | None = None) -> list[int | None]:
    return [token.residue for token in checkpoint.encode(text, pair, truncate=True).tokens]


def test_residues_are_numbered_from_1_without_special_tokens(esm: Checkpoint, protbert: Checkpoint) -> None:
    assert numbers(esm, "MKTAY") == [None, 1, 2, 3, 4, 5, None]
    assert numbers(esm, " MK<mask> A j") == [None, 1, 2, 3, 4, 5, None]
    assert numbers(esm, "MKT", "AY") == [None, 1, 2, 3, None, 1, 2, None]
    assert numbers(protbert, "M K [MASK] A") == [None, 1, 2, 3, 4, None]
    assert numbers(protbert, "MKTA") == [None, None, None], "a single unknown word"
    trace = esm.trace("MKTAYIAKQR")
    assert list(positions(trace.tokens)) == [None, *range(1, 11), None]
    assert [place_name(token) for token in trace.tokens[:3]] == ["<cls> (0)", "M1", "K2"]
    assert [unit.residue for unit in word_lens(trace).units] == list(positions(trace.tokens))


def test_other_texts_have_no_residues(minilm: Checkpoint) -> None:
    for text in ("MKTAYIAKQR", "I saw a b", "3 4 5", "Ä Ö Ü", "a"):
        assert set(numbers(minilm, text)) == {None}
    assert list(positions(minilm.trace("the river").tokens)) == [0, 1, 2, 3]


def test_truncated_sequence_keeps_its_numbers(protbert: Checkpoint) -> None:
    encoding = protbert.encoder.encode(" ".join(SEQUENCE), truncate=True, max_tokens=6)
    assert [token.residue for token in encoding.tokens] == [None, 1, 2, 3, 4, None]


def test_unknown_tokens_come_with_a_change_that_helps(esm: Checkpoint, protbert: Checkpoint) -> None:
    unknown = find_unknown_tokens(protbert.trace(SEQUENCE))
    assert unknown is not None
    assert (unknown.count, unknown.total, unknown.name) == (1, 1, "[UNK]")
    assert (unknown.change, unknown.text) == ("a space between the letters", " ".join(SEQUENCE))
    assert "with a space between the letters: M K T A Y" in str(unknown)
    assert find_unknown_tokens(protbert.trace(unknown.text)) is None
    lower = find_unknown_tokens(esm.trace(SEQUENCE.lower()))
    assert lower is not None
    assert (lower.change, lower.text) == ("upper case", SEQUENCE)
    digits = find_unknown_tokens(protbert.trace("1 2 M"))
    assert digits is not None
    assert "Use a model" in str(digits)
    assert find_unknown_tokens(esm.trace(SEQUENCE)) is None
