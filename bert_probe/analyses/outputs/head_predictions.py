"""The predictions of a trained head for many texts, in batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bert_probe.analyses.outputs.classify_text import problem_type
from bert_probe.analyses.vectors.encoded import encode_texts
from bert_probe.errors import TextError, UnavailableError
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import BATCH_TOKENS, as_array, batch, forward, group_by_length
from bert_probe.model.outputs import OutputHead, output_head
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Array
from bert_probe.text.labeled_texts import CLASSES, MULTI_LABEL, NUMBER, LabeledText
from bert_probe.text.tagged_sentences import TaggedSentence

TAGS = "tags"
"""Label type of tagged words; the label types of texts are defined in `text.labeled_texts`."""

_LABEL_TYPES = {
    "single_label_classification": CLASSES,
    "multi_label_classification": MULTI_LABEL,
    "regression": NUMBER,
}


@dataclass(frozen=True, eq=False)
class HeadPredictions:
    """The logits of a head for texts or for words.

    Attributes:
        logits: outputs of the head, [unit, label]; a unit is a text or a word.
        texts: index of the text of each unit, [unit].
        words: index of each word in its text, from 0; 0 if units are texts, [unit].
        dropped: total number of truncated tokens in all texts.
    """

    logits: Array
    texts: Array
    words: Array
    dropped: int


def label_type(checkpoint: Checkpoint) -> str:
    """Return the label type that a checkpoint predicts: "classes", "several", "number" or "tags".

    Raises:
        UnavailableError: the checkpoint has no classification head, or it predicts several numbers per text.
    """
    if TOKEN_CLASSIFICATION in checkpoint.outputs and TEXT_CLASSIFICATION not in checkpoint.outputs:
        return TAGS
    output = output_head(checkpoint, TEXT_CLASSIFICATION)
    kind = _LABEL_TYPES[problem_type(output)]
    if kind == NUMBER and len(output.labels) != 1:
        raise UnavailableError(
            f"The head of {checkpoint.description.name} predicts {len(output.labels)} numbers per text, but "
            "only heads that predict one number can be evaluated."
        )
    return kind


def head_for(checkpoint: Checkpoint, kind: str) -> OutputHead:
    """Return the head that predicts labels of the given type.

    Raises:
        UnavailableError: the checkpoint has no head for this label type.
    """
    task = TOKEN_CLASSIFICATION if kind == TAGS else TEXT_CLASSIFICATION
    output = output_head(checkpoint, task)
    if kind != TAGS and kind != label_type(checkpoint):
        raise UnavailableError(
            f"The labels are of type {kind}, but the head of {checkpoint.description.name} predicts "
            f"{label_type(checkpoint)}. Read the file as {label_type(checkpoint)}."
        )
    return output


def predict_texts(
    checkpoint: Checkpoint,
    output: OutputHead,
    rows: Sequence[LabeledText],
    truncate: bool,
    progress: Progress,
) -> HeadPredictions:
    """Return a head's predictions for texts or text pairs.

    Raises:
        TextError: a text cannot be encoded; the message names its line.
        UnavailableError: the logits are not finite.
    """
    encodings = encode_texts(checkpoint, [(row.line, row.text, row.pair) for row in rows], truncate)
    logits_by_text = np.empty((len(rows), len(output.labels)), dtype=np.float64)
    for index, logits in _logits(checkpoint, output, encodings, progress):
        logits_by_text[index] = _check_finite(logits, checkpoint, rows[index].line)
    count = len(rows)
    return HeadPredictions(logits_by_text, np.arange(count), np.zeros(count, dtype=int), _dropped(encodings))


def predict_words(
    checkpoint: Checkpoint,
    output: OutputHead,
    sentences: Sequence[TaggedSentence],
    truncate: bool,
    progress: Progress,
) -> HeadPredictions:
    """Return a head's predictions for the words of sentences, each at its first token (Devlin et al. 2019).

    Truncated words and words without any token are omitted.

    Raises:
        TextError, UnavailableError: see `predict_texts`.
    """
    encodings = encode_texts(
        checkpoint, [(sentence.line, sentence.text, None) for sentence in sentences], truncate
    )
    positions = [
        _first_tokens(encoding, sentence) for encoding, sentence in zip(encodings, sentences, strict=True)
    ]
    logits_by_sentence: list[list[Array]] = [[] for _ in sentences]
    for index, logits in _logits(checkpoint, output, encodings, progress):
        first = [position for position in positions[index] if position is not None]
        logits_by_sentence[index] = [*_check_finite(logits[first], checkpoint, sentences[index].line)]
    units = [
        (text, word)
        for text, tokens in enumerate(positions)
        for word, position in enumerate(tokens)
        if position is not None
    ]
    if not units:
        raise TextError("The tokenizer drops every word of these sentences. Give other sentences.")
    texts, words = np.array(units).T
    return HeadPredictions(
        np.stack([row for rows in logits_by_sentence for row in rows]), texts, words, _dropped(encodings)
    )


def _first_tokens(encoding: Encoding, sentence: TaggedSentence) -> list[int | None]:
    """Return, for each word, the position of the first token that overlaps it, or None if no token does."""
    tokens = [token for token in encoding.tokens if token.start is not None and token.end is not None]
    positions: list[int | None] = []
    index = 0
    for start, end in sentence.spans:
        # Words are in order, but the words of a contraction may share one token.
        while index < len(tokens) and (tokens[index].end or 0) <= start:
            index += 1
        overlaps = index < len(tokens) and (tokens[index].start or 0) < end
        positions.append(tokens[index].position if overlaps else None)
    return positions


def _logits(
    checkpoint: Checkpoint, output: OutputHead, encodings: Sequence[Encoding], progress: Progress
) -> Iterator[tuple[int, Array]]:
    """Yield the index of each text and its logits, of shape [label] or [token, label], batch by batch."""
    done = 0
    progress(done, len(encodings))
    for group in group_by_length([len(encoding) for encoding in encodings], BATCH_TOKENS, checkpoint.pads):
        selected = [encodings[index] for index in group]
        states, _ = forward(checkpoint, selected)
        with torch.inference_mode(), checkpoint.running():
            pooled = getattr(states, "pooler_output", None)
            logits = output.answer(batch(checkpoint, selected), states.last_hidden_state, pooled)
        yield from zip(group, as_array(logits), strict=True)
        done += len(group)
        progress(done, len(encodings))


def _check_finite(logits: Array, checkpoint: Checkpoint, line: int) -> Array:
    if not np.isfinite(logits).all():
        raise UnavailableError(
            f"The head of {checkpoint.description.name} predicts values that are not finite for line "
            f"{line:,}, so it cannot be evaluated. Use float32, or train it with a lower learning rate."
        )
    return logits


def _dropped(encodings: Sequence[Encoding]) -> int:
    return sum(encoding.dropped for encoding in encodings)
