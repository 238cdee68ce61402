"""Export of a WordPiece tokenizer for the playground, which tokenizes in JavaScript.

The tokenizer itself determines the class of each character (space, punctuation, …), because its Unicode
version differs from those of browsers.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import Any

from tokenizers import pre_tokenizers
from tokenizers.normalizers import BertNormalizer

from bert_probe.errors import UnavailableError
from bert_probe.model.checkpoint import Checkpoint

_STEPS = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")
_SEPARATOR = "|"
_LETTERS = frozenset(("Ll", "Lm", "Lo", "Lt", "Lu", "Cn", "Co"))
"""Unicode categories of letters, unassigned characters and characters for private use."""


def tokenizer_data(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the vocabulary, the special tokens and the classes of characters, as JSON values.

    Raises:
        UnavailableError: the tokenizer is not BERT's uncased WordPiece tokenizer.
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
    """Return the ranges of characters that the tokenizer treats specially, and lower-case forms.

    The lower-case forms include only those that differ from Python's `str.lower`.
    """
    # Surrogates are not characters, and have no UTF-8 encoding.
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    cleaned, spaced, bare, lower = (_normalize_each(characters, name) for name in _STEPS)
    return {
        "ranges": {
            "removed": _ranges(compress(characters, (not text for text in cleaned))),
            "spaces": _ranges(compress(characters, (text == " " for text in cleaned))),
            "ideographs": _ranges(compress(characters, (len(text) == 3 for text in spaced))),
            "marks": _ranges(compress(characters, (not text for text in bare))),
            "punctuation": _ranges(_punctuation(characters)),
        },
        "lower": {
            character: text
            for character, text in zip(characters, lower, strict=True)
            if text != character.lower()
        },
    }


def _normalize_each(characters: Sequence[str], step: str) -> list[str]:
    """Return the result of one step of BERT's normalizer for each character."""
    normalizer = BertNormalizer(**{name: name == step for name in _STEPS})
    # One call is much faster than a million calls. No step changes the separator or adjacent characters.
    results: list[str] = normalizer.normalize_str(_SEPARATOR.join(characters)).split(_SEPARATOR)
    place = characters.index(_SEPARATOR)
    return [*results[:place], normalizer.normalize_str(_SEPARATOR), *results[place + 2 :]]


def _punctuation(characters: Sequence[str]) -> Iterator[str]:
    """Yield the characters that BERT's pre-tokenizer splits off as separate words, even between letters."""
    # Skip letters and unassigned characters, which are 90% of all characters and never punctuation.
    candidates = (character for character in characters if unicodedata.category(character) not in _LETTERS)
    text = "".join(f"a{character}a " for character in candidates)
    for word, (start, end) in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(text):
        if end - start == 1 and start % 4 == 1 and word != " ":
            yield word


def _ranges(characters: Iterable[str]) -> list[tuple[int, int]]:
    """Return the first and last code point of each run of consecutive characters."""
    ranges: list[tuple[int, int]] = []
    for code in map(ord, characters):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    return ranges
