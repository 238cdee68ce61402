"""Highlights of words: split into subword tokens, unknown to the tokenizer, or influential."""

from __future__ import annotations

import numpy as np

from bert_probe.analyses.highlights.types import (
    Bars,
    HighlightCandidate,
    HighlightContext,
    HighlightType,
    TextSegments,
    quote,
)
from bert_probe.errors import SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import (
    FILL_MASK,
    QUESTION_ANSWERING,
    SENTENCE_SIMILARITY,
    TOKEN_CLASSIFICATION,
)
from bert_probe.model.encoding import Token
from bert_probe.text.words import truncate_text

_MAX_LISTED = 5
_MAX_WORDS = 32
"""Maximum number of words of a text for influential words; the model runs once for each removed word."""
_SENTENCES = 10
"""Number of reference sentences on which influential words are measured."""


def _find_split(context: HighlightContext) -> HighlightCandidate | None:
    tokens, words = context.trace.tokens, context.trace.encoding.words
    if not words:
        return None
    longest = max(words, key=lambda word: len(word.positions))
    subwords = [tokens[position].display for position in longest.positions]
    split = sum(len(word.positions) > 1 for word in words)
    return HighlightCandidate(
        len(subwords),
        f"{split} of {len(words)} words {'is' if split == 1 else 'are'} split into subword tokens. "
        f"“{truncate_text(longest.text)}” has the most ({len(subwords)}): {_listed(subwords)}.",
        "tokens",
        {},
        lambda: TextSegments(subwords),
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


def _find_influential_word(
    context: HighlightContext, other: HighlightContext | None = None
) -> HighlightCandidate | None:
    checkpoint = context.trace.made_by
    if checkpoint is None or len(context.lens.units) > _MAX_WORDS:
        return None
    task = SENTENCE_SIMILARITY
    if other is None:
        task = next((task for task in checkpoint.tasks if task != SENTENCE_SIMILARITY), "")
    if task not in checkpoint.tasks:
        return None
    # Imported here, because checkpoints without a task head do not need this module.
    from bert_probe.analyses.attribution.attribution import Attribution
    from bert_probe.analyses.outputs.target import MASKED, REMOVED

    second = None if other is None else other.trace
    is_of_tokens = task in (FILL_MASK, TOKEN_CLASSIFICATION, QUESTION_ANSWERING)
    removal = MASKED if is_of_tokens and checkpoint.tokenizer.mask_token_id is not None else REMOVED
    try:
        left_out = Attribution(task, words=True, removal=removal).of(context.trace, second)
        attention = Attribution(task, words=True, method="attention").of(context.trace, second)
    except (UnavailableError, SelectionError, TextError):
        return None
    units, shares = left_out.units, left_out.shares
    if np.isnan(shares).all() or not np.nanmax(np.abs(shares)) > 0:
        return None
    index = int(np.nanargmax(np.abs(shares)))
    decrease = float(left_out.scores[index])
    attended = int(np.nanargmax(attention.shares))
    first = "the same word" if attended == index else quote(units[attended], units)
    of_text = "" if other is None else " of A"
    direction = "decreases" if decrease > 0 else "increases"
    action = "Masking" if removal == MASKED else "Removing"
    return HighlightCandidate(
        float(np.abs(shares[index])),
        f"{action} {quote(units[index], units)}{of_text} changes the {left_out.number} most: it {direction} "
        f"by {abs(decrease):.2g} from {left_out.value:.2f}. Attention ranks {first} first.",
        "answer",
        {} if task == checkpoint.tasks[0] else {"task": task},
        lambda: Bars(np.nan_to_num(left_out.scores).tolist(), index),
    )


HIGHLIGHT_TYPES = (
    HighlightType("split words", "subword tokens of a word (maximum over words)", 5, _find_split),
    HighlightType("unknown tokens", "tokens that are not in the vocabulary", 0, _find_unknown),
    *(
        HighlightType(
            "influential word",
            f"change of the {output} when a word is left out, as a share of the changes of all words "
            "(maximum)",
            3,
            _find_influential_word,
            texts,
            sentences=_SENTENCES,
        )
        for texts, output in ((1, "answer"), (2, "cosine similarity of two texts"))
    ),
)
