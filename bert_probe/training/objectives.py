"""Training objectives: encoding, loss and held-out measure for each task."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from bert_probe.errors import TextError, UnavailableError
from bert_probe.model.checkpoint import FILL_MASK, TEXT_CLASSIFICATION, TOKEN_CLASSIFICATION, Checkpoint
from bert_probe.model.encoding import ModelInputs
from bert_probe.model.forward import group_by_length, pad
from bert_probe.model.outputs import OutputHead
from bert_probe.model.trace import Array
from bert_probe.text.formats import ValidationErrors
from bert_probe.text.labeled_texts import CLASSES, MULTI_LABEL, NUMBER, LabeledText, LabeledTexts
from bert_probe.text.sentence_files import with_line_numbers
from bert_probe.text.tagged_sentences import NO_UNIT, TaggedSentence, align_words
from bert_probe.training.schedule import BatchOrder, LengthBuckets

IGNORE_INDEX = -100
"""Target value of tokens that the loss ignores; torch uses the same value."""


@dataclass(frozen=True, eq=False)
class TrainingExample:
    """An encoded text and its target.

    Attributes:
        inputs: model inputs by name, each with one value per token.
        target: the target in the format of the objective.
        line: line number of the example in its file.
    """

    inputs: ModelInputs
    target: Any
    line: int

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def key(self) -> Hashable:
        """A value that is equal for examples whose texts have the same tokens."""
        return self.inputs.key


class Objective(ABC):
    """Base class of training objectives, which define the targets, loss and held-out measure of a task.

    Attributes:
        task: name of the task in transformers.
        of_tokens: whether the task head processes each token independently.
        labels: names of the task head's outputs.
        problem: `problem_type` in the configuration of the model.
        measure: name of the held-out measure that selects the best checkpoint; higher is better.
        padding: padding value of each model input.
        pads: whether texts of different lengths may share a padded batch.
        texts_per_example: number of texts in an example.
    """

    task: ClassVar[str]
    of_tokens: ClassVar[bool] = False
    labels: tuple[str, ...] = ()
    problem: str = ""
    measure: str
    padding: Mapping[str, int]
    pads: bool
    texts_per_example: int = 1

    @abstractmethod
    def examples(self, checkpoint: Checkpoint, data: Any, longest: int | None) -> list[TrainingExample]:
        """Encode texts, truncated to `longest` tokens, or to the model's limit if `longest` is None.

        Raises:
            TextError: some texts cannot be encoded; the message lists their line numbers.
        """

    def batch(self, examples: Sequence[TrainingExample]) -> dict[str, torch.Tensor]:
        """Return model inputs of shape [text, token], padded on the right, and the targets as ``labels``."""
        inputs = pad([example.inputs for example in examples], self.padding)
        return inputs | {"labels": self.targets(examples, inputs["input_ids"].shape[1])}

    def order(self, examples: Sequence[TrainingExample], batch: int, seed: int) -> BatchOrder:
        """Return the training batches; each batch contains indices of examples with similar lengths."""
        return LengthBuckets([len(example) for example in examples], batch, seed, self.pads)

    def groups(self, examples: Sequence[TrainingExample], tokens: int) -> list[list[int]]:
        """Return groups of indices of examples of similar length, at most `tokens` tokens with padding."""
        return group_by_length([len(example) for example in examples], tokens, self.pads)

    @abstractmethod
    def targets(self, examples: Sequence[TrainingExample], length: int) -> torch.Tensor:
        """Return the target of each text, or of each token after padding the texts to `length`."""

    def predict(
        self, full_model: Any, batch: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the model's logits and the targets; both have one row per target."""
        inputs = {name: values for name, values in batch.items() if name != "labels"}
        return full_model(**inputs).logits, batch["labels"]

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss over all rows, computed as in the transformers class of the model."""
        if self.problem == "regression":
            return mse_loss(logits.squeeze(-1), targets)
        if self.problem == "multi_label_classification":
            return binary_cross_entropy_with_logits(logits, targets)
        return cross_entropy(logits, targets)

    def predictions(self, logits: torch.Tensor) -> torch.Tensor:
        """Convert logits to predictions: class indices, 0 or 1 per label, or numbers."""
        if self.problem == "regression":
            return logits.squeeze(-1)
        return (logits > 0).long() if self.problem == "multi_label_classification" else logits.argmax(dim=-1)

    def score(self, predictions: Array, targets: Array) -> float:
        """Return the held-out measure; by default accuracy."""
        return float((predictions == targets).mean())


_PROBLEMS = {
    CLASSES: "single_label_classification",
    MULTI_LABEL: "multi_label_classification",
    NUMBER: "regression",
}
_MEASURES = {CLASSES: "accuracy", MULTI_LABEL: "micro F1", NUMBER: "R²"}


class TextObjective(Objective):
    """Single-label classification, multi-label classification or regression for texts or text pairs."""

    task = TEXT_CLASSIFICATION

    def __init__(self, checkpoint: Checkpoint, data: LabeledTexts, labels: tuple[str, ...]) -> None:
        self.kind = data.kind
        self.problem, self.measure = _PROBLEMS[data.kind], _MEASURES[data.kind]
        self.labels = labels or (NUMBER,)
        self.padding, self.pads = checkpoint.padding, checkpoint.pads
        self._label_indices = {label: index for index, label in enumerate(self.labels)}
        self._is_causal = checkpoint.description.is_causal

    def predict(
        self, full_model: Any, batch: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the model's logits and the targets; both have one row per text.

        Heads of decoders read the last token, which `OutputHead` finds whatever the padding token.
        """
        if not self._is_causal:
            return super().predict(full_model, batch)
        inputs = {name: values for name, values in batch.items() if name != "labels"}
        states = full_model.base_model(**inputs).last_hidden_state
        return OutputHead(self.task, full_model).answer(inputs, states, None), batch["labels"]

    def examples(
        self, checkpoint: Checkpoint, data: Sequence[LabeledText], longest: int | None
    ) -> list[TrainingExample]:
        """Encode the text or text pair of each row."""
        examples, errors = [], ValidationErrors("The data")
        for row in data:
            try:
                inputs = checkpoint.encoder.inputs(row.text, longest, truncate=True, pair=row.pair)
            except TextError as error:
                errors.add(row.line, str(error))
                continue
            examples.append(TrainingExample(inputs, self._target(row), row.line))
        errors.check()
        return examples

    def _target(self, row: LabeledText) -> Any:
        if isinstance(row.label, str):
            return self._label_indices[row.label]
        if isinstance(row.label, tuple):
            return [float(label in row.label) for label in self.labels]
        return row.label

    def targets(self, examples: Sequence[TrainingExample], length: int) -> torch.Tensor:  # noqa: ARG002
        """Return one class index or number per text, or in multi-label data 0 or 1 per text and label.

        Numbers are float64, because the measure is computed from them.
        """
        targets = [example.target for example in examples]
        tensor = torch.tensor(targets, dtype=torch.long if self.kind == CLASSES else torch.float64)
        # Without texts, the shape does not follow from the list.
        return tensor.reshape(len(targets), len(self.labels)) if self.kind == MULTI_LABEL else tensor

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss, computed in the model's dtype."""
        return super().loss(logits, targets if self.kind == CLASSES else targets.to(logits.dtype))

    def score(self, predictions: Array, targets: Array) -> float:
        """Return accuracy for single-label data, micro F1 for multi-label data, or R² for numbers.

        R² is NaN if all targets are equal.
        """
        if self.kind == CLASSES:
            return super().score(predictions, targets)
        if self.kind == MULTI_LABEL:
            true_positives = float(((predictions > 0) & (targets > 0)).sum())
            positives = float((predictions > 0).sum() + (targets > 0).sum())
            return 2 * true_positives / positives if positives else 1.0
        if np.ptp(targets) == 0:
            return math.nan
        variation = float(((targets - targets.mean()) ** 2).sum())
        errors = predictions.astype(np.float64) - targets
        return 1 - float((errors**2).sum()) / variation


