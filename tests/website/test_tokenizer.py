"""Test that the tokenizer of the playground gives the same tokens as the library, also for hostile texts."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from bert_probe.errors import EmptyTextError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.words import word_lens
from tests.helpers.javascript import run_module
from website.precision import compared_sentences
from website.tokenizer import tokenizer_data

ENCODE = """
import { readFileSync } from "node:fs";
import { Tokenizer } from "./site/tokenizer.js";
import { Trace } from "./site/trace.js";

const [data, texts] = process.argv.slice(1).map((path) => JSON.parse(readFileSync(path)));
const tokenizer = new Tokenizer(data);
console.log(JSON.stringify(texts.map((input) => {
  const [text, pair = null] = [input].flat();
  const tokens = tokenizer.encode(text, pair);
  const words = new Trace(text, tokens, {}, {}, pair).words;
  if (pair !== null) {
    return [tokens.map(({ id, segment }) => [id, segment]), words.map((word) => [word.text, word.segment])];
  }
  return [tokens.map(({ id }) => id), words.map((word) => [word.text, word.first, word.count])];
})));
"""

HOSTILE = (
    "Électroencéphalographie, naïve café! ΣΑΣ İstanbul ẞ ﬁne ǅ",
    "e\u0301 a\u0323\u0308o\u0302\u0303 \u1112\u1161\u11ab 한국어 \u302e\u0301x",
    "soft\u00adhyphen zero\u200bwidth \u200d👩‍💻 👍🏽 🇩🇪 \ufeffmark \u202eright",
    "你好世界 日本語テスト 中a文 \u3400\U00020000 かな",
    "tabs\tand\nlines\r\n\u00a0\u2003\u3000spaces \x00\x07\ufffd control",
    "[CLS] [MASK]tail [SEP][SEP] [cls] [UNK] [PAD]! a[MASK]b ##ing [ MASK ]",
    "a-b_c/d\\e…—“quotes”‘s’ ¿que? 50% $3.99 ©® ±×÷ ≮ ; \u037e ‿⁀",
    "x" * 101 + " " + "y" * 100 + " supercalifragilisticexpialidocious",
    "</script><img src=x onerror=alert(1)> __proto__ constructor toString hasOwnProperty",
    "العربية עברית हिन्दी ไทย தமிழ் ქართული አማርኛ 𝕬𝖇𝖈 ℌ ½ ² ①",
)


def encoded(
    checkpoint: Checkpoint, folder: Path, texts: Sequence[str | tuple[str, str]]
) -> list[list[object]]:
    """Return the token ids and words that the JavaScript tokenizer computes for texts or pairs of texts."""
    paths = [folder / "tokenizer.json", folder / "texts.json"]
    for path, content in zip(paths, (tokenizer_data(checkpoint), texts), strict=True):
        path.write_text(json.dumps(content), encoding="utf-8")
    results: list[list[object]] = run_module(ENCODE, *map(str, paths))
    return results


def test_tokens_and_words_equal_library(minilm: Checkpoint, tmp_path: Path) -> None:
    # Random texts with characters from many Unicode blocks.
    source = random.Random(5)
    blocks = (0x20, 0xA0, 0x300, 0x400, 0x590, 0x900, 0x1100, 0x1E00, 0x2000, 0x3000, 0xAC00, 0xFE00, 0x1F600)
    random_texts = [
        "".join(chr(source.choice(blocks) + source.randrange(256)) for _ in range(source.randrange(1, 40)))
        for _ in range(300)
    ]
    texts = [*compared_sentences(), *HOSTILE, *random_texts]
    for text, (ids, words) in zip(texts, encoded(minilm, tmp_path, texts), strict=True):
        try:
            encoding = minilm.encode(text)
        except EmptyTextError:
            assert ids == [101, 102], repr(text)
            continue
        assert ids == encoding.ids, repr(text)
        expected = [[str(unit), unit.position, len(unit.positions)] for unit in word_lens(encoding).units]
        assert words == expected, repr(text)


@pytest.mark.prove
def test_pairs_equal_library(minilm: Checkpoint, tmp_path: Path) -> None:
    pairs = [*zip(HOSTILE, reversed(HOSTILE), strict=True), ("The ferry.", "The ferry.")]
    for (a, b), (tokens, words) in zip(pairs, encoded(minilm, tmp_path, pairs), strict=True):
        encoding = minilm.encode(a, b)
        assert tokens == [[token.id, token.segment] for token in encoding.tokens], repr((a, b))
        assert words == [[str(unit), unit.segment] for unit in word_lens(encoding).units], repr((a, b))


@pytest.mark.prove
def test_every_character_is_tokenized_as_in_library(minilm: Checkpoint, tmp_path: Path) -> None:
    codes = [code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    texts = [f"a{chr(code)}b {chr(code)}" for code in codes]
    tokenizer = minilm.tokenizer.backend_tokenizer
    for start in range(0, len(texts), 200_000):
        part = texts[start : start + 200_000]
        for text, (ids, _) in zip(part, encoded(minilm, tmp_path, part), strict=True):
            assert ids == tokenizer.encode(text).ids, repr(text)


def test_other_tokenizers_are_refused(family: object) -> None:
    checkpoint = family("roberta")  # type: ignore[operator]
    with pytest.raises(UnavailableError, match="no lower-case WordPiece"):
        tokenizer_data(checkpoint)
