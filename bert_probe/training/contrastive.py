"""Contrastive training of the sentence vector on pairs, triplets and scored pairs of texts.

The losses equal those of sentence-transformers on the same batch.
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save

from bert_probe.analyses.vectors.pooling import PoolingConfig, pool, resolve_pooling
from bert_probe.errors import SelectionError, TextError, UnavailableError
from bert_probe.model.architectures import is_whole_model
from bert_probe.model.checkpoint import SENTENCE_SIMILARITY, Checkpoint
from bert_probe.model.encoding import ModelInputs
from bert_probe.model.forward import pad
from bert_probe.model.sentence_modules import SentenceModel
from bert_probe.model.sentence_networks import SentenceModule
from bert_probe.model.trace import Array
from bert_probe.text.formats import ValidationErrors
from bert_probe.text.similarity_examples import PAIRS, SCORED, TRIPLETS, SimilarityExample, SimilarityExamples
from bert_probe.training.objectives import Objective, TrainingExample
from bert_probe.training.schedule import BatchOrder

AUTO, NEGATIVES, TRIPLET, COSENT, COSINE = "auto", "in-batch-negatives", "triplet", "cosent", "cosine"

LOSSES = {
    AUTO: "The default is cosent for scored pairs, and in-batch-negatives for pairs and triplets.",
    NEGATIVES: "Cross-entropy for identifying the positive of each anchor among all texts of the batch "
    "(MultipleNegativesRankingLoss, InfoNCE; van den Oord et al. 2018).",
    TRIPLET: "max(0, d(anchor, positive) − d(anchor, negative) + margin), where d is the Euclidean "
    "distance (TripletLoss; Schroff et al. 2015).",
    COSENT: "Ranking loss that compares the order of the pairs by cosine similarity with their order by "
    "score (CoSENTLoss).",
    COSINE: "Squared difference between the cosine similarity and the score; scores must be between −1 and 1 "
    "(CosineSimilarityLoss).",
}
"""Descriptions of the losses for similarity training, by name."""

_LOSSES_OF_KIND = {SCORED: (COSENT, COSINE), PAIRS: (NEGATIVES,), TRIPLETS: (NEGATIVES, TRIPLET)}


def losses_for(kind: str) -> tuple[str, ...]:
    """Return the losses for a kind of examples; the first loss is the default."""
    return _LOSSES_OF_KIND[kind]


_MEASURES = {SCORED: "Spearman", PAIRS: "recall@1", TRIPLETS: "accuracy"}

SCALE = 20.0
"""Factor by which cosines are multiplied in `NEGATIVES` and `COSENT`, as in sentence-transformers."""
MARGIN = 5.0
"""Margin of `TRIPLET`, as in sentence-transformers."""
_BLOCK = 1024


def in_batch_negatives_loss(vectors: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy for ranking each anchor's positive among all candidates in the batch.

    Args:
        vectors: anchors, positives and, for triplets, negatives, [example, text, size].
    """
    anchors, *candidates = F.normalize(vectors, dim=-1).unbind(dim=1)
    scores = SCALE * anchors @ torch.cat(candidates).T
    return F.cross_entropy(scores, torch.arange(len(scores), device=scores.device))


def triplet_loss(vectors: torch.Tensor) -> torch.Tensor:
    """Return the mean of max(|anchor − positive| − |anchor − negative| + `MARGIN`, 0) over the examples.

    Args:
        vectors: anchors, positives and negatives, [example, text, size]. |·| is the Euclidean norm.
    """
    anchors, positives, negatives = vectors.unbind(dim=1)
    near, far = (torch.linalg.vector_norm(anchors - texts, dim=-1) for texts in (positives, negatives))
    return F.relu(near - far + MARGIN).mean()


