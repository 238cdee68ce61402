"""Words that the tokenizer splits, and tokens that are not in the vocabulary."""

from __future__ import annotations

from bert_probe.analyses.highlights.types import (
    HighlightCandidate,
    HighlightContext,
    HighlightType,
    TextSegments,
)
from bert_probe.model.encoding import Token
from bert_probe.text.words import truncate_text

_MAX_LISTED = 5


def _find_split(context: HighlightContext) -> HighlightCandidate | None:
    tokens, words = context.trace.tokens, context.trace.encoding.words
    if not words:
        return None
    longest = max(words, key=lambda word: len(word.positions))
    pieces = [tokens[position].display for position in longest.positions]
    split = sum(len(word.positions) > 1 for word in words)
    return HighlightCandidate(
        len(pieces),
        f"{split} of {len(words)} words {'is' if split == 1 else 'are'} split into subword tokens. "
        f"“{truncate_text(longest.text)}” has the most ({len(pieces)}): {_listed(pieces)}.",
        "tokens",
        {},
        lambda: TextSegments(pieces),
        split > 0,
    )


def _find_unknown(context: HighlightContext) -> HighlightCandidate | None:
    trace = context.trace
    if trace.made_by is None:
        return None
    tokenizer = trace.made_by.tokenizer
    unknown = [token for token in trace.tokens if token.id == tokenizer.unk_token_id and not token.special]
    texts = [_source_text(context, token) for token in unknown]
    count, are = len(unknown), "is" if len(unknown) == 1 else "are"
    return HighlightCandidate(
        count,
        f"{count} of {len(trace.tokens)} tokens {are} not in the vocabulary and {are} read as "
        f"{tokenizer.unk_token}: {_listed([f'“{truncate_text(text)}”' for text in texts])}.",
        "tokens",
        {},
        lambda: TextSegments([str(token) for token in unknown]),
        bool(unknown),
    )


def _source_text(context: HighlightContext, token: Token) -> str:
    encoding = context.trace.encoding
    return (encoding.text, encoding.pair or "")[token.segment][token.start : token.end]


def _listed(texts: list[str]) -> str:
    more = f" and {len(texts) - _MAX_LISTED} more" if len(texts) > _MAX_LISTED else ""
    return ", ".join(texts[:_MAX_LISTED]) + more


HIGHLIGHT_TYPES = (
    HighlightType("split words", "subword tokens of a word (maximum over words)", 5, _find_split),
    HighlightType("unknown tokens", "tokens that are not in the vocabulary", 0, _find_unknown),
)
