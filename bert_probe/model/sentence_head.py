"""A linear classification head on the sentence vector of a sentence-transformers checkpoint.

The head is not listed among the checkpoint's modules, so sentence-transformers still computes the original
sentence vectors from a saved folder. The head's subfolder has the format of a Dense module.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers.modeling_outputs import SequenceClassifierOutput

from bert_probe.errors import CheckpointError, OutOfMemoryError, ProbeError
from bert_probe.model.checkpoint import TEXT_CLASSIFICATION
from bert_probe.model.config import MAX_LABEL_LENGTH, MAX_LABELS, reason
from bert_probe.model.outputs import OutputHead
from bert_probe.model.sentence_modules import MODULE_READERS, SentenceModel, read_settings
from bert_probe.model.sentence_networks import DenseNetwork, SentenceModule, pool_states
from bert_probe.model.sentence_router import AGAIN
from bert_probe.model.weights import copy_to_own_memory

HEAD_FOLDER = "classification_head"
"""Subfolder of a model folder with the head: a sentence-transformers Dense module, and `LABELS_FILE`."""
LABELS_FILE = "labels.json"
"""Name of the file with the head's label names and its `problem_type`, as in transformers."""

_PROBLEMS = ("single_label_classification", "multi_label_classification", "regression")


def unsupported_reason(model: SentenceModel | None) -> str:
    """Return a clause that says why no head can be trained on a checkpoint's sentence vector; else "".

    Checkpoints that change texts before tokenization are not supported, because a head does not apply these
    changes.
    """
    if model is None:
        return "it does not declare its pooling in sentence-transformers files"
    if model.is_sparse:
        return "it is a SparseEncoder, whose vectors have one dimension per token of the vocabulary"
    if model.routes:
        return "its sentence vector depends on a task"
    if model.lower_case:
        return "its configuration requires lowercase texts"
    if dict(model.prompts).get(model.default_prompt or ""):
        return "it prepends a default prompt to each text"
    return ""


class SentenceClassifier(torch.nn.Module):
    """An encoder, a checkpoint's pooling, and a linear head, with the interface of a transformers model.

    Attributes:
        config: the config of the encoder with the labels of the head.
        pooling: settings with which the hidden states are pooled into a sentence vector.
    """

    base_model_prefix = "encoder"

    def __init__(
        self,
        encoder: Any,
        pooling: SentenceModel,
        classifier: DenseNetwork,
        labels: Sequence[str],
        problem: str,
    ) -> None:
        super().__init__()
        self.encoder, self.classifier, self.pooling = encoder, classifier, pooling
        self.config = copy.deepcopy(encoder.config)
        self.config.id2label = dict(enumerate(labels))
        self.config.label2id = {label: number for number, label in enumerate(labels)}
        self.config.problem_type = problem

    @property
    def base_model(self) -> Any:
        """Return the encoder, as in transformers models."""
        return self.encoder

    def forward(self, **inputs: torch.Tensor) -> SequenceClassifierOutput:
        """Return the logits, of shape [text, label], in the dtype of the sentence vector."""
        states = self.encoder(**inputs).last_hidden_state
        mask = inputs.get("attention_mask")
        mask = torch.ones(states.shape[:2], device=states.device) if mask is None else mask
        vectors = pool_states(states, mask, self.pooling)
        linear = self.classifier.linear
        return SequenceClassifierOutput(
            logits=torch.nn.functional.linear(vectors, linear.weight.to(vectors), linear.bias.to(vectors))
        )


def make_head(
    encoder: Any, pooling: SentenceModel, module: SentenceModule, labels: Sequence[str], problem: str
) -> OutputHead:
    """Return a text classification head on the sentence vector of an encoder.

    Args:
        encoder: the transformers model that computes the hidden states.
        pooling: settings with which the hidden states are pooled into a sentence vector.
        module: the linear classifier, a Dense module without an activation.
        labels: label name of each output of the classifier.
        problem: one of `config.PROBLEMS`.
    """
    network = module.network
    assert isinstance(network, DenseNetwork)
    network.to(next(encoder.parameters()).device)
    copy_to_own_memory([*network.parameters()])
    classifier = SentenceClassifier(encoder, pooling, network, labels, problem).eval().requires_grad_(False)
    return OutputHead(TEXT_CLASSIFICATION, classifier, tuple(labels), problem, weights_sha256=module.sha256)


def open_sentence_head(
    folder: Path, encoder: Any, pooling: SentenceModel | None
) -> tuple[list[OutputHead], list[str]]:
    """Load the head on the sentence vector from a model's folder.

    Returns:
        A list with the head, empty if there is none; and a list with an error message if the head cannot be
        loaded.
    """
    if not (folder / HEAD_FOLDER).is_dir():
        return [], []
    try:
        return [_read_head(folder / HEAD_FOLDER, encoder, pooling)], []
    except OutOfMemoryError:
        raise
    except (ProbeError, OSError, RuntimeError, TypeError, ValueError) as error:
        # Broken files raise exceptions of these types.
        return [], [f"The head in {HEAD_FOLDER} cannot be loaded: {reason(error)}."]


def _read_head(folder: Path, encoder: Any, pooling: SentenceModel | None) -> OutputHead:
    problem = unsupported_reason(pooling)
    if pooling is None or problem:
        raise CheckpointError(f"The head reads the sentence vector of the checkpoint, but {problem}")
    metadata = read_settings(folder / LABELS_FILE, dict)
    labels, problem_type = metadata.get("labels"), metadata.get("problem_type")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise CheckpointError(f"{LABELS_FILE} must contain a list of the labels. {AGAIN}")
    longest = max(map(len, labels), default=0)
    if len(labels) > MAX_LABELS or longest > MAX_LABEL_LENGTH:
        raise CheckpointError(
            f"{LABELS_FILE} has {len(labels):,} labels of up to {longest:,} characters; at most "
            f"{MAX_LABELS:,} labels of {MAX_LABEL_LENGTH:,} characters are supported. {AGAIN}"
        )
    if problem_type not in _PROBLEMS:
        raise CheckpointError(
            f"problem_type in {LABELS_FILE} is {str(problem_type)[:100]}, but must be one of "
            f"{', '.join(_PROBLEMS)}. {AGAIN}"
        )
    config = read_settings(folder / "config.json", dict)
    module, size = MODULE_READERS["Dense"](config, folder, pooling.dimensions or pooling.size)
    settings = dict(module.settings)
    if size != len(labels) or settings["activation"] != "Identity" or settings["residual"]:
        raise CheckpointError(
            f"The head must be linear and have one output for each of its {len(labels):,} labels. {AGAIN}"
        )
    if not isinstance(module.network, DenseNetwork) or module.network.linear.bias is None:
        raise CheckpointError(f"The head has no bias. {AGAIN}")
    return make_head(encoder, pooling, module, labels, problem_type)


def write_sentence_head(folder: Path, head: OutputHead) -> None:
    """Write the weights, config and labels of a head to `HEAD_FOLDER` in a model's folder."""
    target = folder / HEAD_FOLDER
    target.mkdir()
    network = head.model.classifier
    module = SentenceModule("Dense", (("activation", "Identity"),), network=network)
    weights = {name: tensor.contiguous().cpu() for name, tensor in network.state_dict().items()}
    save_file(weights, target / "model.safetensors")
    files: Mapping[str, Any] = {
        "config.json": module.config,
        LABELS_FILE: {"labels": list(head.labels), "problem_type": head.problem},
    }
    for name, content in files.items():
        (target / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
