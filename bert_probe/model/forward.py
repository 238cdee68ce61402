"""One fused forward pass over a padded batch, cut into one trace for each text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bert_probe.errors import ArchitectureError, memory_errors
from bert_probe.model.capture import AttentionCall, recording
from bert_probe.model.encoding import Encoding, ModelInputs
from bert_probe.model.trace import Array, Trace, read_only

if TYPE_CHECKING:
    from bert_probe.model.checkpoint import Checkpoint

BATCH_TOKENS = 8192
"""Padded tokens in one forward pass at most, so that many texts need no more memory than a few."""


def batches(lengths: Sequence[int], budget: int = BATCH_TOKENS, pads: bool = True) -> list[list[int]]:
    """Indices grouped by length, padded size within the budget; every index once.

    Args:
        pads: lengths may differ within a group; otherwise none needs any padding.
    """
    groups: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index], reverse=True):
        # Longest first, so a group's first text sets its padded length.
        longest = lengths[groups[-1][0]] if groups else 0
        fits = bool(groups) and (len(groups[-1]) + 1) * longest <= budget
        if fits and (pads or lengths[index] == longest):
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups


def pad(encodings: Sequence[Encoding | ModelInputs], padding: Mapping[str, int]) -> dict[str, torch.Tensor]:
    """Model inputs [batch, token], padded on the right; ``padding`` names the filling, 0 by default."""
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
    """A batch of texts through the model, keeping nothing of what happens within.

    Args:
        states: the output holds the hidden states of every layer.

    Returns:
        The model's output, and 1 at tokens and 0 at padding, [text, token].
    """
    inputs = batch(checkpoint, texts)
    lengths = torch.tensor([len(text) for text in texts], device=checkpoint.device)
    mask = torch.arange(int(lengths.max()), device=checkpoint.device) < lengths[:, None]
    with memory_errors(no_memory(inputs)), torch.inference_mode(), checkpoint.running() as model:
        return model(**inputs, output_hidden_states=states), mask.long()


def batch(checkpoint: Checkpoint, encodings: Sequence[Encoding | ModelInputs]) -> dict[str, torch.Tensor]:
    """Model inputs [text, token], padded on the right, where the model is."""
    padded = pad(encodings, checkpoint.padding)
    return {name: tensor.to(checkpoint.device) for name, tensor in padded.items()}


def no_memory(inputs: Mapping[str, torch.Tensor]) -> str:
    """What is said where a batch does not fit into memory."""
    return (
        f"{inputs['input_ids'].numel():,} tokens need more memory than this machine has free. "
        "Shorten the text or use a smaller model."
    )


def run(checkpoint: Checkpoint, encodings: Sequence[Encoding]) -> list[Trace]:
    """Trace a batch of encoded texts in one forward pass.

    A model that does not listen to `capture.IMPLEMENTATION` runs eager attention, whose weights are kept
    because q, k and v cannot be seen.
    """
    inputs = batch(checkpoint, encodings)
    with memory_errors(no_memory(inputs)), torch.inference_mode(), checkpoint.running() as model:
        checkpoint = checkpoint.now()
        provenance = [checkpoint.provenance(encoding) for encoding in encodings]
        output, calls = watched(checkpoint, model, inputs)
        if checkpoint.description.shows_qkv:
            return _cut_calls(output, calls, encodings, provenance, checkpoint)
        return _cut_weights(output, encodings, provenance, checkpoint)


def watched(
    checkpoint: Checkpoint, model: Any, inputs: Mapping[str, torch.Tensor]
) -> tuple[Any, list[AttentionCall]]:
    """A padded batch through the model, and what the attention of each layer was given.

    Args:
        model: of the checkpoint, while that is running.

    Returns:
        The model's output, with all hidden states; and a call a layer. A model that does not show these has
        ``output.attentions`` instead.

    Raises:
        ArchitectureError: another number of calls than of layers.
    """
    fused = checkpoint.description.shows_qkv
    with recording() as calls:
        output = model(**inputs, output_hidden_states=True, output_attentions=not fused)
    layers = len(output.hidden_states) - 1
    if fused and len(calls) != layers:
        raise ArchitectureError(
            f"{checkpoint.description.architecture} made {len(calls)} attention calls in {layers} layers, "
            "so its heads cannot be told apart."
        )
    return output, calls


def run_plainly(checkpoint: Checkpoint, encoding: Encoding) -> None:
    """One text through the model for whoever is watching; what it returns is of no interest."""
    with torch.inference_mode(), checkpoint.running() as model:
        model(**batch(checkpoint, [encoding]))


def as_array(tensor: torch.Tensor) -> Array:
    """float64 as it is, everything else as float32, which holds every smaller type exactly."""
    kept = tensor if tensor.dtype == torch.float64 else tensor.float()
    array: Array = kept.cpu().numpy()
    return array


def _cut(tensors: Sequence[torch.Tensor], lengths: Sequence[int], axis: int) -> list[tuple[Array, ...]]:
    """Each text's part of every layer, without its padding."""
    layers = [_parts(as_array(tensor), lengths, axis) for tensor in tensors]
    return [tuple(layer[row] for layer in layers) for row in range(len(lengths))]


