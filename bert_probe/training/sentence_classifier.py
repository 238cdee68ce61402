"""Train a linear head on the sentence vectors of a frozen encoder, with scikit-learn.

The head minimizes the loss plus an L2 penalty. This objective has a single minimum. The strength of the
penalty is selected on the held-out texts.
"""

from __future__ import annotations

import copy
import hashlib
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

from bert_probe.analyses.vectors.pooling import resolve_pooling
from bert_probe.analyses.vectors.sentences import pool_inputs
from bert_probe.model.architectures import is_whole_model
from bert_probe.model.checkpoint import Checkpoint, TrainingHistory
from bert_probe.model.from_model import wrap
from bert_probe.model.loading import outputs_digest
from bert_probe.model.outputs import OutputHead
from bert_probe.model.progress import Cancelled, Progress
from bert_probe.model.sentence_head import make_head, unsupported_reason
from bert_probe.model.sentence_networks import DenseNetwork, SentenceModule
from bert_probe.model.trace import Array
from bert_probe.text.labeled_texts import LabeledTexts
from bert_probe.training.models import HEAD, ParameterCount
from bert_probe.training.objectives import TextObjective, TrainingExample
from bert_probe.training.training_loop import STOPPED, EvaluationPoint, OnEvaluation

AUTO, SENTENCE, CLS = "auto", "sentence", "cls"

HEADS = {
    AUTO: "The default is sentence if the checkpoint declares its pooling and only the head is trained; "
    "otherwise cls.",
    SENTENCE: "A linear head on the model's own sentence vector, fitted with scikit-learn.",
    CLS: "The head of the transformers class for the task, which for most model families reads the "
    "vector of [CLS].",
}
"""Descriptions of the heads for text classification, by name."""

PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Values of C, the inverse of the strength of the penalty in scikit-learn; the best is selected."""
DEFAULT_PENALTY = 1.0
"""The value of C without held-out texts; scikit-learn's default."""
_MAX_NEWTON_WEIGHTS = 800
"""Maximum number of weights to fit with Newton's method, because the cost of its steps grows quadratically.
More weights are fitted with L-BFGS."""
_MAX_ITERATIONS = 1_000


def sentence_head_problem(checkpoint: Checkpoint, data: Any) -> str:
    """Return a clause that states why a head on the sentence vector cannot be trained; "" if it can."""
    if not isinstance(data, LabeledTexts):
        return "a sentence-vector head requires labeled texts"
    if any(row.pair is not None for row in data.rows):
        return "a sentence-vector head accepts a single text, but the data are text pairs"
    if checkpoint.sentence_model_error is not None:
        return f"the pooling cannot be read: {checkpoint.sentence_model_error}".rstrip(".")
    problem = unsupported_reason(checkpoint.sentence_model)
    if not problem and not is_whole_model(checkpoint.model):
        network = type(checkpoint.model).__name__
        problem = f"the encoder of the checkpoint ({network}) is part of a larger model"
    return problem


@dataclass(frozen=True, eq=False)
class SentenceHead:
    """A fitted head on the sentence vector, with the evaluations for all values of C.

    Attributes:
        weights: weights of the head, [label, size].
        bias: bias of the head, [label].
        history: one evaluation for each value of C.
        best: the evaluation of this head.
        ended: `STOPPED` if the user stopped the training; "" otherwise.
        notes: notes for the user, one sentence each.
    """

    weights: Array
    bias: Array
    history: tuple[EvaluationPoint, ...]
    best: EvaluationPoint
    ended: str
    notes: tuple[str, ...]


