"""Sentences and chunks of a document, as spans of characters."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from bert_probe.analyses.vectors.pooling import PoolingConfig
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Token
from bert_probe.model.lengths import MAX_TOKENS, max_input_tokens

Span = tuple[int, int]
"""First character and character after the last one, as in a slice."""

# A period after a single letter belongs to initials or to an abbreviation such as "e.g.".
# Lookbehinds and possessive quantifiers keep the time linear for long runs of spaces and marks.
_BOUNDARY = re.compile(
    r"(?<!\b[^\W\d_])[.][\"'”’»)\]]*+\s++|(?<![!?…])[!?…]++[\"'”’»)\]]*+\s++"
    r"|[。！？]++[」』”’）]*+\s*+|(?<!\s)[^\S\r\n]*+[\r\n]\s*+"
)
_WORD = re.compile(r"\w")


def sentence_spans(text: str) -> list[Span]:
    """Return the spans of the sentences of a text, without the white space between them.

    A sentence ends with ``.``, ``!``, ``?`` or ``…`` and white space, with a full-width mark, or at the end
    of a line. A part without a letter or digit belongs to the sentence before it. A text without letters and
    digits is one sentence.
    """
    ends = [match.end() for match in _BOUNDARY.finditer(text)]
    spans: list[Span] = []
    start = 0
    for end in dict.fromkeys([*ends, len(text)]):
        part = text[start:end]
        if _WORD.search(part):
            first = start + len(part) - len(part.lstrip())
            spans.append((first, first + len(part.strip())))
        elif spans and part.strip():
            spans[-1] = (spans[-1][0], start + len(part.rstrip()))
        start = end
    if not spans and text.strip():
        start = len(text) - len(text.lstrip())
        return [(start, start + len(text.strip()))]
    return spans


def chunk_spans(text: str, tokens: Sequence[Token], size: int) -> list[Span]:
    """Return the spans of the chunks of a text: as many complete sentences as fit.

    A sentence with more than `size` tokens is split into parts of similar length, between two words, or
    between two tokens of a long word.

    Args:
        text: the text.
        tokens: its tokens; special tokens are ignored.
        size: maximum number of tokens of a chunk.
    """
    sentences = sentence_spans(text)
    chunks: list[Span] = []
    count = 0  # tokens of the last chunk
    positions = [
        (token.start, token.end, token.word)
        for token in tokens
        if token.start is not None and token.end is not None
    ]
    index = 0
    for start, end in sentences:
        first = index
        while index < len(positions) and positions[index][0] < end:
            index += 1
        length = index - first
        if chunks and count + length <= size:
            chunks[-1] = (chunks[-1][0], end)
            count += length
            continue
        for part_start, part_end, part_length in _split(positions[first:index], start, end, size):
            chunks.append((part_start, part_end))
            count = part_length
    return chunks


def _split(
    tokens: Sequence[tuple[int, int, int | None]], start: int, end: int, size: int
) -> list[tuple[int, int, int]]:
    """Return spans of a sentence, of similar length and at most `size` tokens, with their token counts."""
    parts = []
    while len(tokens) > size:
        # Distribute the remaining tokens evenly, because a last chunk of one token would be meaningless.
        length = math.ceil(len(tokens) / math.ceil(len(tokens) / size))
        cut = length
        while cut > 1 and tokens[cut][2] == tokens[cut - 1][2]:
            cut -= 1
        cut = length if cut == 1 else cut
        parts.append((start, tokens[cut - 1][1], cut))
        start, tokens = tokens[cut][0], tokens[cut:]
    return [*parts, (start, end, len(tokens))]


def read_limit(checkpoint: Checkpoint, recipe: PoolingConfig) -> int:
    """Return the maximum number of tokens that the checkpoint reads of a text, special tokens included."""
    limit = max_input_tokens(checkpoint.encoder.max_tokens)
    return limit if recipe.max_tokens is None else min(limit, recipe.max_tokens)


def added_tokens(checkpoint: Checkpoint, recipe: PoolingConfig, text: str) -> int:
    """Return the number of tokens that are not part of a text: special tokens and those of the prompt."""
    encoding = checkpoint.encoder.encode(recipe.text(text), truncate=True, max_tokens=MAX_TOKENS)
    return sum(token.end is None or token.end <= len(recipe.prefix) for token in encoding.tokens)


def check_chunk_size(size: int, added: int, limit: int) -> None:
    """Raise an error if a chunk of `size` tokens does not fit into the model's input.

    Raises:
        SelectionError: `size` and the tokens that are added to each chunk exceed the limit.
    """
    if size + added > limit:
        raise SelectionError(
            f"size is {size:,}, but this checkpoint reads at most {limit - added:,} tokens of a chunk. Use "
            "a smaller size."
        )
