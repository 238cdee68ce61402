"""Test character positions of tokens from tokenizers that do not report them."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import bert_probe
from bert_probe.errors import EmptyTextError, TextError, TokenizerError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.from_model import keep_float64
from bert_probe.model.token_positions import find_positions
from tests.helpers.families import COMMON, randomize
from tests.helpers.proteins import SEQUENCE, save_esm
from tests.helpers.raw import Raw


def save(folder: Path, config: Any, tokenizer: Any) -> Path:
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(config)
    randomize(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def esm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a tiny ESM-2 with its own tokenizer, and return its folder."""
    return save_esm(tmp_path_factory.mktemp("esm"))


@pytest.fixture(scope="module", params=["BertweetTokenizer", "PhobertTokenizer"])
def bpe(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Return a tiny RoBERTa with the tokenizer of BERTweet or PhoBERT."""
    folder = tmp_path_factory.mktemp("bpe")
    (folder / "bpe.codes").write_text("t h 10\nth e</w> 9\nr i 8\nri v 7\ne r</w> 6\n")
    (folder / "vocab.txt").write_text("the 9\nriv@@ 8\ner 7\nth@@ 6\ne@@ 5\ns 4\n. 3\n")
    tokenizer = getattr(transformers, request.param)(str(folder / "vocab.txt"), str(folder / "bpe.codes"))
    config = transformers.RobertaConfig(
        **COMMON, vocab_size=len(tokenizer) + 9, pad_token_id=1, type_vocab_size=1
    )
    saved = save(folder / "model", config, tokenizer)
    # BertweetTokenizer saves its merges without the counts that it requires when it loads the file.
    shutil.copy(folder / "bpe.codes", saved / "bpe.codes")
    return bert_probe.load(saved)


def test_residue_of_esm_is_one_token(esm_folder: Path) -> None:
    checkpoint = bert_probe.load(esm_folder, dtype="float64")
    keep_float64(checkpoint.model)
    trace = checkpoint.trace(SEQUENCE, "LAGVA")
    for segment, text in enumerate((SEQUENCE, "LAGVA")):
        tokens = [token for token in trace.tokens if token.segment == segment and not token.special]
        assert "".join(tokens) == text
        assert [(token.start, token.end) for token in tokens] == [(i, i + 1) for i in range(len(text))]
        assert [token.word for token in tokens] == [*range(len(text))]
    expected = transformers.EsmTokenizer.from_pretrained(esm_folder)(SEQUENCE, "LAGVA")["input_ids"]
    assert trace.encoding.ids == expected
    alone = checkpoint.trace(SEQUENCE)
    Raw(esm_folder, "float64").numbers(alone.encoding).check(alone)
    batch = checkpoint.traces([SEQUENCE, "LAGVA"])
    np.testing.assert_allclose(batch[0].hidden_states, alone.hidden_states, atol=1e-10)


def test_residues_are_windowed_and_truncated(esm_folder: Path) -> None:
    encoder = bert_probe.load(esm_folder).encoder
    encoding = encoder.encode(SEQUENCE, truncate=True, max_tokens=10)
    assert [str(token) for token in encoding.tokens] == ["<cls>", *SEQUENCE[:8], "<eos>"]
    assert encoding.dropped == len(SEQUENCE) - 8
    unknown = encoder.encode(f"  {SEQUENCE[:3]} j <mask>").tokens[1:-1]
    assert [(str(token), token.start, token.end) for token in unknown] == [
        ("M", 2, 3),
        ("K", 3, 4),
        ("T", 4, 5),
        ("<unk>", 6, 7),
        ("<mask>", 8, 14),
    ]
    with pytest.raises(EmptyTextError, match="is empty"):
        encoder.encode("")
    with pytest.raises(EmptyTextError, match="only spaces"):
        encoder.encode("  ")


def test_words_of_bertweet_and_phobert(bpe: Checkpoint) -> None:
    text = "the  river. thes ö"
    tokens = [token for token in bpe.trace(text).tokens if not token.special]
    assert [token.start for token in tokens] == sorted(token.start or 0 for token in tokens)
    for token in tokens:
        assert token.display in (text[token.start : token.end], "<unk>")
    assert [word.text for word in bpe.encode(text).words] == ["the", "river.", "thes", "ö"]
    assert [str(token) for token in tokens][:2] == ["the", "riv@@"]
    assert tokens[1].display == "riv"
    assert len(bert_probe.Tokens().of(bpe.trace(text, "the s")).table()) == len(bpe.encode(text, "the s"))
    assert bert_probe.Vocabulary().of(bpe).table()["token"].iloc[4] == "the"


@pytest.mark.parametrize("text", ["the river@@ s", "th@@"])
def test_text_with_marks_of_the_vocabulary_is_refused(bpe: Checkpoint, text: str) -> None:
    with pytest.raises(TextError, match="its tokens cannot be matched with the text"):
        bpe.trace(text)


def positions(tokens: list[str], text: str) -> Any:
    """Return the positions that `find_positions` finds in a text for tokens between two special tokens."""
    tokenizer: Any = SimpleNamespace(
        tokenize=lambda _: tokens, convert_tokens_to_ids=lambda names: [*range(len(names))]
    )
    ids = [99, *range(len(tokens)), 99]
    return find_positions(tokenizer, [text], ids, [True, *[False] * len(tokens), True])


def test_positions_equal_hand_computation() -> None:
    observed = positions(["日本", "##語", "を", "a@@", "b"], "日本語 を ab")
    assert observed.offsets == [(0, 0), (0, 2), (2, 3), (4, 5), (6, 7), (7, 8), (0, 0)]
    assert observed.word_ids == [None, 0, 0, 1, 2, 2, None]
    assert observed.sequence_ids == [None, 0, 0, 0, 0, 0, None]
    assert positions(["a", " ", "b"], "a b").offsets[1:-1] == [(0, 1), (1, 2), (2, 3)]
    lower = positions(["we</w>", "le", "ft</w>", ".</w>", "[MASK]", "it</w>"], "We Left. [MASK] it")
    assert lower.offsets[1:-1] == [(0, 2), (3, 5), (5, 7), (7, 8), (9, 15), (16, 18)]
    assert lower.word_ids[1:-1] == [0, 1, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["a"], "ab"),  # a character is missing
        (["a@@"], "a@@"),  # the text contains the continuation mark
        (["a", "b", "c"], "ab"),  # a character is added
        (["cafe"], "café"),  # an accent is removed
        (["i", "x"], "İx"),  # lowercasing changes the length
        (["We"], "we"),  # a letter is capitalized
        (["user"], "@me"),  # a name is replaced
        (["&apos;", "s"], "'s"),  # a character is escaped
    ],
)
def test_tokens_that_do_not_spell_the_text_are_refused(tokens: list[str], text: str) -> None:
    with pytest.raises(TextError, match=f"cannot be matched with the text “{text}”"):
        positions(tokens, text)


def test_ids_that_differ_from_the_tokens_are_refused() -> None:
    tokenizer: Any = SimpleNamespace(tokenize=str.split, convert_tokens_to_ids=lambda _: [1, 2])
    with pytest.raises(TextError, match="cannot be matched"):
        find_positions(tokenizer, ["a b"], [1, 3], [False, False])


def test_tokenizer_that_changes_every_text_is_refused(
    esm_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenize = transformers.EsmTokenizer._tokenize
    monkeypatch.setattr(
        transformers.EsmTokenizer, "_tokenize", lambda self, text: tokenize(self, text.upper()[::-1])
    )
    with pytest.raises(TokenizerError, match="EsmTokenizer does not report character positions, and its tok"):
        bert_probe.load(esm_folder)
