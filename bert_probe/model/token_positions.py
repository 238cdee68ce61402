"""Compute the character positions that slow tokenizers do not report (ESM-2, BERTweet, PhoBERT, XLM).

The positions are found by matching the tokens with the text: the tokens, without vocabulary marks such as @@,
must spell the text, in the original or in lower case, apart from spaces. Other texts are rejected.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bert_probe.errors import TextError, TokenizerError

_CHECK_TEXT = "Two words and a few more"
_CONTINUED = "@@"
"""Suffix of a token whose word continues with the next token, as in BERTweet and PhoBERT."""
_END = "</w>"
"""Suffix of the last token of a word, as in XLM."""
_SPACES = re.compile(r"\s*")
_CONTINUATION = "##"
"""Prefix of a token that continues a word, as in BERT's Japanese models."""


@dataclass(frozen=True)
class PositionedTokens:
    """Positions of tokens, with the attribute names of `tokenizers.Encoding`.

    Each list has one item per token.

    Attributes:
        sequence_ids: index of the token's text; None for a token that the tokenizer added.
        word_ids: index of the token's word within its text.
        offsets: character span of the token; (0, 0) for an added token.
    """

    sequence_ids: list[int | None]
    word_ids: list[int | None]
    offsets: list[tuple[int, int]]


def check_positions(tokenizer: Any) -> None:
    """Raise an error if the character positions of a tokenizer's tokens cannot be determined.

    Raises:
        TokenizerError: the tokenizer is not a fast tokenizer of transformers, and its tokens do not spell a
            test text.
    """
    if getattr(tokenizer, "is_fast", False):
        return
    try:
        ids = tokenizer(_CHECK_TEXT, add_special_tokens=False)["input_ids"]
        find_positions(tokenizer, [_CHECK_TEXT], ids, [False] * len(ids))
    except Exception:  # Catch all exceptions, because tokenizers raise many types.
        raise TokenizerError(
            f"{type(tokenizer).__name__} does not report character positions, and its tokens cannot be "
            "matched with the text. Convert the tokenizer to a fast tokenizer (tokenizer.json)."
        ) from None


def find_positions(
    tokenizer: Any, texts: Sequence[str], ids: Sequence[int], added: Sequence[int]
) -> PositionedTokens:
    """Find the character positions of the tokens from a slow tokenizer.

    Args:
        texts: a text, or a text and its pair.
        ids: ids of all tokens.
        added: 1 for each token that the tokenizer added.

    Raises:
        TextError: the tokens do not spell the text.
    """
    rows = [
        (number, *row)
        for number, text in enumerate(texts)
        for row in zip(*_spell(tokenizer, text), strict=True)
    ]
    text_ids = [token_id for token_id, flag in zip(ids, added, strict=True) if not flag]
    if [token_id for _, token_id, _, _ in rows] != text_ids:
        raise _not_spelled(tokenizer, texts[0])
    remaining = iter(rows)
    aligned = [(None, None, None, (0, 0)) if flag else next(remaining) for flag in added]
    sequence_ids, _, word_ids, offsets = (list(column) for column in zip(*aligned, strict=True))
    return PositionedTokens(sequence_ids, word_ids, offsets)


def without_marks(token: str) -> str:
    """Return a token without the suffixes that mark where a word ends or continues."""
    return token.removesuffix(_CONTINUED).removesuffix(_END)


def _spell(tokenizer: Any, text: str) -> tuple[list[int], list[int], list[tuple[int, int]]]:
    """Return the id, word index and character span of each token of a text."""
    tokens: list[str] = tokenizer.tokenize(text)
    has_ends = any(token.endswith(_END) for token in tokens)
    # Lowercasing never shortens a text, so equal lengths mean equal positions.
    cases = (text, text.lower()) if len(text.lower()) == len(text) else (text,)
    words, spans = [], []
    start, word, is_continued = 0, -1, False
    for token in tokens:
        spellings = (token, without_marks(token), token.removeprefix(_CONTINUATION))
        surfaces = tuple(dict.fromkeys(filter(None, spellings)))
        # If the token does not start at the current position, skip spaces before it.
        has_begun = any(case.startswith(surfaces, start) for case in cases)
        begin = start if has_begun else _skip_spaces(text, start)
        matching = [item for item in surfaces if any(case.startswith(item, begin) for case in cases)]
        if len(matching) != 1:
            raise _not_spelled(tokenizer, text)
        surface = matching[0]
        has_prefix = surface != token and token.startswith(_CONTINUATION)
        word += not (has_prefix or (is_continued and begin == start))
        is_marked = surface != token and token.endswith(_CONTINUED)
        is_continued = not token.endswith(_END) if has_ends else is_marked
        words.append(word)
        spans.append((begin, begin + len(surface)))
        start = begin + len(surface)
    if _skip_spaces(text, start) != len(text):
        raise _not_spelled(tokenizer, text)
    return tokenizer.convert_tokens_to_ids(tokens), words, spans


def _skip_spaces(text: str, start: int) -> int:
    match = _SPACES.match(text, start)
    return start if match is None else match.end()


def _not_spelled(tokenizer: Any, text: str) -> TextError:
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    return TextError(
        f"{type(tokenizer).__name__} does not report character positions, and its tokens cannot be "
        f"matched with the text “{shown}”, so the positions of the tokens are unknown. Remove the "
        "characters that the tokenizer changes, or use a model with tokenizer.json."
    )
