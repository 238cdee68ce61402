"""The data of a WordPiece tokenizer for the browser.

The classes of characters are measured with the tokenizer itself, character by character, because its version
of Unicode differs from those of browsers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from typing import Any

from tokenizers import pre_tokenizers
from tokenizers.normalizers import BertNormalizer

from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint

_STEPS = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")


def tokenizer_data(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the vocabulary, the special tokens and the classes of characters, as JSON values.

    Raises:
        UnavailableError: the tokenizer is not BERT's with lower case.
    """
    settings = json.loads(checkpoint.tokenizer.backend_tokenizer.to_str())
    model, normalizer = settings["model"], settings["normalizer"]
    expected = {
        "type": "BertNormalizer",
        "strip_accents": None,
        **dict.fromkeys(("clean_text", "lowercase"), True),
    }
    if model["type"] != "WordPiece" or not expected.items() <= normalizer.items():
        raise UnavailableError(f"{checkpoint.description.name} has no lower-case WordPiece tokenizer.")
    encoding = checkpoint.encode("a")
    return {
        "vocabulary": sorted(model["vocab"], key=model["vocab"].__getitem__),
        "added": [token["content"] for token in settings["added_tokens"]],
        "unknown": model["unk_token"],
        "prefix": model["continuing_subword_prefix"],
        "maxCharacters": model["max_input_chars_per_word"],
        "template": [str(encoding.tokens[0]), str(encoding.tokens[-1])],
        **_characters(),
    }


def _characters() -> dict[str, Any]:
    """Return the ranges of the characters that the tokenizer treats differently, and their lower-case forms."""
    clean, ideographs, accents, lower = (_step(name) for name in _STEPS)
    split = pre_tokenizers.BertPreTokenizer()
    # Surrogates are not characters, and have no UTF-8 encoding.
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    cleaned = {character: clean(character) for character in characters}
    return {
        "ranges": {
            "removed": _ranges(character for character in characters if not cleaned[character]),
            "spaces": _ranges(character for character in characters if cleaned[character] == " "),
            "ideographs": _ranges(character for character in characters if len(ideographs(character)) == 3),
            "marks": _ranges(character for character in characters if not accents(character)),
            "punctuation": _ranges(
                character for character in characters if len(split.pre_tokenize_str(f"a{character}a")) == 3
            ),
        },
        # Python's str.lower decides about the end of words (Σ), so each character is converted alone.
        "lower": {
            character: lower(character) for character in characters if lower(character) != character.lower()
        },
    }


def _step(name: str) -> Callable[[str], str]:
    return BertNormalizer(**{step: step == name for step in _STEPS}).normalize_str


def _ranges(characters: Iterable[str]) -> list[tuple[int, int]]:
    """Return the first and last code point of each run of consecutive characters."""
    ranges: list[tuple[int, int]] = []
    for code in map(ord, characters):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    return ranges
