"""Masked-language modeling: prediction of the words at masks, and evaluation of these predictions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.outputs import head_predictions
from bert_probe.analyses.outputs.lens_training import encode_lines, mask_tokens
from bert_probe.analyses.outputs.prediction import Prediction, PredictionResult, softmax
from bert_probe.core import frames
from bert_probe.core.field_types import Choice, Number, Optional, WordList, WordSelector
from bert_probe.core.inputs import OneTrace, SentenceList
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import EmptyTextError, SelectionError, ShapeError, TextError, UnavailableError
from bert_probe.model.checkpoint import FILL_MASK, Checkpoint
from bert_probe.model.encoding import ModelInputs, Token, panics_as_errors, token_strings
from bert_probe.model.forward import BATCH_TOKENS, batch, forward, group_by_length
from bert_probe.model.lengths import check_text
from bert_probe.model.outputs import OutputHead, output_head
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.trace import Array, Trace, read_only
from bert_probe.text.sentence_files import with_line_numbers

TOP_K = 5
"""Value of k in top-k accuracy: the masked token must be among the k most probable tokens."""
CHUNK_SIZE = 256
"""Number of masks whose logits over the complete vocabulary are in memory at a time."""

TABLES: Mapping[str, str] = {
    "measures": "Accuracy of the predictions at masks, and their mean cross-entropy in bits.",
    "masks": "Each masked token with its rank, its probability, and the top prediction.",
}


@question(FILL_MASK, command="predict")
class FillMask(Prediction):
    """The words that the model predicts at each mask, most probable first.

    Attributes:
        top: the maximum number of words per mask.
        targets: restrict the predictions to these words. A word that is not in the vocabulary is represented
            by its first subword token, as in the `transformers` pipeline, and the result has a note about it.
        mask: position or name of a word to mask, in addition to the masks in the text.
    """

    inputs = OneTrace()

    task: ClassVar[str] = FILL_MASK

    top: int = param(
        Number(1), default=5, about="Number of predictions.  [default: 5; all classes for classification]"
    )
    targets: tuple[str, ...] = param(
        WordList(), default=(), about="Restrict predictions at masks to these words."
    )
    mask: int | str | None = param(
        Optional(WordSelector()), default=None, about="Mask this word of the text."
    )

    def of(self, trace: Trace) -> FillMaskResult:
        """Return the predicted words at each mask of a traced text.

        Raises:
            UnavailableError: the checkpoint has no masked-language-modeling head, or its tokenizer has no
                mask token.
            TextError: the text has no mask.
            SelectionError: the word to mask is not in the text, or the tokenizer drops every character of a
                target.
        """
        checkpoint = trace.checkpoint
        output, mask = output_head(checkpoint, FILL_MASK), mask_token(checkpoint)
        resolved = self.resolved(trace)
        masked = trace if resolved.mask is None else trace_masked(trace, int(resolved.mask))
        masks = tuple(token for token in masked.tokens if token.id == checkpoint.tokenizer.mask_token_id)
        if not masks:
            raise TextError(f"The text has no {mask}. Replace a word with {mask}, or choose a word to mask.")
        targets = target_tokens(checkpoint, self.targets)
        choices = sorted({token for token, _ in targets})
        parts = []
        for positions in position_blocks(checkpoint, [token.position for token in masks]):
            logits = output.logits(masked, positions)
            top = top_choices(logits, self.top, choices)
            top_logits = np.take_along_axis(logits, top, axis=-1)
            probabilities = [
                np.take_along_axis(softmax(logits[rows]), top[rows], axis=-1) for rows in blocks(len(logits))
            ]
            parts.append((top, top_logits, np.concatenate(probabilities), ranks_among(logits, top_logits)))
        ids, all_logits, all_probabilities, ranks = (
            read_only(np.concatenate(arrays)) for arrays in zip(*parts, strict=True)
        )
        return FillMaskResult(
            resolved,
            InputRecord.of(trace),
            trace,
            masked,
            masks,
            ids,
            tuple(token_strings(checkpoint.tokenizer, row) for row in ids.tolist()),
            all_logits,
            all_probabilities,
            ranks,
            tuple(
                f"“{word}” is not in the vocabulary; its first subword token, {token}, is used instead."
                for word, (_, token) in zip(self.targets, targets, strict=True)
                if token != word
            ),
        )

    def check_limits(self, *inputs: Any) -> None:
        """Raise UnavailableError if there are too many predictions; see `check_prediction_count`."""
        (trace,) = inputs
        masks = trace.encoding.ids.count(trace.checkpoint.tokenizer.mask_token_id)
        words = trace.checkpoint.description.vocabulary_size
        check_prediction_count(masks + 1, self.top, words, len(self.targets))


MAX_PREDICTIONS = 1_000_000
"""Maximum number of predicted words of a request over HTTP or on a page."""
MAX_LOGITS = 500_000_000
"""Maximum number of logits of a request over HTTP or on a page of a public server."""
_BLOCK_LOGITS = 16_000_000
"""Maximum number of logits in memory, unless a single position has more."""


def check_prediction_count(positions: int, top: int, words: int, targets: int = 0) -> None:
    """Raise UnavailableError if there are more than `MAX_PREDICTIONS` predictions or `MAX_LOGITS` logits.

    Args:
        positions: number of positions at which the model predicts, counted once per layer for a lens.
        top: maximum number of predictions at a position.
        words: number of words or labels that the model scores at a position.
        targets: number of words to which predictions are restricted; 0 for all.
    """
    for count, name, maximum in (
        (positions * min(top, targets or words), "predictions", MAX_PREDICTIONS),
        (positions * words, "logits", MAX_LOGITS),
    ):
        if count > maximum:
            raise UnavailableError(
                f"{count:,} {name} were requested, but the app computes at most {maximum:,}. Use a "
                f"{'smaller top' if name == 'predictions' else 'shorter text'}, fewer masks, or the command "
                "line."
            )


def position_blocks(checkpoint: Checkpoint, positions: Sequence[int]) -> list[Sequence[int]]:
    """Split token positions into blocks whose logits over the vocabulary need at most 64 MB in float32."""
    size = max(1, _BLOCK_LOGITS // checkpoint.description.vocabulary_size)
    return [positions[start : start + size] for start in range(0, len(positions), size)]


def blocks(count: int, size: int = 32) -> list[slice]:
    """Return slices of consecutive positions, so that float64 copies of their logits need little memory."""
    return [slice(start, start + size) for start in range(0, count, size)]


def top_choices(logits: Array, count: int, choices: Sequence[int] = ()) -> Array:
    """Return the indices of the largest logits at each position in descending order, [position, choice].

    Equal logits are in the order of their indices.

    Args:
        logits: all logits, shape [position, vocabulary].
        count: maximum number of choices at a position.
        choices: ascending indices to choose from; all if empty.
    """
    if choices:
        chosen: Array = np.asarray(choices)[top_choices(logits[:, choices], count)]
        return chosen
    return np.stack([_top_of_row(row, count) for row in logits])


def _top_of_row(logits: Array, count: int) -> Array:
    size = len(logits)
    if 4 * count >= size or np.isnan(logits).any():
        ranking: Array = np.argsort(-logits, kind="stable")[:count]
        return ranking
    smallest = np.partition(logits, size - count)[size - count]
    candidates = np.flatnonzero(logits >= smallest)  # without sorting all; can be more than `count` with ties
    chosen: Array = candidates[np.argsort(-logits[candidates], kind="stable")[:count]]
    return chosen


def ranks_among(logits: Array, values: Array) -> Array:
    """Return the rank of selected logits among all logits at the same position.

    The rank is 1 plus the number of larger logits, so that equal logits share a rank.

    Args:
        logits: all logits, shape [position, vocabulary].
        values: the logits to rank, shape [position, word].

    Returns:
        The ranks, from 1, of shape [position, word].
    """
    return np.stack([_ranks_of_row(row, some) for row, some in zip(logits, values, strict=True)])


def _ranks_of_row(logits: Array, values: Array) -> Array:
    if len(values) <= 64 and not np.isnan(logits).any():  # faster than sorting
        return 1 + np.array([np.count_nonzero(logits > value) for value in values], dtype=np.intp)
    ranks: Array = len(logits) - np.searchsorted(np.sort(logits), values, side="right") + 1
    return ranks


def mask_token(checkpoint: Checkpoint) -> str:
    """Return the mask token as text, such as "[MASK]".

    Raises:
        UnavailableError: the tokenizer has no mask token.
    """
    mask = checkpoint.tokenizer.mask_token
    if mask is None:
        raise UnavailableError(
            f"The tokenizer of {checkpoint.description.name} has no mask token, so no word can be masked."
        )
    return str(mask)


def trace_masked(trace: Trace, position: int) -> Trace:
    """Return the trace of a text in which the mask token replaces the word at a token position.

    The text is truncated if that of the original trace is.

    Raises:
        SelectionError: the token is not part of a word, or truncation removes the mask.
        UnavailableError: the tokenizer has no mask token.
    """
    checkpoint, mask = trace.checkpoint, mask_token(trace.checkpoint)
    token = trace.tokens[position]
    if token.special or token.start is None:
        raise SelectionError(
            f"{token} does not belong to a word, so it cannot be masked. Choose another token."
        )
    word_tokens = [
        other
        for other in trace.tokens
        if not other.special and (other.segment, other.word) == (token.segment, token.word)
    ]
    start = min(int(part.start or 0) for part in word_tokens)
    end = max(int(part.end or 0) for part in word_tokens)
    texts = [trace.encoding.text, trace.encoding.pair]
    text = texts[token.segment] or ""
    texts[token.segment] = text[:start] + mask + text[end:]
    masked = checkpoint.trace(str(texts[0]), texts[1], truncate=trace.encoding.dropped > 0)
    mask_id, before = checkpoint.tokenizer.mask_token_id, trace.encoding.ids[:position]
    if masked.encoding.ids.count(mask_id) <= before.count(mask_id):
        raise SelectionError(f"{token} is at the end of a truncated text. Mask another word.")
    return masked


def default_position(trace: Trace) -> int:
    """Return the token position to predict by default.

    The default is the position of the first mask or, without a mask, of the last token with a letter or
    digit.
    """
    mask = trace.checkpoint.tokenizer.mask_token_id
    masks = [token.position for token in trace.tokens if token.id == mask]
    word_tokens = [
        token for token in trace.tokens if not token.special and any(map(str.isalnum, token.display))
    ]
    return masks[0] if masks else max((token.position for token in word_tokens), default=0)


def mask_position(trace: Trace, position: int) -> int | None:
    """Return the value of `FillMask.mask` to predict the token at a position.

    The value is the position itself, or None for masks and other special tokens, which cannot be masked.
    """
    token = trace.tokens[position]
    is_fixed = token.special or token.id == trace.checkpoint.tokenizer.mask_token_id
    return None if is_fixed else position


def target_tokens(checkpoint: Checkpoint, words: Sequence[str]) -> tuple[tuple[int, str], ...]:
    """Return, for each word, the id and the text of the token that represents the word.

    A word that is not in the vocabulary is represented by its first subword token.

    Raises:
        SelectionError: the tokenizer drops every character of a word.
        TextError, TooLongError: see `check_text`.
    """
    tokenizer = checkpoint.tokenizer
    vocabulary = tokenizer.get_vocab() if words else {}
    ids = []
    for word in words:
        token_id = vocabulary.get(word)
        if token_id is None:
            check_text(word)
            with panics_as_errors():
                subword_ids = tokenizer(word, add_special_tokens=False, verbose=False)["input_ids"]
            if not subword_ids:
                raise SelectionError(
                    f"The tokenizer of this model removes every character of {word!r}. Remove this word from "
                    "the targets."
                )
            token_id = subword_ids[0]
        ids.append(int(token_id))
    return tuple(zip(ids, token_strings(tokenizer, ids), strict=True))


@dataclass(frozen=True, eq=False)
class WordsAtMask:
    """The predicted words at one mask, most probable first."""

    tokens: Sequence[str]
    probabilities: Array
    logits: Array


@dataclass(frozen=True, eq=False, repr=False)
class FillMaskResult(PredictionResult):
    """The predicted words at each mask, most probable first. Arrays have shape [mask, word].

    Attributes:
        asked_of: the trace of the original text.
        read: the trace of the masked text.
        masks: the mask tokens.
        ids, tokens: the predicted words, as vocabulary ids and as text.
        logits: outputs of the masked-language-modeling head.
        probabilities: softmax over the complete vocabulary, float64, 0 to 1.
        ranks: ranks in the complete vocabulary, from 1.
        replaced: a sentence for each target word that is not in the vocabulary, and that its first subword
            token represents instead.
    """

    question: FillMask
    asked_of: Trace
    read: Trace
    masks: tuple[Token, ...]
    ids: Array
    tokens: tuple[Sequence[str], ...]
    logits: Array
    probabilities: Array
    ranks: Array
    replaced: tuple[str, ...]

    def __post_init__(self) -> None:
        shapes = {array.shape for array in (self.ids, self.logits, self.probabilities, self.ranks)}
        if len(shapes) > 1 or self.ids.shape[0] != len(self.masks):
            raise ShapeError(f"All arrays must have shape [{len(self.masks)} masks, word], not {shapes}.")

    @property
    def hidden(self) -> str:
        """The word of the text that the question masked; "" if the question did not mask a word."""
        if self.question.mask is None:
            return ""
        token = self.asked_of.tokens[int(self.question.mask)]
        return next(word.text for word in self.asked_of.encoding.words if token.position in word.positions)

    def at(self, mask: int) -> WordsAtMask:
        """Return the predicted words for the mask with this index, counted from 0."""
        return WordsAtMask(self.tokens[mask], self.probabilities[mask], self.logits[mask])

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on targets represented by their first subword token, and on texts with several masks."""
        if len(self.masks) < 2:
            return self.replaced
        independent = (
            f"Each of the {len(self.masks)} masks is predicted independently, with the others masked."
        )
        return (*self.replaced, independent)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The masked text, if the question masked a word, and the notes."""
        has_masked = self.question.mask is not None
        encoding = self.read.encoding
        texts = {"masked_text": encoding.text, "masked_pair": encoding.pair} if has_masked else {}
        return {**texts, **({"notes": list(self.notes)} if self.notes else {})}

    def frame(self) -> pd.DataFrame:
        """Return a table with one row per mask and predicted word.

        Columns: position (of the mask), rank, token, id, probability, logit.
        """
        count = self.ids.shape[1]
        return pd.DataFrame(
            {
                "position": [mask.position for mask in self.masks for _ in range(count)],
                "rank": self.ranks.ravel(),
                frames.TOKEN: frames.plain_strings([token for row in self.tokens for token in row]),
                "id": self.ids.ravel(),
                "probability": self.probabilities.ravel(),
                "logit": self.logits.ravel(),
            }
        )


@question("mask evaluation", command="evaluate")
class EvaluateMasks(Question):
    """Accuracy of a masked-language-modeling head in predicting masked tokens.

    In each line, 15% of the tokens (at least one) are masked at the same time, as in BERT's training (Devlin
    et al. 2019). Special and unknown tokens are never masked.

    Attributes:
        seed: random seed that selects the masked tokens.
        show: the table to return; see `TABLES`.
    """

    inputs = SentenceList()

    seed: int = param(Number(0), default=0, about="Seed that selects the masked tokens.  [default: 0]")
    show: str = param(Choice(TABLES), default="measures", about="Table to show.", display_only=True)

    def of(
        self,
        checkpoint: Checkpoint,
        sentences: Sequence[str],
        truncate: bool = False,
        progress: Progress = no_progress,
    ) -> EvaluateMasksResult:
        """Mask random tokens of each line, and compare the predictions at the masks with the original tokens.

        Args:
            sentences: the lines; blank lines are skipped.
            truncate: truncate lines that are too long instead of raising an error.
            progress: called with the number of lines done and the total.

        Raises:
            UnavailableError: the checkpoint has no masked-language-modeling head or mask token, or its
                predictions are not finite.
            EmptyTextError: there are no lines, or no line has a token that can be masked.
            TextError: a line cannot be encoded.
            OutOfMemoryError: there is not enough memory.
        """
        checkpoint = checkpoint.snapshot()
        output = output_head(checkpoint, FILL_MASK)
        mask_token(checkpoint)
        lines = with_line_numbers(sentences, "line")
        originals = encode_lines(checkpoint, lines, truncate)
        tokenizer, random = checkpoint.tokenizer, np.random.default_rng(self.seed)
        texts = [
            mask_tokens(text, tokenizer.all_special_ids, tokenizer.mask_token_id, random)
            for text in originals
        ]
        masks = [
            np.flatnonzero(text.inputs["input_ids"] != original.inputs["input_ids"])
            for text, original in zip(texts, originals, strict=True)
        ]
        if not sum(map(len, masks)):
            raise EmptyTextError(
                "No line has a token that can be masked. Use lines with words from the model's vocabulary."
            )
        predictions: list[list[_MaskPrediction]] = [[] for _ in lines]
        done = 0
        progress(done, len(lines))
        for group in group_by_length([len(text) for text in texts], BATCH_TOKENS, checkpoint.pads):
            in_group = _predict(
                checkpoint, output, [texts[index] for index in group], [originals[index] for index in group]
            )
            for index in group:
                predictions[index] = [next(in_group) for _ in masks[index]]
            done += len(group)
            progress(done, len(lines))
        ranks, logs, top_ids = (
            np.array(values) for values in zip(*(row for rows in predictions for row in rows), strict=True)
        )
        counts = [len(positions) for positions in masks]
        inputs = InputRecord.of_sentences(
            checkpoint, [text for _, text in lines], sum(original.dropped for original in originals)
        )
        masked_ids = [
            original.inputs["input_ids"][positions]
            for original, positions in zip(originals, masks, strict=True)
        ]
        return EvaluateMasksResult(
            self,
            inputs,
            read_only(np.repeat([number for number, _ in lines], counts)),
            read_only(np.concatenate(masks)),
            _tokens(checkpoint, masked_ids),
            _tokens(checkpoint, [top_ids]),
            read_only(ranks),
            read_only(logs),
        )


# a prediction at a mask: rank and log probability (in nats) of the masked token, id of the top prediction
_MaskPrediction = tuple[int, float, int]


def _predict(
    checkpoint: Checkpoint, output: OutputHead, texts: Sequence[ModelInputs], originals: Sequence[ModelInputs]
) -> Iterator[_MaskPrediction]:
    """Yield the prediction for each masked token of a batch of texts, in the order of the tokens.

    Args:
        checkpoint: the model.
        output: the masked-language-modeling head.
        texts: the masked texts.
        originals: the same texts before masking.
    """
    outputs, _ = forward(checkpoint, texts)
    inputs = batch(checkpoint, texts)
    true = batch(checkpoint, originals)["input_ids"]
    is_mask = true != inputs["input_ids"]
    with torch.inference_mode(), checkpoint.running():
        states = outputs.last_hidden_state[is_mask]
        size = min(CHUNK_SIZE, max(1, _BLOCK_LOGITS // checkpoint.description.vocabulary_size))
        for start in range(0, len(states), size):
            chunk = slice(start, start + size)
            # Apply the head only at masks, because its output for each token is as large as the vocabulary.
            chunk_inputs = {name: values[is_mask][chunk][None] for name, values in inputs.items()}
            logits = output.answer(chunk_inputs, states[chunk][None], None)[0].double()
            if not torch.isfinite(logits).all():
                raise UnavailableError(
                    f"The head of {checkpoint.description.name} predicts values that are not finite, so the "
                    "head cannot be evaluated. Use float32, or train the head with a lower learning rate."
                )
            score = logits.gather(1, true[is_mask][chunk][:, None])
            ranks = (logits > score).sum(dim=1) + 1
            logs = (score - logits.logsumexp(dim=1, keepdim=True))[:, 0]
            yield from zip(ranks.tolist(), logs.tolist(), logits.argmax(dim=1).tolist(), strict=True)


def _tokens(checkpoint: Checkpoint, ids: Sequence[Array]) -> tuple[str, ...]:
    return tuple(token_strings(checkpoint.tokenizer, np.concatenate(ids).tolist()))


@dataclass(frozen=True, eq=False, repr=False)
class EvaluateMasksResult(Result):
    """The predictions for masked tokens. All arrays have shape [mask].

    Attributes:
        lines: line number of each mask, from 1.
        positions: token position of each mask in its line, from 0.
        tokens: the tokens that were masked.
        guesses: the top predictions.
        ranks: rank of the masked token in the vocabulary, from 1.
        logs: log probability of the masked token, in nats, float64.
    """

    question: EvaluateMasks
    lines: Array
    positions: Array
    tokens: tuple[str, ...]
    guesses: tuple[str, ...]
    ranks: Array
    logs: Array

    def __post_init__(self) -> None:
        count = len(self.tokens)
        if {len(self.lines), len(self.positions), len(self.guesses), len(self.ranks), len(self.logs)} != {
            count
        }:
            raise ShapeError(
                f"lines, positions, guesses, ranks and logs must have one value for each of {count} masks."
            )

    @property
    def measures(self) -> Mapping[str, float]:
        """Mapping from the name of each measure to its value.

        ``first_guess`` is the accuracy, with its 95% interval. ``among_5`` is the top-5 accuracy. ``bits`` is
        the mean cross-entropy in bits. ``most_frequent_first_guess`` is the accuracy of a baseline that
        always predicts the most frequent masked token.
        """
        correct = int((self.ranks == 1).sum())
        low, high = head_predictions.wilson_interval(correct, len(self.ranks))
        most_frequent = Counter(self.tokens).most_common(1)[0][1]
        return {
            "first_guess": correct / len(self.ranks),
            "first_guess_low": low,
            "first_guess_high": high,
            f"among_{TOP_K}": float((self.ranks <= TOP_K).mean()),
            "bits": float(-self.logs.mean() / np.log(2)),
            "most_frequent_first_guess": most_frequent / len(self.ranks),
            "masks": len(self.ranks),
        }

    def frame(self) -> pd.DataFrame:
        """Return the table selected by ``show``; see `TABLES`."""
        if self.question.show == "measures":
            measures = self.measures
            return pd.DataFrame(
                {"measure": pd.Series([*measures], dtype=object), "value": [*measures.values()]}
            )
        columns: dict[str, Any] = {
            "line": self.lines,
            "position": self.positions,
            "token": pd.Series(self.tokens, dtype=object),
            "rank": self.ranks,
            "probability": np.exp(self.logs),
            "guess": pd.Series(self.guesses, dtype=object),
        }
        return pd.DataFrame(columns)