def _parts(batched: Array, lengths: Sequence[int], axis: int) -> list[Array]:
    """Each text's part. A batch of one text is not copied; of a larger one each part would hold all of it."""
    if batched.shape[0] == 1 and batched.shape[axis + 1] == lengths[0]:
        return [read_only(batched[0])]
    # By numpy, for which a small copy takes a tenth of the time that it takes torch.
    tokens: list[Any] = [(row, *[slice(None)] * axis, slice(length)) for row, length in enumerate(lengths)]
    return [read_only(batched[part].copy()) for part in tokens]


def _common(output: Any, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """What every model shows of each text."""
    states = _cut(output.hidden_states, lengths, axis=0)
    pooled = getattr(output, "pooler_output", None)
    poolers: Sequence[Array | None] = [None] * len(lengths)
    if pooled is not None:
        poolers = _parts(as_array(pooled), [pooled.shape[1]] * len(lengths), axis=0)
    return [{"states": own, "pooler": pooler} for own, pooler in zip(states, poolers, strict=True)]


def _cut_calls(
    output: Any,
    calls: list[AttentionCall],
    encodings: Sequence[Encoding],
    provenance: Sequence[Mapping[str, Any]],
    made_by: Checkpoint,
) -> list[Trace]:
    lengths = [len(encoding) for encoding in encodings]
    queries = _cut([call.query for call in calls], lengths, axis=1)
    keys = _cut([_each_head(call.key, call.query) for call in calls], lengths, axis=1)
    values = _cut([_each_head(call.value, call.query) for call in calls], lengths, axis=1)
    common = _common(output, lengths)
    return [
        Trace(
            encoding=encoding,
            queries=queries[row],
            keys=keys[row],
            values=values[row],
            scaling=tuple(call.scaling for call in calls),
            masks=_masks(calls, row, lengths[row]),
            provenance=provenance[row],
            made_by=made_by,
            **common[row],
        )
        for row, encoding in enumerate(encodings)
    ]


def _each_head(grouped: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Keys or values for each query head: grouped ones (Ainslie et al. 2023) repeated."""
    repeats = query.shape[1] // grouped.shape[1]
    return grouped if repeats == 1 else grouped.repeat_interleave(repeats, dim=1)


def _masks(calls: list[AttentionCall], row: int, length: int) -> tuple[Array | None, ...]:
    """One text's mask a layer. Layers usually share one tensor, and then share one array."""
    seen: dict[int, Array | None] = {}
    for call in calls:
        if id(call.mask) not in seen:
            seen[id(call.mask)] = _mask(call.mask, row, length)
    return tuple(seen[id(call.mask)] for call in calls)


def _mask(mask: torch.Tensor | None, row: int, length: int) -> Array | None:
    if mask is None:
        return None
    part = mask[row if mask.shape[0] > 1 else 0, :, :length, :length]
    if bool(part.all() if part.dtype == torch.bool else (part == 0).all()):
        return None
    part = part[0] if part.shape[0] == 1 else part
    # A copy, for the mask of a batch would hold all of it, and may be an expanded view.
    kept = part.cpu().numpy() if part.dtype == torch.bool else as_array(part)
    return read_only(kept.copy())


def _cut_weights(
    output: Any,
    encodings: Sequence[Encoding],
    provenance: Sequence[Mapping[str, Any]],
    made_by: Checkpoint,
) -> list[Trace]:
    layers = len(output.hidden_states) - 1
    weights = [layer for layer in output.attentions or () if layer is not None]
    shape = tuple(output.hidden_states[0].shape[:2])
    if len(weights) != layers or any(
        (layer.shape[0], *layer.shape[2:]) != (*shape, shape[1]) for layer in weights
    ):
        raise ArchitectureError(
            f"{provenance[0]['architecture']} does not show a full attention matrix for every layer."
        )
    tolerance = max(1e-4, 16 * torch.finfo(weights[0].dtype).eps)
    lengths = [len(encoding) for encoding in encodings]
    of_texts, common = _cut(weights, lengths, axis=1), _common(output, lengths)
    traces = []
    for row, encoding in enumerate(encodings):
        own = tuple(part[:, :, : lengths[row]] for part in of_texts[row])
        # Approximations of attention come under the same name, but are no distribution over the keys.
        off = max(float(np.abs(part.sum(axis=-1) - 1).max()) for part in own)
        if not off <= tolerance:
            raise ArchitectureError(
                f"{provenance[row]['architecture']} has attention rows that do not sum to 1 for this text "
                f"(off by {off:.2g}), so they are not shown. Try a shorter text or another model."
            )
        traces.append(
            Trace(
                encoding=encoding,
                weights=own,
                provenance=provenance[row],
                made_by=made_by,
                **common[row],
            )
        )
    return traces
