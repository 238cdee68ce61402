"""Reference values from transformers' own model, computed without the code of the package.

The only exception is the package's function `keep_float64`, which `tests/model/test_from_model.py` tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig

from bert_probe.model.encoding import Encoding
from bert_probe.model.from_model import keep_float64
from bert_probe.model.trace import Trace
from tests.helpers.exactness import EXACT, Expected, own_error, tolerance
from tests.helpers.families import model_class

_PROJECTIONS = (
    "attention.output.dense",
    "attention.out_lin",
    "attention.out_proj",
    "albert_layers.0.attention.dense",
    "attn.Wo",
    "attn.o",
    *(f"attentions.{layer}.out_lin" for layer in range(3)),
    "self_attn.o_proj",
    "attn.c_proj",
    "attention.dense",
    "SelfAttention.o",
    "self_attn.out_proj",
)


@dataclass(frozen=True, eq=False)
class Numbers:
    """The raw model's output arrays for one text, with their tolerance.

    Attributes:
        arrays: arrays by name: "attention 0", … of shape [head, query, key]; "state 0", … of shape
            [token, hidden], where state 0 is the embeddings; and, if the model has a pooler, "pooler" of
            shape [hidden].
        share: tolerance relative to the largest value of an array.
    """

    arrays: dict[str, np.ndarray]
    share: float

    def check(self, trace: Trace) -> None:
        """Assert that a trace has the values in `arrays`, for complete layers and for individual heads."""
        layers = range(trace.layers)
        ours = {f"attention {layer}": trace.attention(layer) for layer in layers}
        ours |= {f"state {layer}": state for layer, state in enumerate(trace.hidden_states)}
        ours |= {} if trace.pooler is None else {"pooler": trace.pooler}
        assert ours.keys() == self.arrays.keys()
        for name, expected in self.arrays.items():
            assert ours[name].shape == expected.shape
            self.near(ours[name], expected, name)
        for layer in layers:
            for head, expected in enumerate(self.arrays[f"attention {layer}"]):
                self.near(trace.attention(layer, head), expected, f"attention {layer}, head {head}")

    def near(self, actual: Any, expected: np.ndarray, label: str) -> None:
        """Assert that `actual` equals `expected` within the tolerance."""
        Expected(expected, self.share).check(actual, label)


class Raw:
    """A raw transformers model with eager attention, in float32 (with a float64 reference) or float64."""

    def __init__(self, folder: str | Path, dtype: str = "float32") -> None:
        self.folder = folder
        self.dtype = dtype
        self._last: tuple[Encoding, Any] | None = None
        config = AutoConfig.from_pretrained(folder)
        if getattr(config, "attention_type", "") == "block_sparse":
            # With "block_sparse", transformers uses full attention for short texts, but returns no weights.
            config.attention_type = "original_full"
        self.model = model_class(config).from_pretrained(
            folder, config=config, attn_implementation="eager", dtype=getattr(torch, dtype)
        )
        if config.is_encoder_decoder:
            self.model = self.model.encoder
        self.model.eval()
        if dtype == "float64":
            keep_float64(self.model)

    @property
    def has_pooler(self) -> bool:
        """Return whether the model has a pooler module."""
        return hasattr(self.model, "pooler")

    @cached_property
    def twin(self) -> Raw:
        """Return the float64 reference: a model with the same weights in float64."""
        return Raw(self.folder, "float64")

    def run(self, encoding: Encoding) -> Any:
        """Return the output of transformers for one text."""
        inputs = {name: torch.tensor(ids)[None] for name, ids in encoding.inputs.items()}
        with torch.inference_mode():
            output = self.model(**inputs, output_attentions=True, output_hidden_states=True)
        if getattr(self.model.config, "attention_window", None):
            output.attentions = tuple(_matrix_of_window(weights) for weights in output.attentions)
        return output

    def arrays(self, encoding: Encoding) -> dict[str, np.ndarray]:
        """Return the arrays of `Numbers` for one text."""
        return _arrays(self.run(encoding), self.has_pooler)

    def numbers(self, encoding: Encoding) -> Numbers:
        """Return the values for one text. In float32, the raw model's own error sets the tolerance."""
        arrays = self.arrays(encoding)
        if self.dtype == "float64":
            return Numbers(arrays, EXACT)
        return Numbers(arrays, _share(arrays, _arrays(self.twin.run(encoding), self.has_pooler)))

    def expect(self, encoding: Encoding, formula: Callable[[Any], Any]) -> Expected:
        """Return the value of a formula for one text, with a tolerance that includes the formula's error.

        Args:
            formula: function from the output of transformers to an array, which is converted to float64.
        """
        return self.expect_of([encoding], formula)

    def expect_of(self, encodings: Sequence[Encoding], formula: Callable[..., Any]) -> Expected:
        """Return the value of a formula that takes the outputs of several texts; see `expect`."""
        outputs = [self._known(encoding) for encoding in encodings]
        values = np.asarray(formula(*outputs), dtype=np.float64)
        if self.dtype == "float64":
            return Expected(values, EXACT)
        twins = [self.twin._known(encoding) for encoding in encodings]
        theirs = np.asarray(formula(*twins), dtype=np.float64)
        shares = [_share(_arrays(output), _arrays(twin)) for output, twin in zip(outputs, twins, strict=True)]
        return Expected(values, max(*shares, tolerance([own_error(values, theirs)])))

    def _known(self, encoding: Encoding) -> Any:
        """Return the raw output for one text; the output for the latest text is cached."""
        if self._last is None or self._last[0] is not encoding:
            self._last = (encoding, self.run(encoding))
        return self._last[1]

    @contextmanager
    def projected(self) -> Iterator[list[torch.Tensor]]:
        """Record the inputs of all output projections: the concatenated outputs of each layer's heads."""
        captured: list[torch.Tensor] = []
        handles = [
            module.register_forward_pre_hook(lambda _module, args: captured.append(args[0].detach().clone()))
            for name, module in self.model.named_modules()
            if name.endswith(_PROJECTIONS) and "bottleneck" not in name
        ]
        try:
            yield captured
        finally:
            for handle in handles:
                handle.remove()


def _matrix_of_window(weights: torch.Tensor) -> torch.Tensor:
    """Convert Longformer's attention from a window around each token to a matrix of all tokens."""
    length, half = weights.shape[2], weights.shape[3] // 2
    matrix = torch.zeros(*weights.shape[:3], length, dtype=weights.dtype)
    for query in range(length):
        for key in range(max(0, query - half), min(length, query + half + 1)):
            matrix[:, :, query, key] = weights[:, :, query, key - query + half]
    return matrix


def _share(arrays: dict[str, np.ndarray], doubles: dict[str, np.ndarray]) -> float:
    return tolerance(own_error(arrays[name], doubles[name]) for name in arrays)


def _arrays(output: Any, has_pooler: bool = True) -> dict[str, np.ndarray]:
    arrays = {f"attention {layer}": weights[0] for layer, weights in enumerate(output.attentions)}
    arrays |= {f"state {layer}": state[0] for layer, state in enumerate(output.hidden_states)}
    # CLIP and SigLIP apply the final norm to `last_hidden_state`, but not to the last of the `hidden_states`.
    # Their `pooler_output` is the vector of one token, so it is ignored if the model has no pooler.
    arrays[f"state {len(output.hidden_states) - 1}"] = output.last_hidden_state[0]
    if getattr(output, "pooler_output", None) is not None and has_pooler:
        arrays["pooler"] = output.pooler_output[0]
    return {name: tensor.numpy() for name, tensor in arrays.items()}