def cosent_loss(vectors: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Return log(1 + sum of exp(`SCALE` · (cos_i − cos_j)) over all i, j with score_i < score_j).

    cos_i is the cosine of the two vectors of example i, and score_i is its score. This is the loss CoSENT (Su
    2022), CoSENTLoss in sentence-transformers.

    Args:
        vectors: vectors of both texts of each example, [example, text, size].
        scores: score of each example, [example].
    """
    cosines = SCALE * F.cosine_similarity(vectors[:, 0], vectors[:, 1], dim=-1)
    differences = cosines[:, None] - cosines[None, :]
    is_ordered = scores[:, None] < scores[None, :]
    return torch.logsumexp(torch.cat([differences.new_zeros(1), differences[is_ordered]]), dim=0)


def cosine_loss(vectors: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Return the mean squared difference between the cosine of an example's two vectors and its score.

    Args:
        vectors: vectors of both texts of each example, [example, text, size].
        scores: score of each example, [example].
    """
    return F.mse_loss(F.cosine_similarity(vectors[:, 0], vectors[:, 1], dim=-1), scores.to(vectors.dtype))


@dataclass(frozen=True, eq=False)
class SimilarityInputs(TrainingExample):
    """An encoded pair or triplet of texts.

    Attributes:
        inputs: the model inputs of the longest text, which determine the length of the example.
        target: the score; for pairs and triplets, an index that is equal if the positives have equal inputs.
        parts: the model inputs of each text.
        texts: the texts, which identify duplicates in a batch.
    """

    parts: tuple[ModelInputs, ...]
    texts: tuple[str, ...]

    @property
    def key(self) -> Hashable:
        """Key of the first two texts, independent of their order; see `TrainingExample.key`."""
        return tuple(sorted(part.key for part in self.parts[:2]))


class SimilarityObjective(Objective):
    """Training objective for the sentence vector on pairs, triplets or scored pairs.

    Args:
        loss: one of `LOSSES`.

    Raises:
        SelectionError: the loss does not fit the examples.
        UnavailableError, CheckpointError: the checkpoint does not declare a pooling that can be trained.
    """

    task = SENTENCE_SIMILARITY

    def __init__(self, checkpoint: Checkpoint, data: SimilarityExamples, loss: str) -> None:
        self.kind = data.kind
        losses = _LOSSES_OF_KIND[data.kind]
        if loss not in (AUTO, *losses):
            raise SelectionError(
                f"The loss {loss} cannot be used with {data.kind}. Choose {' or '.join(losses)} (--loss)."
            )
        self.loss_name = losses[0] if loss == AUTO else loss
        self.measure = _MEASURES[data.kind]
        self.padding, self.pads = checkpoint.padding, checkpoint.pads
        self.config = trainable_pooling(checkpoint)
        self.texts_per_example = 3 if data.kind == TRIPLETS else 2
        scores = [row.score for row in data.rows if row.score is not None]
        if self.loss_name == COSINE and not all(-1 <= score <= 1 for score in scores):
            raise TextError(
                f"The scores are from {min(scores):g} to {max(scores):g}, but the loss {COSINE} needs "
                "scores between −1 and 1. Divide the scores by the highest possible score, or choose "
                f"the loss {COSENT}."
            )
        if self.loss_name == COSENT and len(set(scores)) == 1:
            raise TextError(
                f"All scores are {scores[0]:g}, but the loss {COSENT} learns from the order of different "
                f"scores. Use pairs with different scores, or choose the loss {COSINE}."
            )

    def examples(
        self, checkpoint: Checkpoint, data: Sequence[SimilarityExample], longest: int | None
    ) -> list[TrainingExample]:
        """Encode the texts of each example with the checkpoint's default prompt."""
        limits = [limit for limit in (longest, self.config.max_tokens) if limit]
        examples: list[TrainingExample] = []
        errors = ValidationErrors("The data")
        positives: dict[bytes, int] = {}
        for row in data:
            try:
                parts = tuple(
                    checkpoint.encoder.inputs(
                        self.config.text(text), min(limits, default=None), truncate=True
                    )
                    for text in row.texts
                )
            except TextError as error:
                errors.add(row.line, str(error))
                continue
            tokens = parts[1].key
            target = positives.setdefault(tokens, len(positives)) if row.score is None else row.score
            examples.append(SimilarityInputs(max(parts, key=len), target, row.line, parts, row.texts))
        errors.check()
        return examples

    def batch(self, examples: Sequence[TrainingExample]) -> dict[str, torch.Tensor]:
        """Return the inputs of all texts, of shape [all texts, token], and the targets as ``labels``.

        The targets are the scores of scored pairs, or else the index of each positive. The first texts of all
        examples come first, then the second texts, then the third.
        """
        columns = zip(*(example.parts for example in examples), strict=True)  # type: ignore[attr-defined]
        inputs = pad([part for column in columns for part in column], self.padding)
        return inputs | {"labels": self.targets(examples, 0)}

    def order(self, examples: Sequence[TrainingExample], batch: int, seed: int) -> BatchOrder:
        """Return batches in random order; with in-batch negatives, avoid duplicate texts in a batch."""
        if self.loss_name != NEGATIVES:
            return super().order(examples, batch, seed)
        return DistinctBatches([example.texts for example in examples], batch, seed)  # type: ignore[attr-defined]

    def targets(self, examples: Sequence[TrainingExample], length: int) -> torch.Tensor:  # noqa: ARG002
        """Return the target of each example as float64; see `SimilarityInputs`."""
        return torch.tensor([example.target for example in examples], dtype=torch.float64)

    def predict(
        self, full_model: Any, batch: Mapping[str, torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the vectors of each example, [example, text, size], and the targets."""
        inputs = {name: values for name, values in batch.items() if name != "labels"}
        columns = full_model(**inputs).unflatten(0, (self.texts_per_example, -1))
        return columns.transpose(0, 1), batch["labels"]

    def loss(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss of sentence vectors, passed as `logits` of shape [example, text, hidden].

        The targets are similarity scores. Losses of pairs and triplets without scores ignore them.
        """
        if self.loss_name in (COSENT, COSINE):
            loss_fn = cosent_loss if self.loss_name == COSENT else cosine_loss
            return loss_fn(logits, targets)
        return (in_batch_negatives_loss if self.loss_name == NEGATIVES else triplet_loss)(logits)

    def predictions(self, logits: torch.Tensor) -> torch.Tensor:
        """Return cosines for scored pairs, and L2-normalized vectors for pairs and triplets."""
        if self.kind == SCORED:
            return F.cosine_similarity(logits[:, 0], logits[:, 1], dim=-1)
        return F.normalize(logits, dim=-1)

    def score(self, predictions: Array, targets: Array) -> float:
        """Return Spearman correlation for scored pairs, recall@1 for pairs, or triplet accuracy.

        The correlation is NaN if all predictions or all scores are equal.
        """
        if self.kind == SCORED:
            if not np.ptp(predictions) or not np.ptp(targets):
                return math.nan
            from scipy.stats import spearmanr

            return float(spearmanr(predictions, targets).statistic)
        if self.kind == TRIPLETS:
            anchors, positives, negatives = predictions.swapaxes(0, 1)
            return float(((anchors * (positives - negatives)).sum(axis=-1) > 0).mean())
        return recall_at_1(predictions[:, 0], predictions[:, 1], targets)


def recall_at_1(anchors: Array, positives: Array, texts: Array) -> float:
    """Return the share of anchors whose own positive is more similar than any other text among the positives.

    Args:
        anchors, positives: L2-normalized vectors, [example, size].
        texts: identifies the text of each positive, [example]. The vectors of equal texts can differ by a
            rounding error, which must not decide which of them is the most similar.
    """
    correct = 0
    for start in range(0, len(anchors), _BLOCK):
        block = slice(start, start + _BLOCK)
        scores = anchors[block] @ positives.T
        own = (anchors[block] * positives[block]).sum(axis=-1)
        scores[texts[block, None] == texts] = -np.inf
        correct += int((own > scores.max(axis=-1, initial=-np.inf)).sum())
    return correct / len(anchors)


class DistinctBatches:
    """Random batches that avoid, if possible, two examples with the same text.

    With in-batch negatives, a text that occurs twice in a batch would be its own negative.
    """

    def __init__(self, texts: Sequence[tuple[str, ...]], batch: int, seed: int) -> None:
        self._texts, self._batch = texts, batch
        self._random = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return -(-len(self._texts) // self._batch)

    def __iter__(self) -> Iterator[list[int]]:
        waiting = torch.randperm(len(self._texts), generator=self._random).tolist()
        while waiting:
            batch: list[int] = []
            used: set[str] = set()
            postponed: list[int] = []
            for position, index in enumerate(waiting):
                if len(batch) == self._batch:
                    postponed += waiting[position:]
                    break
                if used.isdisjoint(self._texts[index]):
                    batch.append(index)
                    used.update(self._texts[index])
                else:
                    postponed.append(index)
            missing = self._batch - len(batch)
            yield batch + postponed[:missing]
            waiting = postponed[missing:]


def trainable_pooling(checkpoint: Checkpoint) -> PoolingConfig:
    """Return the checkpoint's pooling, after checking that a model with this pooling can be trained.

    Raises:
        UnavailableError, CheckpointError: the checkpoint declares no pooling, or a pooling that cannot be
            trained.
    """
    if checkpoint.sentence_model is None and checkpoint.sentence_model_error is None:
        raise UnavailableError(
            f"{checkpoint.description.name} does not declare its pooling, which training on sentence "
            "similarity requires. Choose a sentence-transformers model."
        )
    if not is_whole_model(checkpoint.model):
        encoder = type(checkpoint.model).__name__
        reason = f"has an encoder ({encoder}) that sentence-transformers cannot open if it is saved by itself"
    else:
        config = resolve_pooling(checkpoint, "model")
        model = checkpoint.sentence_model
        assert model is not None
        reason = "is a SparseEncoder" if model.is_sparse else "has a Router" if model.routes else ""
        reason = reason or ("" if checkpoint.pads else "cannot batch texts of different lengths")
        if not reason:
            return config
    raise UnavailableError(
        f"The sentence vectors of {checkpoint.description.name} cannot be trained, because the model "
        f"{reason}. Choose another model."
    )


class SentenceEmbedder(torch.nn.Module):
    """An encoder and a checkpoint's pooling, as a trainable torch module that returns sentence vectors.

    Attributes:
        config: the config of the encoder.
        networks: the sentence-transformers modules that have weights.
    """

    base_model_prefix = "encoder"

    def __init__(self, encoder: Any, pooling: PoolingConfig) -> None:
        super().__init__()
        self.encoder, self.config, self.pooling = encoder, encoder.config, pooling
        modules = (*pooling.token_modules, *pooling.vector_modules)
        self.networks = torch.nn.ModuleList([module.network for module in modules if module.sha256])

    @property
    def base_model(self) -> Any:
        """The encoder."""
        return self.encoder

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Return the sentence vectors, [text, size]."""
        output = self.encoder(**inputs)
        mask = inputs.get("attention_mask")
        mask = torch.ones_like(inputs["input_ids"]) if mask is None else mask
        return pool(output, mask, self.pooling)


def sentence_embedder(encoder: Any, pooling: PoolingConfig) -> SentenceEmbedder:
    """Return a `SentenceEmbedder` with copies of the pooling modules; use fused attention if possible."""
    try:
        encoder.set_attn_implementation("sdpa")
    except ValueError:
        encoder.set_attn_implementation("eager")
    double = next(encoder.parameters()).dtype == torch.float64
    token_modules, vector_modules = (
        tuple(_copied(module, double) for module in modules)
        for modules in (pooling.token_modules, pooling.vector_modules)
    )
    copied = replace(pooling, token_modules=token_modules, vector_modules=vector_modules)
    return SentenceEmbedder(encoder, copied)


def _copied(module: SentenceModule, double: bool) -> SentenceModule:
    network = copy.deepcopy(module.network)
    return replace(module, network=network.double() if double else network)


def trained_sentence_model(original: SentenceModel, embedder: SentenceEmbedder) -> SentenceModel:
    """Return a copy of the original `SentenceModel` with the trained weights of the embedder's modules."""
    embedder.eval().requires_grad_(False)
    token_modules, vector_modules = (
        tuple(map(_with_digest, modules))
        for modules in (embedder.pooling.token_modules, embedder.pooling.vector_modules)
    )
    return replace(original, token_modules=token_modules, vector_modules=vector_modules)


def _with_digest(module: SentenceModule) -> SentenceModule:
    """Return a copy of a module with the SHA-256 of the weight file that `write_sentence_model` writes.

    A module without a SHA-256 has no weight file, and is returned as it is.
    """
    if not module.sha256:
        return module
    weights = {name: tensor.contiguous() for name, tensor in module.network.state_dict().items()}
    return replace(module, sha256=hashlib.sha256(save(weights)).hexdigest())
