"""Words that the vocabulary does not hold as a whole, or not at all."""

from __future__ import annotations

from bert_probe.analyses.highlights.thumbnails import TextSegments
from bert_probe.analyses.highlights.types import HighlightCandidate, HighlightContext, HighlightType
from bert_probe.model.encoding import Token
from bert_probe.text.truncation import truncate_text

_LISTED = 5


def _split(seen: HighlightContext) -> HighlightCandidate | None:
    tokens, words = seen.trace.tokens, seen.trace.encoding.words
    if not words:
        return None
    most = max(words, key=lambda word: len(word.positions))
    pieces = [tokens[position].display for position in most.positions]
    split = sum(len(word.positions) > 1 for word in words)
    others = f"{split} of {len(words)} words {'is' if split == 1 else 'are'} read in pieces"
    return HighlightCandidate(
        len(pieces),
        f"{others}; “{truncate_text(most.text)}” in the most, {len(pieces)}: {_listed(pieces)}.",
        "tokens",
        {},
        lambda: TextSegments(pieces),
        split > 0,
    )


def _unknown(seen: HighlightContext) -> HighlightCandidate | None:
    trace = seen.trace
    if trace.made_by is None:
        return None
    unknown = trace.made_by.tokenizer.unk_token_id
    found = [token for token in trace.tokens if token.id == unknown and not token.special]
    texts = [_written(seen, token) for token in found]
    are = "is" if len(found) == 1 else "are"
    return HighlightCandidate(
        len(found),
        f"{len(found)} of {len(trace.tokens)} tokens {are} unknown to the vocabulary, which holds one entry "
        f"for all such: {_listed([f'“{truncate_text(text)}”' for text in texts])}.",
        "tokens",
        {},
        lambda: TextSegments([str(token) for token in found]),
        bool(found),
    )


def _written(seen: HighlightContext, token: Token) -> str:
    encoding = seen.trace.encoding
    return (encoding.text, encoding.pair or "")[token.segment][token.start : token.end]


def _listed(texts: list[str]) -> str:
    more = f" and {len(texts) - _LISTED} more" if len(texts) > _LISTED else ""
    return ", ".join(texts[:_LISTED]) + more


KINDS = (
    HighlightType("words in pieces", "pieces of a word, most of all words", 5, _split),
    HighlightType("unknown tokens", "tokens that are not in the vocabulary", 0, _unknown),
)