class TokenObjective(Objective):
    """Token classification. The label of a word is predicted at the word's first token.

    The target is the label index at the first token of each word, and `IGNORE_INDEX` at all other tokens.
    """

    task = TOKEN_CLASSIFICATION
    of_tokens = True

    def __init__(self, checkpoint: Checkpoint, labels: tuple[str, ...]) -> None:
        self.labels, self.measure = labels, "accuracy"
        self.padding, self.pads = checkpoint.padding, checkpoint.pads

    def examples(
        self, checkpoint: Checkpoint, data: Sequence[TaggedSentence], longest: int | None
    ) -> list[TrainingExample]:
        """Encode each tagged sentence, with targets for its words."""
        indices = {label: index for index, label in enumerate(self.labels)}
        examples, errors = [], ValidationErrors("The data")
        for sentence in data:
            try:
                encoding = checkpoint.encoder.encode(sentence.text, truncate=True, max_tokens=longest)
            except TextError as error:
                errors.add(sentence.line, str(error))
                continue
            words = align_words(sentence, encoding)
            target = np.full(len(encoding), IGNORE_INDEX)
            for tag, unit in reversed([*zip(sentence.tags, words.units, strict=True)]):
                if unit != NO_UNIT:
                    target[words.lens.units[unit].positions[0]] = indices[tag]
            examples.append(
                TrainingExample(ModelInputs(encoding.inputs, encoding.dropped), target, sentence.line)
            )
        errors.check()
        return examples

    def targets(self, examples: Sequence[TrainingExample], length: int) -> torch.Tensor:
        """Return the label index of each token, shape [text, token]."""
        rows = np.full((len(examples), length), IGNORE_INDEX)
        for row, example in zip(rows, examples, strict=True):
            row[: len(example)] = example.target
        return torch.from_numpy(rows)

    def predict(
        self, full_model: Any, batch: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits (shape [word, label]) and targets (shape [word]) at the first token of each word."""
        logits, targets = super().predict(full_model, batch)
        return logits[targets != IGNORE_INDEX], targets[targets != IGNORE_INDEX]


MASKED_SHARE = 0.15
"""Share of the tokens of a text that are predicted; at least one token is predicted."""
MASK_SHARE, RANDOM_SHARE = 0.8, 0.1
"""Shares of the tokens to predict that are replaced by the mask token and by a random token. The remaining
tokens to predict are unchanged.
"""


class MaskedLmObjective(Objective):
    """Masked-language modeling, the pretraining objective of BERT (Devlin et al. 2019).

    Masks are sampled again each time that a text is used for training, but only once for held-out texts. The
    target of an example contains the word index of each token (-1 for special tokens), from which masks are
    sampled.

    Args:
        whole_words: whether to mask all tokens of a word or none.
    """

    task = FILL_MASK

    def __init__(self, checkpoint: Checkpoint, seed: int, whole_words: bool) -> None:
        mask = checkpoint.tokenizer.mask_token_id
        if mask is None:
            raise UnavailableError(
                f"The tokenizer of {checkpoint.description.name} has no mask token, so no token can be "
                "masked. Choose another model."
            )
        self.measure = "first guess"
        self.padding, self.pads = checkpoint.padding, checkpoint.pads
        self._mask, self._whole_words = mask, whole_words
        self._vocabulary = len(checkpoint.tokenizer)
        self._random = torch.Generator().manual_seed(seed)

    def examples(
        self, checkpoint: Checkpoint, data: Sequence[str], longest: int | None
    ) -> list[TrainingExample]:
        """Encode each line, and store the word indices of its tokens as the target."""
        examples, errors = [], ValidationErrors("The data")
        for line, text in with_line_numbers(data, "text"):
            try:
                encoding = checkpoint.encoder.encode(text, truncate=True, max_tokens=longest)
            except TextError as error:
                errors.add(line, str(error))
                continue
            words = np.array(
                [-1 if token.special or token.word is None else token.word for token in encoding.tokens]
            )
            examples.append(TrainingExample(ModelInputs(encoding.inputs, encoding.dropped), words, line))
        errors.check()
        return examples

    def most_frequent_token(
        self, train: Sequence[TrainingExample], held_out: Sequence[TrainingExample]
    ) -> tuple[int, float]:
        """Return the most frequent token of the training texts, and its share of the held-out tokens.

        This share approximates the accuracy of always predicting this token.
        """
        train_ids, held_out_ids = (
            np.concatenate(
                [np.asarray(example.inputs.inputs["input_ids"])[example.target >= 0] for example in examples]
            )
            for examples in (train, held_out)
        )
        token = int(np.bincount(train_ids).argmax())
        return token, float((held_out_ids == token).mean())

    def batch(self, examples: Sequence[TrainingExample]) -> dict[str, torch.Tensor]:
        """Return the inputs with masked tokens, and the original tokens as targets."""
        inputs = super().batch(examples)
        ids, is_target = inputs["input_ids"], inputs["labels"] != IGNORE_INDEX
        inputs["labels"][is_target] = ids[is_target]
        draws = torch.rand(int(is_target.sum()), generator=self._random)
        random_ids = torch.randint(self._vocabulary, draws.shape, generator=self._random)
        replaced = torch.where(draws < MASK_SHARE, torch.full_like(random_ids, self._mask), ids[is_target])
        ids[is_target] = torch.where(
            (draws >= MASK_SHARE) & (draws < MASK_SHARE + RANDOM_SHARE), random_ids, replaced
        )
        return inputs

    def targets(self, examples: Sequence[TrainingExample], length: int) -> torch.Tensor:
        """Return an array of shape [text, token]: 0 at tokens to predict, `IGNORE_INDEX` at other tokens."""
        rows = torch.full((len(examples), length), IGNORE_INDEX)
        for row, example in zip(rows, examples, strict=True):
            row[self._draw_positions(example.target)] = 0
        return rows

    def _draw_positions(self, words: Any) -> torch.Tensor:
        """Select tokens to predict at random, and return their positions.

        Args:
            words: word index of each token; -1 for special tokens.
        """
        positions = torch.from_numpy(np.flatnonzero(words >= 0))
        count = max(1, round(MASKED_SHARE * len(positions)))
        order = positions[torch.randperm(len(positions), generator=self._random)]
        if not self._whole_words:
            return order[:count]
        selected: list[int] = []
        for position in order.tolist():
            if len(selected) >= count:
                break
            if position not in selected:
                selected += np.flatnonzero(words == words[position]).tolist()
        return torch.tensor(selected, dtype=torch.long)

    def predict(
        self, full_model: Any, batch: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits (shape [token, vocabulary entry]) and targets at the tokens to predict only.

        The head has one output per vocabulary entry, so applying it to all tokens would cost more than the
        encoder.
        """
        is_target = batch["labels"] != IGNORE_INDEX
        inputs = {name: values for name, values in batch.items() if name != "labels"}
        states = full_model.base_model(**inputs).last_hidden_state[is_target][None]
        head_inputs = {name: values[is_target][None] for name, values in inputs.items()}
        return OutputHead(FILL_MASK, full_model).answer(head_inputs, states, None)[0], batch["labels"][
            is_target
        ]
