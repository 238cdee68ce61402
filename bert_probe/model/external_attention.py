"""Attention that somebody else computed, as a trace: a decoder's, an image model's, out of a file."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from bert_probe.errors import SelectionError, ShapeError, TextError, memory_errors
from bert_probe.model.encoding import SPACE, Encoding, Token
from bert_probe.model.lengths import check_text
from bert_probe.model.loading import libraries
from bert_probe.model.trace import Array, Trace, read_only

SPECIALS = frozenset(
    {
        *("[CLS]", "[SEP]", "[PAD]", "[BOS]", "[EOS]"),
        *("<s>", "</s>", "<pad>", "<cls>", "<sep>", "<bos>", "<eos>"),
        *("<|endoftext|>", "<|startoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"),
        *("<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>"),
    }
)
"""Tokens that are special ones unless it is said which are."""

ARCHITECTURE = "Attention from elsewhere"
"""What messages call it, as there is no model to name."""


def from_attention(
    weights: Any,
    tokens: Sequence[str] | Encoding | None = None,
    *,
    sentence_b_start: int | None = None,
    specials: Collection[str | int] | None = None,
    name: str = "attention from elsewhere",
) -> Trace:
    """Attention of any origin as a trace, for every question that asks about attention alone.

    It has no vectors, queries, keys or values: what needs them refuses. The numbers are copied, as float64
    if they are, else as float32. Rows need not sum to 1; where they do not, `Trace.caveat` says so.

    Args:
        weights: [layer, head, query, key], or a list of layers, each [head, query, key] or
            [1, head, query, key]; NumPy, torch on any device, or whatever NumPy can read. 0 or more.
        tokens: a string for each query, which is a key as well; each is then a word of its own. An
            `Encoding` of a tokenizer keeps its words and places in the text. None: numbers from 0, as for
            the patches of an image.
        sentence_b_start: position of the second text's first token, where there are two.
        specials: names or positions of special tokens; `SPECIALS` unless given.
        name: what files and pictures call it.

    Raises:
        ShapeError: not such an array; layers with other heads; queries that are not the keys; another number
            of tokens; NaN, infinite or negative numbers, which no view could draw.
        TextError: tokens that are no strings.
        SelectionError: a second text that begins outside, or a special token that is not there.
        OutOfMemoryError: the machine is too small to hold a copy.
    """
    with memory_errors("The attention needs more memory than is free here. Give fewer layers."):
        layers = layers_of(weights)
        _check(layers)
        caveat = _caveat(layers, _rounding(weights))
    count = layers[0].shape[-1]
    if isinstance(tokens, Encoding):
        if specials is not None or sentence_b_start is not None:
            raise SelectionError("An encoding knows its texts and special tokens. Give it alone, or a list.")
        encoding = tokens
    else:
        encoding = _encoding(_names(tokens, count), sentence_b_start, specials)
    if len(encoding) != count:
        raise ShapeError(f"{len(encoding)} tokens for attention over {count}. Give one for each query.")
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
    """Copies of the layers, each [head, query, key] and of one dtype."""
    several = weights if isinstance(weights, list | tuple) else _array(weights, "The attention")
    if (isinstance(several, Array) and several.ndim == 0) or len(several) == 0:
        raise ShapeError("There is no layer. Give attention as [layer, head, query, key].")
    parts = []
    for number, layer in enumerate(several, 1):
        if layer is None:
            raise ShapeError(
                f"Layer {number} is None. Fused attention keeps no weights: load the model with "
                "attn_implementation='eager' and ask it for output_attentions."
            )
        part = _array(layer, f"Layer {number}")
        part = part[0] if part.ndim == 4 and len(part) == 1 else part
        if part.ndim != 3 or 0 in part.shape:
            raise ShapeError(
                f"Layer {number} has shape {part.shape}; [head, query, key] is needed, or [1, head, query, "
                "key]. Give the layers of one text."
            )
        parts.append(part)
    dtype = np.result_type(*parts)
    return [np.array(part, dtype=dtype, order="C") for part in parts]


def _array(numbers: Any, what: str) -> Array:
    """float64 as it is, every other real number as float32."""
    if isinstance(numbers, torch.Tensor):
        numbers = numbers.detach()
        exact = numbers.dtype in (torch.float64, torch.complex128)
        # NumPy has no bfloat16.
        numbers = (numbers if exact or numbers.is_complex() else numbers.float()).cpu()
    try:
        array = np.asarray(numbers)
    except ValueError:  # lists of unequal lengths
        raise ShapeError(f"{what} is no array: its rows have different lengths.") from None
    if array.dtype.kind not in "fiub":
        raise ShapeError(f"{what} holds {array.dtype}, which are no real numbers. Give floats.")
    return array if array.dtype == np.float64 else array.astype(np.float32)


def _check(layers: list[Array]) -> None:
    """Refuse what cannot be drawn."""
    heads, queries, keys = layers[0].shape
    if queries != keys:
        raise ShapeError(
            f"There are {queries} queries and {keys} keys. Only attention of tokens to those same tokens can "
            "be shown: give the self-attention of a whole text."
        )
    for number, layer in enumerate(layers, 1):
        if layer.shape != (heads, queries, keys):
            raise ShapeError(
                f"Layer {number} has shape {layer.shape}, layer 1 {layers[0].shape}. Give layers with the "
                "same number of heads, over the same tokens."
            )
        wrong = ~np.isfinite(layer) | (layer < 0)
        if wrong.any():
            head, query, key = (int(place[0]) for place in np.nonzero(wrong))
            raise ShapeError(
                f"Layer {number}, head {head + 1} gives {layer[head, query, key]} from token {query} to "
                f"token {key}. Attention is a finite number, 0 or more: leave such tokens out, or give "
                "weights after the softmax."
            )


def _rounding(weights: Any) -> float:
    """How far a row may be off 1 for the numbers it was given in: a few ulps of the shorter types."""
    kinds = {
        str(getattr(part, "dtype", ""))
        for part in (weights if isinstance(weights, list | tuple) else [weights])
    }
    return max(_ROUNDING.get(kind.removeprefix("torch."), 1e-4) for kind in kinds)


_ROUNDING = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


def _caveat(layers: list[Array], rounding: float) -> str:
    """What to say of rows that do not sum to 1; "" if they do."""
    sums = [layer.sum(axis=-1, dtype=np.float64) for layer in layers]
    least, most = min(float(one.min()) for one in sums), max(float(one.max()) for one in sums)
    if max(1 - least, most - 1) <= rounding:
        return ""
    return (
        "This attention was given, and its rows do not sum to 1, as a softmax's would: they sum to between "
        f"{least:.3g} and {most:.3g}."
    )


def _names(tokens: Sequence[str] | None, count: int) -> list[str]:
    if tokens is None:
        return [str(position) for position in range(count)]
    if isinstance(tokens, str):
        raise TextError("Tokens must be a list of strings, not one string.")
    for token in tokens:
        check_text(token)
    return [str(token) for token in tokens]


def _encoding(names: list[str], second: int | None, specials: Collection[str | int] | None) -> Encoding:
    """Tokens as the words of a text that is made of them, with a space between."""
    if second is not None and not 0 < second < len(names):
        raise SelectionError(
            f"The second text cannot begin at token {second}. Give a position from 1, for the first needs "
            f"a token, to {len(names) - 1}."
        )
    special = _special(names, specials)
    texts: tuple[list[str], list[str]] = ([], [])
    ends = [0, 0]
    tokens = []
    for position, name in enumerate(names):
        segment = int(second is not None and position >= second)
        before, start = texts[segment], ends[segment]
        tokens.append(
            Token(
                name,
                position=position,
                id=-1,
                segment=segment,
                word=None if position in special else len(before),
                start=None if position in special else start,
                end=None if position in special else start + len(name),
                special=position in special,
                split_word=False,
                display=name.strip(" ") or SPACE * max(1, len(name)),
            )
        )
        if position not in special:
            before.append(name)
            ends[segment] += len(name) + 1
    text, pair = (" ".join(text) for text in texts)
    return Encoding(text, None if second is None else pair, tuple(tokens), {}, None, 0)


def _special(names: list[str], specials: Collection[str | int] | None) -> set[int]:
    """Positions of the special tokens."""
    if specials is None:
        return {position for position, name in enumerate(names) if name in SPECIALS}
    if isinstance(specials, str):
        raise SelectionError("Special tokens must be a list of names or positions, not one string.")
    known = {*names, *range(len(names))}
    missing = [special for special in specials if special not in known]
    if missing:
        raise SelectionError(f"There is no token {missing[0]!r} to be special. Give names or positions.")
    return {position for position, name in enumerate(names) if name in specials or position in specials}


def _provenance(name: str, layers: list[Array], encoding: Encoding) -> dict[str, Any]:
    """Where the numbers come from, as far as that is known: their own digest.

    ``attention_sha256`` is of the layers one after the other, each [head, query, key] in rows, as
    little-endian numbers of the dtype that is named.
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
        "libraries": dict(libraries()),
        "text": encoding.text,
        "pair": encoding.pair,
        "tokens": len(encoding),
        "tokens_dropped": encoding.dropped,
    }