def fit_sentence_head(
    checkpoint: Checkpoint,
    objective: TextObjective,
    training: Sequence[TrainingExample],
    held_out: Sequence[TrainingExample],
    progress: Progress,
    on_evaluation: OnEvaluation,
) -> SentenceHead:
    """Fit a head on the sentence vectors of texts for each value of C, and return the best head.

    The score of a held-out text is the share of correct labels, or the negative squared error of a number.
    Candidates are the heads whose mean score is at most one standard error of the paired difference below the
    highest mean score. Of the candidates, the head whose C is nearest to `DEFAULT_PENALTY` is selected, so
    that a few held-out texts cannot select an extreme C by chance. Without held-out texts, C is
    `DEFAULT_PENALTY`.

    Args:
        checkpoint: the checkpoint whose sentence vectors are used.
        objective: the training objective, which defines the labels.
        training, held_out: encoded texts with their targets.
        progress: called with the number of finished texts and fits, and their total. If the callback raises
            `Cancelled` after the first fit, the best head so far is returned.
        on_evaluation: called after each fit.
    """
    penalties = PENALTIES if held_out else (DEFAULT_PENALTY,)
    count, start = len(training) + len(held_out), time.monotonic()
    total = count + len(penalties)
    config = resolve_pooling(checkpoint, "model")
    inputs = [example.inputs for example in (*training, *held_out)]
    vectors = pool_inputs(checkpoint, inputs, config, lambda done, _: progress(done, total))
    vectors = vectors.astype(np.float64)
    x, held_out_x = vectors[: len(training)], vectors[len(training) :]
    y, held_out_y = (objective.targets(examples, 0) for examples in (training, held_out))
    fit = _FITS[objective.problem]
    history: list[EvaluationPoint] = []
    fitted: list[tuple[Array, Array]] = []
    scores: list[Array] = []
    ended, unfinished = "", []
    for number, penalty in enumerate(penalties, 1):
        weights, bias, is_converged = fit(x, y.numpy(), len(objective.labels), penalty)
        unfinished += [] if is_converged else [f"{penalty:g}"]
        loss, _ = _evaluate(objective, x @ weights.T + bias, y)
        held_out_loss, measure = _evaluate(objective, held_out_x @ weights.T + bias, held_out_y)
        evaluation = EvaluationPoint(
            number, math.nan, loss, held_out_loss, measure, time.monotonic() - start, penalty
        )
        history.append(evaluation)
        fitted.append((weights, bias))
        scores.append(_text_scores(objective, held_out_x @ weights.T + bias, held_out_y))
        on_evaluation(evaluation)
        try:
            progress(count + number, total)
        except Cancelled:
            ended = STOPPED
            break
    index = select_penalty(penalties[: len(scores)], np.array(scores))
    notes = tuple(_notes(unfinished, held_out))
    return SentenceHead(*fitted[index], tuple(history), history[index], ended, notes)


def _text_scores(objective: TextObjective, logits: Array, targets: torch.Tensor) -> Array:
    """Return the score of each text, [text]: the share of correct labels, or the negative squared error."""
    predictions, true = objective.predictions(torch.from_numpy(logits)).numpy(), targets.numpy()
    if objective.problem == "regression":
        scores: Array = -((predictions - true) ** 2)
        return scores
    correct = np.asarray(predictions == true, float)
    return correct.mean(axis=1) if correct.ndim > 1 else correct


def select_penalty(penalties: Sequence[float], scores: Array) -> int:
    """Return the index of the selected C; see `fit_sentence_head`.

    Args:
        penalties: the values of C.
        scores: the score of each held-out text for each C, [C, text].
    """
    if not scores.shape[1]:
        return 0
    # Differences from the scores of the C with the highest mean, [C, text].
    differences = scores[scores.mean(axis=1).argmax()] - scores
    errors = differences.std(axis=1) / math.sqrt(scores.shape[1])
    candidates = np.flatnonzero(differences.mean(axis=1) <= errors)
    return min(candidates.tolist(), key=lambda index: abs(math.log(penalties[index] / DEFAULT_PENALTY)))


def _notes(unfinished: Sequence[str], held_out: Sequence[Any]) -> list[str]:
    notes = []
    if unfinished:
        notes.append(
            f"The fit did not converge within the limit of {_MAX_ITERATIONS:,} iterations for C = "
            f"{', '.join(unfinished)}."
        )
    if not held_out:
        notes.append(
            f"No texts are held out, so C was not selected; the default, {DEFAULT_PENALTY:g}, is used."
        )
    return notes


