"""Create traces from external attention weights, for example from a decoder, an image model or a file."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from bert_probe.errors import SelectionError, ShapeError, TextError, memory_errors
from bert_probe.model.encoding import SPACE, Encoding, Token
from bert_probe.model.lengths import check_text
from bert_probe.model.loading import library_versions
from bert_probe.model.trace import Array, Trace, read_only

SPECIALS = frozenset(
    {
        *("[CLS]", "[SEP]", "[PAD]", "[BOS]", "[EOS]"),
        *("<s>", "</s>", "<pad>", "<cls>", "<sep>", "<bos>", "<eos>"),
        *("<|endoftext|>", "<|startoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"),
        *("<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>"),
    }
)
"""Tokens that are treated as special by default."""

ARCHITECTURE = "External attention"
"""Used instead of a model's class name in messages about external attention."""


def from_attention(
    weights: Any,
    tokens: Sequence[str] | Encoding | None = None,
    *,
    sentence_b_start: int | None = None,
    specials: Collection[str | int] | None = None,
    name: str = "external attention",
) -> Trace:
    """Return a trace of external attention, for analyses that need only attention weights.

    The trace has no vectors, queries, keys or values; analyses that need these arrays raise an error. The
    weights are copied: float64 stays float64, and all other types become float32. If rows do not sum to 1,
    `Trace.caveat` contains a warning.

    Args:
        weights: an array of shape [layer, head, query, key], or a list of layers of shape [head, query, key]
            or [1, head, query, key]. NumPy arrays, torch tensors and anything that NumPy can convert are
            allowed. Weights must not be negative.
        tokens: one string per position, which counts as a word; or an `Encoding`, which also contains words
            and character spans. If None, the tokens are the positions from 0, for example for image patches.
        sentence_b_start: position of the second text's first token, if there are two texts.
        specials: names or positions of special tokens; by default `SPECIALS`.
        name: name for the provenance, exported files and figures.

    Raises:
        ShapeError: the weights have a different shape; layers differ in their number of heads; the numbers of
            queries, keys and tokens differ; or a weight is NaN, infinite or negative.
        TextError: a token is not a string.
        SelectionError: `sentence_b_start` is out of range, or `specials` contains a name or position that
            the tokens lack.
        OutOfMemoryError: there is not enough memory for the copy.
    """
    with memory_errors("The attention needs more memory than is available. Pass fewer layers."):
        layers = layers_of(weights)
        _check_layers(layers)
        caveat = _caveat(layers, _sum_tolerance(weights))
    count = layers[0].shape[-1]
    if isinstance(tokens, Encoding):
        if specials is not None or sentence_b_start is not None:
            raise SelectionError(
                "An Encoding already defines its texts and special tokens. Omit sentence_b_start and "
                "specials, or pass a list of tokens."
            )
        encoding = tokens
    else:
        encoding = _encoding(_names(tokens, count), sentence_b_start, specials)
    if len(encoding) != count:
        raise ShapeError(
            f"The attention has {count} tokens, but tokens has {len(encoding)} entries. Pass one token for "
            "each query."
        )
    provenance = _provenance(name, layers, encoding)
    return Trace(
        encoding=encoding,
        states=(),
        pooler=None,
        provenance=provenance | ({"caveat": caveat} if caveat else {}),
        weights=tuple(map(read_only, layers)),
        caveat=caveat,
    )


def layers_of(weights: Any) -> list[Array]:
    """Copy each layer's attention to an array of shape [head, query, key]; all layers get the same dtype."""
    layers = weights if isinstance(weights, list | tuple) else _array(weights, "The attention")
    if (isinstance(layers, Array) and layers.ndim == 0) or len(layers) == 0:
        raise ShapeError("The attention has no layers. Pass an array of shape [layer, head, query, key].")
    arrays = []
    for number, layer in enumerate(layers, 1):
        if layer is None:
            raise ShapeError(
                f"Layer {number} is None, because fused attention does not return weights. Load the model "
                "with attn_implementation='eager' and call it with output_attentions=True."
            )
        array = _array(layer, f"Layer {number}")
        array = array[0] if array.ndim == 4 and len(array) == 1 else array
        if array.ndim != 3 or 0 in array.shape:
            raise ShapeError(
                f"Layer {number} must have shape [head, query, key] or [1, head, query, key], not "
                f"{array.shape}. Pass the layers of a single text."
            )
        arrays.append(array)
    dtype = np.result_type(*arrays)
    return [np.array(array, dtype=dtype, order="C") for array in arrays]


def _array(values: Any, name: str) -> Array:
    """Convert numbers to an array; float64 stays float64, and all other real types become float32."""
    if isinstance(values, torch.Tensor):
        values = values.detach()
        is_float64 = values.dtype in (torch.float64, torch.complex128)
        # Convert bfloat16, which NumPy does not support.
        values = (values if is_float64 or values.is_complex() else values.float()).cpu()
    try:
        array = np.asarray(values)
    except ValueError:  # NumPy rejects nested lists of unequal lengths.
        raise ShapeError(f"{name} has rows of different lengths. Pass a rectangular array.") from None
    if array.dtype.kind not in "fiub":
        raise ShapeError(f"{name} has dtype {array.dtype}, but must contain real numbers. Pass floats.")
    return array if array.dtype == np.float64 else array.astype(np.float32)


