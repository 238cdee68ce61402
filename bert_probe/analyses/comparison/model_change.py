"""Checks for comparisons between two models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bert_probe.core.provenance import InputRecord
from bert_probe.errors import SelectionError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.trace import Trace
from bert_probe.text.alignment import CommonSpans, common_spans
from bert_probe.text.words import truncate_text

# Provenance fields that may differ although the model is the same.
_NAME_FIELDS = frozenset({"model", "origin", "revision"})


def check_same_tokens(a: Trace, b: Trace) -> tuple[InputRecord, Trace, Trace]:
    """Check that two traces have the same tokens; return their provenance and both traces.

    If the models are equal, A's trace is returned twice.

    Raises:
        SelectionError: the traces come from different texts, or the models have different tokenizers.
        UnavailableError: a trace has no model.
    """
    _check_text(a, b)
    check_tokenizers(a.checkpoint, b.checkpoint)
    check_encodings(a.encoding, b.encoding)
    return _inputs_and_traces(a, b)


def align_spans(a: Trace, b: Trace) -> tuple[InputRecord, Trace, Trace, CommonSpans]:
    """Return provenance and traces as in `check_same_tokens`, and the text spans that both tokenizers share.

    Raises:
        SelectionError: the traces come from different texts, or the text was truncated.
        UnavailableError: a trace has no model.
    """
    _check_text(a, b)
    return *_inputs_and_traces(a, b), common_spans(a.encoding, b.encoding)


def _check_text(a: Trace, b: Trace) -> None:
    encoding_a, encoding_b = a.encoding, b.encoding
    if (encoding_a.text, encoding_a.pair) != (encoding_b.text, encoding_b.pair):
        raise SelectionError(
            "The two models read different texts. Trace the same text with both, or use MinimalPair to "
            "compare "
            "two texts in one model."
        )


def _inputs_and_traces(a: Trace, b: Trace) -> tuple[InputRecord, Trace, Trace]:
    inputs = InputRecord.of(a).with_other_model(InputRecord.of(b))
    is_same = are_same_model(inputs, a.checkpoint, b.checkpoint) and a.encoding.ids == b.encoding.ids
    return inputs, a, a if is_same else b


def check_tokenizers(a: Checkpoint, b: Checkpoint) -> None:
    """Check that two models have the same vocabulary.

    Raises:
        SelectionError: the vocabularies differ; the message names the first token that differs.
    """
    if a.tokenizer is b.tokenizer:
        return
    vocabulary_a, vocabulary_b = a.tokenizer.get_vocab(), b.tokenizer.get_vocab()
    if vocabulary_a == vocabulary_b:
        return
    tokens_a, tokens_b = (
        {token_id: token for token, token_id in vocabulary.items()}
        for vocabulary in (vocabulary_a, vocabulary_b)
    )
    first = min(
        token_id
        for token_id in tokens_a.keys() | tokens_b.keys()
        if tokens_a.get(token_id) != tokens_b.get(token_id)
    )
    sizes = (
        f"{len(vocabulary_a):,} tokens in A and {len(vocabulary_b):,} in B; "
        if len(vocabulary_a) != len(vocabulary_b)
        else ""
    )
    raise SelectionError(
        f"The models have different tokenizers: {sizes}token id {first:,} is {_quote(tokens_a.get(first))} "
        f"in A, {a.description.name}, and {_quote(tokens_b.get(first))} in B, {b.description.name}. Give two "
        "models with the same tokenizer, such as a model before and after fine-tuning."
    )


def check_encodings(encoding_a: Encoding, encoding_b: Encoding, text_name: str = "this text") -> None:
    """Check that two models tokenize a text in the same way.

    Args:
        text_name: name of the text for messages.

    Raises:
        SelectionError: the tokens differ; the message names the first token that differs.
    """
    if encoding_a.ids == encoding_b.ids:
        return
    if (
        encoding_a.dropped != encoding_b.dropped
        and len(encoding_a) + encoding_a.dropped == len(encoding_b) + encoding_b.dropped
    ):
        raise SelectionError(
            f"A reads {len(encoding_a):,} tokens of {text_name} and B {len(encoding_b):,}, because one "
            "model accepts no more. Shorten the text so that both models read all of it."
        )
    pairs = zip([*encoding_a.tokens, None], [*encoding_b.tokens, None], strict=False)
    position, (token_a, token_b) = next(
        (position, pair)
        for position, pair in enumerate(pairs)
        if (pair[0] and pair[0].id) != (pair[1] and pair[1].id)
    )
    raise SelectionError(
        f"The models have different tokenizers: token {position} of {text_name} is {_quote(token_a)} in A "
        "and "
        f"{_quote(token_b)} in B. Give two models that tokenize a text in the same way."
    )


def are_same_model(inputs: InputRecord, a: Checkpoint, b: Checkpoint) -> bool:
    """Return whether two models have the same weights and settings, including dtype, device and libraries.

    If so, the results of A are reused for B, because rounding may differ between runs.
    """
    settings_a, settings_b = (
        {name: value for name, value in model.items() if name not in _NAME_FIELDS} for model in inputs.models
    )
    return settings_a == settings_b and _settings(a) == _settings(b)


def _settings(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Return a model's configuration without its name."""
    config: Any = checkpoint.model.config
    settings: dict[str, Any] = config.to_dict()
    return {name: value for name, value in settings.items() if name not in ("_name_or_path", "name_or_path")}


def _quote(piece: str | None) -> str:
    return "nothing" if piece is None else f"‘{truncate_text(piece)}’"
