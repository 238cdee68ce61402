"""What questions about two models have in common: whether both read the same, and whether they are one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_probe.core.provenance import InputRecord
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.trace import Trace
from bert_probe.text.common_spans import CommonSpans, common_spans
from bert_probe.text.truncation import truncate_text

_NAMES = frozenset({"model", "origin", "revision"})
"""What one and the same model may be called in two ways by."""


def read_by_both(a: Trace, b: Trace) -> tuple[InputRecord, Trace, Trace]:
    """Who was asked, and the two traces of the text; A's twice where both models are one.

    Raises:
        SelectionError: two texts, or tokenizers that are not the same.
        UnavailableError: numbers that no model made which is open here.
    """
    _check_text(a, b)
    check_tokenizers(a.checkpoint, b.checkpoint)
    check_encodings(a.encoding, b.encoding)
    return _two(a, b)


def read_in_two_ways(a: Trace, b: Trace) -> tuple[InputRecord, Trace, Trace, CommonSpans]:
    """The same where the tokenizers may differ, and how the tokens of the one fit those of the other.

    Raises:
        SelectionError: two texts, or one that was cut short.
        UnavailableError: numbers that no model made which is open here.
    """
    _check_text(a, b)
    return *_two(a, b), common_spans(a.encoding, b.encoding)


def _check_text(a: Trace, b: Trace) -> None:
    one, other = a.encoding, b.encoding
    if (one.text, one.pair) != (other.text, other.pair):
        raise SelectionError(
            "Two models are compared on one text, and these are two. Give both the same; for two texts there "
            "is Compare."
        )


def _two(a: Trace, b: Trace) -> tuple[InputRecord, Trace, Trace]:
    subject = InputRecord.of(a).beside(InputRecord.of(b))
    one = are_one(subject, a.checkpoint, b.checkpoint) and a.encoding.ids == b.encoding.ids
    return subject, a, a if one else b


def check_tokenizers(a: Checkpoint, b: Checkpoint) -> None:
    """Refuse two models that do not know the same pieces by the same numbers.

    Raises:
        SelectionError: with the first piece that differs.
    """
    if a.tokenizer is b.tokenizer:
        return
    one, other = a.tokenizer.get_vocab(), b.tokenizer.get_vocab()
    if one == other:
        return
    known, there = ({number: piece for piece, number in words.items()} for words in (one, other))
    first = min(number for number in known.keys() | there.keys() if known.get(number) != there.get(number))
    sizes = f"{len(one):,} pieces in A and {len(other):,} in B; " if len(one) != len(other) else ""
    raise SelectionError(
        f"The models have different tokenizers: {sizes}number {first:,} is {_quoted(known.get(first))} in A, "
        f"{a.description.name}, and {_quoted(there.get(first))} in B, {b.description.name}. Give two of one "
        "tokenizer, such as a model and what it became by training."
    )


def check_encodings(one: Encoding, other: Encoding, where: str = "this text") -> None:
    """Refuse a text that the two models are given in different tokens.

    Raises:
        SelectionError: with the first token that differs.
    """
    if one.ids == other.ids:
        return
    if one.dropped != other.dropped and len(one) + one.dropped == len(other) + other.dropped:
        raise SelectionError(
            f"Of {where} A reads {len(one):,} tokens and B {len(other):,}, as one of them accepts no more. "
            "Shorten the text, so that both read all of it."
        )
    pairs = zip([*one.tokens, None], [*other.tokens, None], strict=False)
    place, (mine, yours) = next(
        (place, pair)
        for place, pair in enumerate(pairs)
        if (pair[0] and pair[0].id) != (pair[1] and pair[1].id)
    )
    raise SelectionError(
        f"The models have different tokenizers: token {place} of {where} is {_quoted(mine)} in A and "
        f"{_quoted(yours)} in B. Give two that cut and write a text alike."
    )


def are_one(subject: InputRecord, a: Checkpoint, b: Checkpoint) -> bool:
    """Whether the subject's two models are one: the same weights and settings, computed in the same way.

    Then numbers of A are those of B. Computed twice, last digits may differ by where in memory they lie.
    """
    one, other = (
        {name: value for name, value in model.items() if name not in _NAMES} for model in subject.models
    )
    return one == other and _settings(a) == _settings(b)


def _settings(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """All that a model's config says, but for where it came from."""
    config: Any = checkpoint.model.config
    settings: dict[str, Any] = config.to_dict()
    return {name: value for name, value in settings.items() if name not in ("_name_or_path", "name_or_path")}


def _quoted(piece: str | None) -> str:
    return "nothing" if piece is None else f"‘{truncate_text(piece)}’"