def _evaluate(objective: TextObjective, logits: Array, targets: torch.Tensor) -> tuple[float, float]:
    """Return the mean loss and the measure; NaN if there are no texts."""
    if not len(logits):
        return math.nan, math.nan
    tensor = torch.from_numpy(logits)
    predictions = objective.predictions(tensor).numpy()
    return float(objective.loss(tensor, targets)), objective.score(predictions, targets.numpy())


_Fit = tuple[Array, Array, bool]
"""Weights [label, size], biases [label], and whether the optimization converged.

The functions in `_FITS` return these values. They fit a head to sentence vectors x [text, size] and targets
y, given the number of labels and the penalty C (see `PENALTIES`).
"""


def _fit_classes(x: Array, y: Array, labels: int, penalty: float) -> _Fit:
    """Fit logistic regression. For two classes, scikit-learn's logit z becomes the logits −z/2 and z/2."""
    weights, bias, is_converged = _logistic_regression(x, y, penalty)
    if labels == 2:
        weights, bias = (np.concatenate([-part / 2, part / 2]) for part in (weights, bias))
    return weights, bias, is_converged


def _fit_multilabel(x: Array, y: Array, labels: int, penalty: float) -> _Fit:
    """Fit one logistic regression per label.

    If all texts or no texts have a label, the logit of the label is constant: the log odds after adding 0.5
    to the number of texts with the label and to the number of texts without it.
    """
    fits = []
    for label in range(labels):
        positive = int(y[:, label].sum())
        if 0 < positive < len(y):
            fits.append(_logistic_regression(x, y[:, label], penalty))
        else:
            constant = np.array([math.log((positive + 0.5) / (len(y) - positive + 0.5))])
            fits.append((np.zeros((1, x.shape[1])), constant, True))
    weights, biases, converged = zip(*fits, strict=True)
    return np.concatenate(weights), np.concatenate(biases), all(converged)


def _fit_number(x: Array, y: Array, labels: int, penalty: float) -> _Fit:  # noqa: ARG001
    """Fit ridge regression with alpha = 1 / (2 C), where C is `penalty`, as in `LogisticRegression`."""
    from sklearn.linear_model import Ridge

    model = Ridge(alpha=1 / (2 * penalty)).fit(x, y)
    return model.coef_[None], np.array([model.intercept_]), True


_FITS: dict[str, Callable[[Array, Array, int, float], _Fit]] = {
    "single_label_classification": _fit_classes,
    "multi_label_classification": _fit_multilabel,
    "regression": _fit_number,
}


def _logistic_regression(x: Array, y: Array, penalty: float) -> _Fit:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    labels = len(np.unique(y))
    weights = x.shape[1] * (1 if labels == 2 else labels)
    solver, tolerance = ("newton-cholesky", 1e-6) if weights <= _MAX_NEWTON_WEIGHTS else ("lbfgs", 1e-4)
    model = LogisticRegression(C=penalty, solver=solver, max_iter=_MAX_ITERATIONS, tol=tolerance)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        model.fit(x, y)
    is_converged = not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
    return model.coef_, model.intercept_, is_converged


def estimate_sentence_memory(
    checkpoint: Checkpoint, examples: Sequence[TrainingExample], batch_memory: int
) -> int:
    """Estimate the peak memory in bytes: a copy of the encoder, the vectors in float64, and one batch."""
    model = checkpoint.sentence_model
    assert model is not None
    copied = checkpoint.description.parameter_count * (8 if checkpoint.description.dtype == "float64" else 4)
    return copied + 4 * 8 * len(examples) * model.size + batch_memory


def count_sentence_head(checkpoint: Checkpoint, labels: int) -> ParameterCount:
    """Return the number of parameters in a head on the sentence vector, and in the model with this head."""
    model = checkpoint.sentence_model
    assert model is not None
    count = labels * ((model.dimensions or model.size) + 1)
    return ParameterCount(HEAD, count, checkpoint.description.parameter_count + count)


