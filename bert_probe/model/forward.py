"""Run a forward pass on a padded batch, and split the result into one trace per text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from bert_probe.errors import ArchitectureError, memory_errors
from bert_probe.model.capture import AttentionCall, recording
from bert_probe.model.encoding import Encoding, ModelInputs
from bert_probe.model.lengths import check_attention_bytes, check_task_bytes
from bert_probe.model.trace import Array, Trace, read_only

if TYPE_CHECKING:
    from bert_probe.model.checkpoint import Checkpoint

BATCH_TOKENS = 8192
"""Maximum number of padded tokens in a forward pass, which bounds the memory for many texts."""
_EAGER_ARRAYS = 4
"""Number of arrays of shape [head, query, key] that a model with its own attention code needs at once."""
GRADIENT_TOKENS = 1024
"""Maximum number of padded tokens in a forward pass with gradients, which keeps all activations."""
UNFUSED_SCORES = 2**18
"""Maximum number of attention scores of a head in a forward pass that computes whole attention matrices."""


def group_by_length(lengths: Sequence[int], budget: int = BATCH_TOKENS, pads: bool = True) -> list[list[int]]:
    """Group texts of similar length into batches within a budget; return the indices of each batch.

    Args:
        lengths: number of tokens of each text.
        budget: maximum number of padded tokens in a batch.
        pads: whether texts in a batch may differ in length; if False, batches need no padding.
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index], reverse=True):
        # Indices are sorted by decreasing length, so a group's first text determines its padded length.
        longest = lengths[groups[-1][0]] if groups else 0
        fits = bool(groups) and (len(groups[-1]) + 1) * longest <= budget
        if fits and (pads or lengths[index] == longest):
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def pad(encodings: Sequence[Encoding | ModelInputs], padding: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Pad the model inputs of several texts on the right, and return tensors of shape [batch, token].

    Args:
        padding: fill value of each model input, by name; 0 for inputs not listed.
    """
    length = max(len(encoding) for encoding in encodings)
    inputs = {}
    for name in encodings[0].inputs:
        rows = np.full((len(encodings), length), padding.get(name, 0), dtype=np.int64)
        for row, encoding in zip(rows, encodings, strict=True):
            row[: len(encoding)] = encoding.inputs[name]
        inputs[name] = torch.from_numpy(rows)
    return inputs


def forward(
    checkpoint: Checkpoint, texts: Sequence[Encoding | ModelInputs], states: bool = False
) -> tuple[Any, torch.Tensor]:
    """Run the model on a batch of texts, without recording attention.

    Args:
        states: whether to return the hidden states of every layer.

    Returns:
        The model's output, and a mask of shape [text, token] with 1 for tokens and 0 for padding.

    Raises:
        OutOfMemoryError: there is not enough memory.
        UnavailableError: the attention is too large for a public server.
    """
    if checkpoint.description.is_eager:
        check_attention_bytes(max(map(len, texts)), checkpoint.description.heads, _EAGER_ARRAYS)
    inputs = batch(checkpoint, texts)
    lengths = torch.tensor([len(text) for text in texts], device=checkpoint.device)
    mask = torch.arange(int(lengths.max()), device=checkpoint.device) < lengths[:, None]
    with memory_errors(memory_message(inputs)), torch.inference_mode(), checkpoint.running() as model:
        return model(**inputs, output_hidden_states=states), mask.long()


def batch(checkpoint: Checkpoint, encodings: Sequence[Encoding | ModelInputs]) -> dict[str, torch.Tensor]:
    """Pad the inputs of several texts on the right; return [text, token] tensors on the model's device."""
    padded = pad(encodings, checkpoint.padding)
    return {name: tensor.to(checkpoint.device) for name, tensor in padded.items()}


def memory_message(inputs: Mapping[str, torch.Tensor]) -> str:
    """Return the error message for a batch that does not fit into memory."""
    return (
        f"{inputs['input_ids'].numel():,} tokens need more memory than is available. "
        "Shorten the text or use a smaller model."
    )


def run(checkpoint: Checkpoint, encodings: Sequence[Encoding]) -> list[Trace]:
    """Trace a batch of tokenized texts in one forward pass.

    For a model whose q, k and v cannot be recorded (see `Description.no_qkv`), the traces contain its
    attention weights instead.
    """
    return run_and_keep_calls(checkpoint, encodings)[0]


def run_and_keep_calls(
    checkpoint: Checkpoint, encodings: Sequence[Encoding]
) -> tuple[list[Trace], list[AttentionCall]]:
    """Return the traces of `run`, and the attention call of each layer.

    The list of calls is empty if queries, keys and values cannot be recorded.

    Raises:
        UnavailableError: a trace is too large for a public server.
    """
    description = checkpoint.description
    for encoding in encodings:
        size, items = description.trace_bytes(len(encoding)), f"{len(encoding):,} tokens in all layers"
        check_task_bytes(size, items, "Use a shorter text.")
    inputs = batch(checkpoint, encodings)
    with memory_errors(memory_message(inputs)), torch.inference_mode(), checkpoint.running() as model:
        checkpoint = checkpoint.snapshot()
        provenance = [checkpoint.provenance(encoding) for encoding in encodings]
        output, calls = run_with_capture(checkpoint, model, inputs)
        if checkpoint.description.shows_qkv:
            return _traces_from_calls(output, calls, encodings, provenance, checkpoint), calls
        return _traces_from_weights(output, encodings, provenance, checkpoint), []


def run_with_capture(
    checkpoint: Checkpoint, model: Any, inputs: Mapping[str, torch.Tensor]
) -> tuple[Any, list[AttentionCall]]:
    """Run the model on a padded batch and record the attention calls.

    Args:
        model: the checkpoint's model, inside `Checkpoint.running`.

    Returns:
        The model's output with all hidden states, and one call per layer. If q, k and v cannot be
        recorded, there are no calls, and ``output.attentions`` contains the attention weights.

    Raises:
        ArchitectureError: the number of calls differs from the number of layers.
    """
    shows_qkv = checkpoint.description.shows_qkv
    with recording() as calls:
        output = model(**inputs, output_hidden_states=True, output_attentions=not shows_qkv)
    layers = len(layer_states(output)) - 1
    if shows_qkv and len(calls) != layers:
        raise ArchitectureError(
            f"{checkpoint.description.architecture} called its attention function {len(calls)} times in "
            f"{layers} layers, so attention heads cannot be assigned to layers."
        )
    return output, calls


def layer_states(output: Any) -> tuple[torch.Tensor, ...]:
    """Return the hidden states from a model's output: the embedding output, then one tensor per layer.

    The last tensor is ``last_hidden_state``. In CLIP and SigLIP, it includes a final norm, which the last
    item of ``hidden_states`` lacks.
    """
    states = getattr(output, "hidden_states", None)
    if not states:
        raise ArchitectureError(
            "This model does not return the hidden states of its layers. Use another model."
        )
    return (*states[:-1], output.last_hidden_state)


def run_for_hooks(checkpoint: Checkpoint, encoding: Encoding) -> None:
    """Run the model on one text so that registered hooks are called; the output is discarded."""
    with torch.inference_mode(), checkpoint.running() as model:
        model(**batch(checkpoint, [encoding]))


def as_tensor(values: Array, model: torch.nn.Module) -> torch.Tensor:
    """Convert an array from a trace to the model's dtype and device; no precision is lost."""
    weight = next(model.parameters())
    return torch.tensor(values, device=weight.device, dtype=weight.dtype)


def as_array(tensor: torch.Tensor) -> Array:
    """Convert a tensor to NumPy without rounding: float64 stays float64, all other types become float32."""
    converted = tensor if tensor.dtype == torch.float64 else tensor.float()
    array: Array = converted.cpu().numpy()
    return array


def _split_layers(
    tensors: Sequence[torch.Tensor], lengths: Sequence[int], axis: int
) -> list[tuple[Array, ...]]:
    """Split each layer's batch by text. For each text, return one array per layer, without padding."""
    layers = [_split_texts(as_array(tensor), lengths, axis) for tensor in tensors]
    return [tuple(layer[row] for layer in layers) for row in range(len(lengths))]


def _split_texts(batched: Array, lengths: Sequence[int], axis: int) -> list[Array]:
    """Split a batch into one array per text, without padding.

    The arrays are copies, because a view would keep the whole batch in memory.
    """
    if batched.shape[0] == 1 and batched.shape[axis + 1] == lengths[0]:
        return [read_only(batched[0])]
    # NumPy copies small arrays in a tenth of the time that torch needs.
    slices: list[Any] = [(row, *[slice(None)] * axis, slice(length)) for row, length in enumerate(lengths)]
    return [read_only(batched[indices].copy()) for indices in slices]


NOT_FINITE: Final = (
    "The model computes hidden states that are not finite numbers. Check settings such as sliding_window and "
    "rope_theta in its config.json, use float32 or float64, or use another model."
)


def _states_and_poolers(output: Any, lengths: Sequence[int], has_pooler: bool) -> list[dict[str, Any]]:
    """Return the hidden states and pooler output of each text, as arguments for `Trace`.

    The pooled output of CLIP and SigLIP is not stored, because it is computed from the vector of one token.

    Raises:
        ArchitectureError: the hidden states of a text are not finite.
    """
    states = _split_layers(layer_states(output), lengths, axis=0)
    for text_states in states:
        if not np.isfinite(text_states[-1]).all():
            raise ArchitectureError(NOT_FINITE)
    pooled = getattr(output, "pooler_output", None) if has_pooler else None
    poolers: Sequence[Array | None] = [None] * len(lengths)
    if pooled is not None:
        poolers = _split_texts(as_array(pooled), [pooled.shape[1]] * len(lengths), axis=0)
    return [
        {"states": text_states, "pooler": pooler} for text_states, pooler in zip(states, poolers, strict=True)
    ]


def _traces_from_calls(
    output: Any,
    calls: list[AttentionCall],
    encodings: Sequence[Encoding],
    provenance: Sequence[Mapping[str, Any]],
    made_by: Checkpoint,
) -> list[Trace]:
    lengths = [len(encoding) for encoding in encodings]
    queries = _split_layers([call.query for call in calls], lengths, axis=1)
    keys = _split_layers([_each_head(call.key, call.query) for call in calls], lengths, axis=1)
    values = _split_layers([_each_head(call.value, call.query) for call in calls], lengths, axis=1)
    common = _states_and_poolers(output, lengths, made_by.description.has_pooler)
    return [
        Trace(
            encoding=encoding,
            queries=queries[row],
            keys=keys[row],
            values=values[row],
            scaling=tuple(call.scaling for call in calls),
            softcaps=tuple(call.softcap for call in calls),
            masks=_masks(calls, row, lengths[row]),
            provenance=provenance[row],
            made_by=made_by,
            **common[row],
        )
        for row, encoding in enumerate(encodings)
    ]


def _each_head(grouped: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Repeat the keys or values of grouped-query attention for each query head (Ainslie et al. 2023)."""
    repeats = query.shape[1] // grouped.shape[1]
    return grouped if repeats == 1 else grouped.repeat_interleave(repeats, dim=1)


def _masks(calls: list[AttentionCall], row: int, length: int) -> tuple[Array | None, ...]:
    """Return a text's mask in each layer; layers that share a mask tensor share the returned array."""
    converted: dict[int, Array | None] = {}
    for call in calls:
        if id(call.mask) not in converted:
            converted[id(call.mask)] = _mask(call.mask, row, length)
    return tuple(converted[id(call.mask)] for call in calls)


def _mask(mask: torch.Tensor | None, row: int, length: int) -> Array | None:
    if mask is None:
        return None
    text_mask = mask[row if mask.shape[0] > 1 else 0, :, :length, :length]
    if bool(text_mask.all() if text_mask.dtype == torch.bool else (text_mask == 0).all()):
        return None
    text_mask = text_mask[0] if text_mask.shape[0] == 1 else text_mask
    # The mask is copied, because a view may be expanded and would keep the whole batch in memory.
    array = text_mask.cpu().numpy() if text_mask.dtype == torch.bool else as_array(text_mask)
    return read_only(array.copy())


def attention_matrices(model: Any, output: Any) -> list[torch.Tensor]:
    """Return the attention weights in a model's output, of shape [batch, head, query, key] for each layer.

    Longformer and LED return the weights in a window around each token, of shape [batch, head, query,
    window + 1], where the middle key is the query itself (Beltagy et al. 2020). These weights are converted
    to a matrix of all tokens, which is 0 outside the window.
    """
    weights = [layer for layer in getattr(output, "attentions", None) or () if layer is not None]
    if not getattr(model.config, "attention_window", None):
        return weights
    return [_matrix_of_window(layer) for layer in weights]


def _matrix_of_window(weights: torch.Tensor) -> torch.Tensor:
    batch_size, heads, length, width = weights.shape
    padded = weights.new_zeros(batch_size, heads, length, length + width - 1)
    # In row i of the padded matrix, the window begins in column i.
    diagonal = padded.as_strided(
        weights.shape, (*padded.stride()[:2], padded.stride(2) + 1, padded.stride(3))
    )
    diagonal.copy_(weights)
    return padded[..., width // 2 : width // 2 + length]


def _traces_from_weights(
    output: Any,
    encodings: Sequence[Encoding],
    provenance: Sequence[Mapping[str, Any]],
    made_by: Checkpoint,
) -> list[Trace]:
    states = layer_states(output)
    layers = len(states) - 1
    weights = attention_matrices(made_by.model, output)
    shape = tuple(states[0].shape[:2])
    if len(weights) != layers or any(
        (layer.shape[0], *layer.shape[2:]) != (*shape, shape[1]) for layer in weights
    ):
        raise ArchitectureError(
            f"{provenance[0]['architecture']} does not return a full attention matrix for every layer."
        )
    tolerance = max(1e-4, 4 * torch.finfo(weights[0].dtype).eps)
    lengths = [len(encoding) for encoding in encodings]
    layer_weights = _split_layers(weights, lengths, axis=1)
    common = _states_and_poolers(output, lengths, made_by.description.has_pooler)
    traces = []
    for row, encoding in enumerate(encodings):
        text_weights = tuple(layer[:, :, : lengths[row]] for layer in layer_weights[row])
        # Some models return approximations of attention, which are not distributions over the keys.
        deviation = max(float(np.abs(layer.sum(axis=-1) - 1).max()) for layer in text_weights)
        if math.isnan(deviation):
            raise ArchitectureError(
                f"{provenance[row]['architecture']} computes attention weights that are not finite "
                "numbers. Check settings such as sliding_window and rope_theta in its config.json, or "
                "use another model."
            )
        if not deviation <= tolerance:
            raise ArchitectureError(
                f"{provenance[row]['architecture']} has attention rows that do not sum to 1 for this "
                f"text (off by {deviation:.2g}), so its attention is not shown. Use a shorter text or "
                "another model."
            )
        traces.append(
            Trace(
                encoding=encoding,
                weights=text_weights,
                provenance=provenance[row],
                made_by=made_by,
                **common[row],
            )
        )
    return traces
