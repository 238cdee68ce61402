"""What a trained head answers for many texts at once, to be held against what is right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from bert_probe.analyses.outputs.classify_text import problem_of
from bert_probe.analyses.vectors.encoded import encoded
from bert_probe.errors import TextError, UnavailableError
from bert_probe.model.checkpoint import CLASSIFYING, LABELLING, Checkpoint
from bert_probe.model.encoding import Encoding
from bert_probe.model.forward import BATCH_TOKENS, as_array, batch, batches, forward
from bert_probe.model.outputs import OutputHead, output_of
from bert_probe.model.progress import Progress
from bert_probe.model.trace import Array
from bert_probe.text.labeled_texts import CLASSES, NUMBER, SEVERAL, LabeledText
from bert_probe.text.tagged_sentences import TaggedSentence

TAGS = "tags"
"""A tag for each word, beside the kinds of `text.labelled`."""

_KINDS = {
    "single_label_classification": CLASSES,
    "multi_label_classification": SEVERAL,
    "regression": NUMBER,
}


@dataclass(frozen=True, eq=False)
class HeadPredictions:
    """What a head gives for texts, or for their words.

    Attributes:
        logits: [unit, label]; a unit is a text, or a word of one.
        texts: of each unit the index of its text, [unit].
        words: of each unit its place among the words of the text, from 0; 0 where units are texts, [unit].
        dropped: tokens that were cut off, over all texts.
    """

    logits: Array
    texts: Array
    words: Array
    dropped: int


def kind_of(checkpoint: Checkpoint) -> str:
    """What can be asked of a checkpoint with a trained head: "classes", "several", "number" or "tags".

    Raises:
        UnavailableError: it has a head for neither texts nor words.
    """
    if LABELLING in checkpoint.outputs and CLASSIFYING not in checkpoint.outputs:
        return TAGS
    output = output_of(checkpoint, CLASSIFYING)
    kind = _KINDS[problem_of(output)]
    if kind == NUMBER and len(output.labels) != 1:
        raise UnavailableError(
            f"The head of {checkpoint.description.name} gives {len(output.labels)} numbers for a text; one "
            "can be held against a label."
        )
    return kind


def head_for(checkpoint: Checkpoint, kind: str) -> OutputHead:
    """The head that answers labels of this kind.

    Raises:
        UnavailableError: there is none, or it answers another kind.
    """
    task = LABELLING if kind == TAGS else CLASSIFYING
    output = output_of(checkpoint, task)
    if kind != TAGS and kind != kind_of(checkpoint):
        raise UnavailableError(
            f"The labels are of the kind {kind}, and the head of {checkpoint.description.name} answers "
            f"{kind_of(checkpoint)}. Read the file as that."
        )
    return output


def of_texts(
    checkpoint: Checkpoint, output: OutputHead, rows: Sequence[LabeledText], truncate: bool, report: Progress
) -> HeadPredictions:
    """A head's answers for texts, or for texts and their pairs.

    Raises:
        TextError: a text cannot be read; with its line.
        UnavailableError: numbers that are not finite.
    """
    encodings = encoded(checkpoint, [(row.line, row.text, row.pair) for row in rows], truncate)
    found = np.empty((len(rows), len(output.labels)), dtype=np.float64)
    for index, logits in _logits(checkpoint, output, encodings, report):
        found[index] = _finite(logits, checkpoint, rows[index].line)
    count = len(rows)
    return HeadPredictions(found, np.arange(count), np.zeros(count, dtype=int), _dropped(encodings))


def of_words(
    checkpoint: Checkpoint,
    output: OutputHead,
    sentences: Sequence[TaggedSentence],
    truncate: bool,
    report: Progress,
) -> HeadPredictions:
    """A head's answers for the words of sentences, each at its first token, as BERT's authors have it.

    Words that are cut off, and those of which the tokenizer keeps nothing, have no answer.

    Raises:
        TextError, UnavailableError: as `of_texts`.
    """
    encodings = encoded(
        checkpoint, [(sentence.line, sentence.text, None) for sentence in sentences], truncate
    )
    places = [
        _first_tokens(encoding, sentence) for encoding, sentence in zip(encodings, sentences, strict=True)
    ]
    found: list[list[Array]] = [[] for _ in sentences]
    for index, logits in _logits(checkpoint, output, encodings, report):
        at = [place for place in places[index] if place is not None]
        found[index] = [*_finite(logits[at], checkpoint, sentences[index].line)]
    units = [
        (text, word)
        for text, tokens in enumerate(places)
        for word, place in enumerate(tokens)
        if place is not None
    ]
    if not units:
        raise TextError("The tokenizer keeps no word of these sentences. Give other ones.")
    texts, words = np.array(units).T
    return HeadPredictions(
        np.stack([answer for answers in found for answer in answers]), texts, words, _dropped(encodings)
    )


def _first_tokens(encoding: Encoding, sentence: TaggedSentence) -> list[int | None]:
    """The first token that reaches into each word, or None."""
    own = [token for token in encoding.tokens if token.start is not None and token.end is not None]
    found: list[int | None] = []
    place = 0
    for start, end in sentence.spans:
        # Words stand in order, but those of one contracted token share its place.
        while place < len(own) and (own[place].end or 0) <= start:
            place += 1
        reaches = place < len(own) and (own[place].start or 0) < end
        found.append(own[place].position if reaches else None)
    return found


def _logits(
    checkpoint: Checkpoint, output: OutputHead, encodings: Sequence[Encoding], report: Progress
) -> Iterator[tuple[int, Array]]:
    """Index of a text and the head's numbers for it, many texts in a pass: [label], or [token, label]."""
    done = 0
    report(done, len(encodings))
    for group in batches([len(encoding) for encoding in encodings], BATCH_TOKENS, checkpoint.pads):
        chosen = [encodings[index] for index in group]
        given, _ = forward(checkpoint, chosen)
        with torch.inference_mode(), checkpoint.running():
            pooled = getattr(given, "pooler_output", None)
            answers = output.answer(batch(checkpoint, chosen), given.last_hidden_state, pooled)
        yield from zip(group, as_array(answers), strict=True)
        done += len(group)
        report(done, len(encodings))


def _finite(logits: Array, checkpoint: Checkpoint, line: int) -> Array:
    if not np.isfinite(logits).all():
        raise UnavailableError(
            f"The head of {checkpoint.description.name} gives numbers that are not finite for line {line:,}, "
            "so it cannot be judged. Use float32, or train it with a lower learning rate."
        )
    return logits


def _dropped(encodings: Sequence[Encoding]) -> int:
    return sum(encoding.dropped for encoding in encodings)