def copy_encoder(checkpoint: Checkpoint) -> Any:
    """Return a trainable copy of the encoder, in float32, or in float64 for a float64 checkpoint."""
    with checkpoint.running() as model:
        encoder = copy.deepcopy(model)
    rounded = _rounded_buffers(encoder)
    encoder = encoder.double() if checkpoint.description.dtype == "float64" else encoder.float()
    if rounded:
        # Imported here, because accelerate is optional.
        from accelerate import init_empty_weights

        with init_empty_weights():
            exact = dict(type(encoder)(copy.deepcopy(encoder.config)).named_buffers())
        for name in rounded:
            buffer = encoder.get_buffer(name)
            buffer.data = exact[name].to(buffer.device)
    return encoder


def _rounded_buffers(encoder: torch.nn.Module) -> list[str]:
    """Return the names of the buffers in half precision that are computed from the config, not stored.

    An example is the factor by which Gemma multiplies its word embeddings. If the saved model is loaded in
    float32, these buffers are not rounded.
    """
    return [
        f"{prefix}.{name}" if prefix else name
        for prefix, module in encoder.named_modules()
        for name in sorted(module._non_persistent_buffers_set)
        if module.get_buffer(name).dtype in (torch.bfloat16, torch.float16)
    ]


def sentence_checkpoint(
    original: Checkpoint,
    encoder: Any,
    history: Sequence[TrainingHistory],
    make_heads: Callable[[Any], Sequence[OutputHead]] = lambda _: (),
) -> Checkpoint:
    """Return a checkpoint of an encoder with the original checkpoint's pooling, as if loaded from files.

    Args:
        original: the checkpoint from which training started.
        encoder: the encoder. Its attention implementation is changed in place.
        history: training history, including the latest training run.
        make_heads: returns the task heads for the encoder.

    Raises:
        CheckpointError: the encoder's attention cannot be captured.
    """
    wrapped, model = wrap(encoder, original.tokenizer), original.sentence_model
    encoder.eval().requires_grad_(False)
    encoder.set_attn_implementation(wrapped.initial_description.implementation)
    heads = make_heads(encoder)
    description = replace(
        wrapped.initial_description,
        name=f"{original.description.name}, fine-tuned",
        outputs_sha256=outputs_digest(heads),
        sentence_model_sha256=model.sha256 if model else "",
    )
    values = {field.name: getattr(wrapped, field.name) for field in fields(Checkpoint)}
    changes = {
        "initial_description": description,
        "outputs": {head.task: head for head in heads},
        "training_history": tuple(history),
        "sentence_model": model,
    }
    return Checkpoint(**values | changes)


def with_sentence_head(
    original: Checkpoint, fitted: SentenceHead, objective: TextObjective, history: Sequence[TrainingHistory]
) -> Checkpoint:
    """Return a copy of a checkpoint with a fitted head on its sentence vector."""
    pooling = original.sentence_model
    assert pooling is not None
    dtype = torch.float64 if original.description.dtype == "float64" else torch.float32
    labels, size = fitted.weights.shape
    network = DenseNetwork(size, labels, bias=True, residual=False)
    network.linear.weight = torch.nn.Parameter(torch.from_numpy(fitted.weights).to(dtype).contiguous())
    network.linear.bias = torch.nn.Parameter(torch.from_numpy(fitted.bias).to(dtype))
    settings = (("size", labels), ("activation", "Identity"), ("residual", False))
    module = SentenceModule("Dense", settings, _weights_digest(network), network)
    return sentence_checkpoint(
        original,
        copy_encoder(original),
        history,
        lambda copied: [make_head(copied, pooling, module, objective.labels, objective.problem)],
    )


def _weights_digest(network: torch.nn.Module) -> str:
    """Return the SHA-256 of the weight file that `write_sentence_head` writes for a network."""
    return hashlib.sha256(save(dict(network.state_dict()))).hexdigest()