def _check_layers(layers: list[Array]) -> None:
    """Raise an error unless all layers have the same square shape and finite, nonnegative weights."""
    heads, queries, keys = layers[0].shape
    if queries != keys:
        raise ShapeError(
            f"The attention has {queries} queries and {keys} keys, but the query tokens and the key "
            "tokens must be the same. Pass the self-attention of a complete text."
        )
    for number, layer in enumerate(layers, 1):
        if layer.shape != (heads, queries, keys):
            raise ShapeError(
                f"Layer {number} has shape {layer.shape}, but layer 1 has shape {layers[0].shape}. All "
                "layers must have the same number of heads and tokens."
            )
        invalid = ~np.isfinite(layer) | (layer < 0)
        if invalid.any():
            head, query, key = (int(indices[0]) for indices in np.nonzero(invalid))
            raise ShapeError(
                f"Layer {number}, head {head + 1} has attention {layer[head, query, key]} from token {query} "
                f"to token {key}, but attention must be finite and not negative. Remove these tokens, or "
                "pass weights after the softmax."
            )


def _sum_tolerance(weights: Any) -> float:
    """Return the tolerance for the difference of row sums from 1.

    It is the machine epsilon for bfloat16 and float16, and 1e-4 for all other data types.
    """
    dtypes = {
        str(getattr(layer, "dtype", ""))
        for layer in (weights if isinstance(weights, list | tuple) else [weights])
    }
    return max(_SUM_TOLERANCES.get(dtype.removeprefix("torch."), 1e-4) for dtype in dtypes)


_SUM_TOLERANCES = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


def _caveat(layers: list[Array], tolerance: float) -> str:
    """Return a warning if any row does not sum to 1; otherwise ""."""
    sums = [layer.sum(axis=-1, dtype=np.float64) for layer in layers]
    smallest, largest = (
        min(float(layer_sums.min()) for layer_sums in sums),
        max(float(layer_sums.max()) for layer_sums in sums),
    )
    if max(1 - smallest, largest - 1) <= tolerance:
        return ""
    return (
        "The rows of this external attention do not sum to 1 as after a softmax: their sums range from "
        f"{smallest:.3g} to {largest:.3g}."
    )


def _names(tokens: Sequence[str] | None, count: int) -> list[str]:
    if tokens is None:
        return [str(position) for position in range(count)]
    if isinstance(tokens, str):
        raise TextError("tokens must be a list of strings, not a single string.")
    for token in tokens:
        check_text(token)
    return [str(token) for token in tokens]


def _encoding(names: list[str], second_start: int | None, specials: Collection[str | int] | None) -> Encoding:
    """Return an encoding whose text consists of the tokens, joined by spaces; each token counts as a word."""
    if second_start is not None and not 0 < second_start < len(names):
        raise SelectionError(
            f"The second text cannot begin at token {second_start}. Pass a position from 1 to "
            f"{len(names) - 1}."
        )
    special = _special_positions(names, specials)
    texts: tuple[list[str], list[str]] = ([], [])
    ends = [0, 0]
    tokens = []
    for position, name in enumerate(names):
        segment = int(second_start is not None and position >= second_start)
        words, start = texts[segment], ends[segment]
        tokens.append(
            Token(
                name,
                position=position,
                id=-1,
                segment=segment,
                word=None if position in special else len(words),
                start=None if position in special else start,
                end=None if position in special else start + len(name),
                special=position in special,
                split_word=False,
                display=name.strip(" ") or SPACE * max(1, len(name)),
            )
        )
        if position not in special:
            words.append(name)
            ends[segment] += len(name) + 1
    text, pair = (" ".join(text) for text in texts)
    return Encoding(text, None if second_start is None else pair, tuple(tokens), {}, None, 0)


def _special_positions(names: list[str], specials: Collection[str | int] | None) -> set[int]:
    """Return the positions of the tokens in `specials`, which contains names and positions."""
    if specials is None:
        return {position for position, name in enumerate(names) if name in SPECIALS}
    if isinstance(specials, str):
        raise SelectionError("specials must be a list of names or positions, not a single string.")
    available = {*names, *range(len(names))}
    missing = [special for special in specials if special not in available]
    if missing:
        raise SelectionError(
            f"{missing[0]!r} in specials is not a token or position of the input. Pass names or positions."
        )
    return {position for position, name in enumerate(names) if name in specials or position in specials}


def _provenance(name: str, layers: list[Array], encoding: Encoding) -> dict[str, Any]:
    """Return the provenance of external attention, including a digest of its weights.

    ``attention_sha256`` covers the layers in order, each [head, query, key] in row-major order,
    little-endian, with the data type of the ``dtype`` entry.
    """
    digest = hashlib.sha256()
    for layer in layers:
        digest.update(layer.astype(layer.dtype.newbyteorder("<"), copy=False).data)
    return {
        "model": name,
        "origin": "given",
        "revision": None,
        "architecture": ARCHITECTURE,
        "weights_sha256": None,
        "attention_sha256": digest.hexdigest(),
        "dtype": str(layers[0].dtype),
        "layers": len(layers),
        "heads": len(layers[0]),
        "libraries": dict(library_versions()),
        "text": encoding.text,
        "pair": encoding.pair,
        "tokens": len(encoding),
        "tokens_dropped": encoding.dropped,
    }
