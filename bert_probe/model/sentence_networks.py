"""Pooling modes and networks that are equivalent to sentence-transformers modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from bert_probe.errors import CheckpointError, UnavailableError
from bert_probe.model.preflight import read_headers
from bert_probe.model.sentence_router import AGAIN, REMEDY
from bert_probe.model.sources import check_readable, digest, has_file
from bert_probe.model.weights import hold_read_lease


class DenseNetwork(torch.nn.Module):
    """Equivalent of sentence-transformers' Dense, with the same weight names."""

    def __init__(self, inputs: int, outputs: int, bias: bool, residual: bool) -> None:
        super().__init__()
        self.activation_function: torch.nn.Module = torch.nn.Identity()
        self.linear = torch.nn.Linear(inputs, outputs, bias)
        self.adds_input = residual
        if residual and inputs != outputs:
            self.residual = torch.nn.Linear(inputs, outputs, bias=False)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return activation(linear(vectors)), plus the residual if there is one."""
        output: torch.Tensor = self.activation_function(self.linear(vectors))
        if self.adds_input:
            output = output + (self.residual(vectors) if hasattr(self, "residual") else vectors)
        return output


class LayerNormNetwork(torch.nn.Module):
    """Equivalent of sentence-transformers' LayerNorm, with the same weight names."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(size)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the normalized vectors."""
        return self.norm(vectors)  # type: ignore[no-any-return]


class NormalizeNetwork(torch.nn.Module):
    """Equivalent of sentence-transformers' Normalize (L2 normalization)."""

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """L2-normalize the vectors; zero vectors stay zero."""
        return torch.nn.functional.normalize(vectors, dim=-1)


def activation_named(path: Any, owner: str) -> torch.nn.Module:
    """Create an activation module from its class path, such as torch.nn.modules.activation.Tanh.

    Args:
        owner: subject of the error message, such as "The module Dense".

    Raises:
        UnavailableError: torch.nn has no such activation, the activation needs arguments, or its output and
            input have different shapes.
    """
    package, _, name = str(path).rpartition(".")
    cls = getattr(torch.nn, name, None)
    is_activation = isinstance(cls, type) and cls.__module__ in (
        torch.nn.modules.activation.__name__,
        torch.nn.Identity.__module__,
    )
    try:
        if package in ("torch.nn", getattr(cls, "__module__", "")) and is_activation:
            # Softmax without `dim` raises a warning and guesses the dimension from the number of axes.
            options = {"dim": -1} if name in ("Softmax", "LogSoftmax", "Softmin") else {}
            activation: torch.nn.Module = cls(**options).eval()  # type: ignore[misc]
            if activation(torch.zeros(1, 2)).shape == (1, 2):  # excludes GLU, which halves the last dimension
                return activation
    except (TypeError, ValueError):  # raised by classes that need arguments or images
        pass
    raise UnavailableError(
        f"{owner} has the activation {str(path)[:100]}, but only the activations of torch.nn are "
        f"supported. {REMEDY}"
    )


@dataclass(frozen=True, eq=True)
class SentenceModule:
    """A module of sentence-transformers that maps vectors to vectors.

    Attributes:
        kind: "Dense", "LayerNorm" or "Normalize".
        settings: names and values of the settings that, with the weights, determine the output.
        sha256: SHA-256 of the module's weight file; "" for a module without weights.
        network: the equivalent torch module with its weights.
    """

    kind: str
    settings: tuple[tuple[str, Any], ...] = ()
    sha256: str = ""
    network: torch.nn.Module = field(default_factory=lambda: NormalizeNetwork(), compare=False, repr=False)

    def __call__(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return the output for vectors of shape […, size], in the dtype and on the device of the vectors."""
        weights = {name: weight.to(vectors) for name, weight in self.network.named_parameters()}
        return torch.func.functional_call(self.network, weights, vectors)  # type: ignore[no-any-return]

    def parameter(self, name: str) -> torch.Tensor:
        """Return a weight by its name in the checkpoint."""
        return self.network.get_parameter(name)

    @property
    def epsilon(self) -> float:
        """Return the epsilon that LayerNorm adds to the variance."""
        assert isinstance(self.network, LayerNormNetwork)
        return self.network.norm.eps

    @property
    def activation(self) -> str:
        """Return the class name of a Dense module's activation; "Identity" for all other modules."""
        return str(dict(self.settings).get("activation", "Identity"))

    def __str__(self) -> str:
        """Return a readable description, such as “Dense to 256 (Tanh)”."""
        if self.kind != "Dense":
            names = {"Normalize": "normalized", "MaskedLM": "logits of the masked-language-modeling head"}
            return names.get(self.kind, self.kind)
        settings = dict(self.settings)
        details = [] if self.activation == "Identity" else [self.activation]
        details += ["with residual"] if settings["residual"] else []
        return f"Dense to {settings['size']:,}" + (f" ({', '.join(details)})" if details else "")

    @property
    def config(self) -> dict[str, Any]:
        """Return the module's config in the format of sentence-transformers."""
        if isinstance(self.network, DenseNetwork):
            linear, activation = self.network.linear, self.network.activation_function
            return {
                "in_features": linear.in_features,
                "out_features": linear.out_features,
                "bias": linear.bias is not None,
                "activation_function": f"{type(activation).__module__}.{self.activation}",
                "use_residual": self.network.adds_input,
            }
        return (
            {"dimension": self.network.norm.normalized_shape[0]}
            if isinstance(self.network, LayerNormNetwork)
            else {}
        )

    @property
    def about(self) -> dict[str, Any]:
        """Return kind, settings and digest as JSON-compatible values, for the provenance."""
        weights = {"sha256": self.sha256} if self.sha256 else {}
        return {"kind": self.kind, **dict(self.settings), **weights}


def load_weights(network: torch.nn.Module, path: Path, kind: str) -> str:
    """Load the weights of a module from its folder, and return their SHA-256.

    Raises:
        UnavailableError: the folder has no model.safetensors.
        CheckpointError: the file may not be read, is broken, or does not fit the config.
        WeightsError: the weights are integers.
    """
    file = path / "model.safetensors"
    if not has_file(path, file.name):
        raise UnavailableError(
            f"The weights of the module {kind} are missing or only available as a pickle ({path.name} "
            f"has no model.safetensors). Convert the model with bert-probe convert. {REMEDY}"
        )
    check_readable(file)
    expected = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    try:
        with hold_read_lease([file]), safe_open(file, framework="pt") as weights:
            shapes = {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
            if shapes != expected:
                raise CheckpointError(
                    f"The weights of the module {kind} have the shapes {str(shapes)[:300]}, but its config "
                    f"describes {expected}. {AGAIN}"
                )
            read_headers([file])  # rejects integers
            # Smaller types are converted to float32 without rounding.
            state = {
                name: tensor if tensor.dtype == torch.float64 else tensor.float()
                for name, tensor in ((name, weights.get_tensor(name).clone()) for name in shapes)
            }
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"The weights of the module {kind} are broken ({error}). {AGAIN}") from None
    if not all(tensor.isfinite().all() for tensor in state.values()):
        raise CheckpointError(
            f"The weights of the module {kind} contain values that are not finite numbers. {AGAIN}"
        )
    network.load_state_dict(state, assign=True)
    network.eval().requires_grad_(False)
    return digest([file])


class Pooling(Protocol):
    """Protocol for pooling settings: those of a `SentenceModel`, or settings selected by the user."""

    @property
    def modes(self) -> tuple[str, ...]:
        """Keys of `MODES`, or "pooler"; the results are concatenated in this order."""

    @property
    def token_modules(self) -> tuple[SentenceModule, ...]:
        """Modules applied to the hidden states before pooling."""

    @property
    def vector_modules(self) -> tuple[SentenceModule, ...]:
        """Modules applied to the pooled vector."""

    @property
    def dimensions(self) -> int | None:
        """Number of dimensions to which the vector is truncated; None if it is not truncated."""


def pool_states(
    states: torch.Tensor, mask: torch.Tensor, pooling: Pooling, pooler: torch.Tensor | None = None
) -> torch.Tensor:
    """Pool a batch of texts into vectors of shape [text, size].

    Args:
        states: last hidden states, [text, token, hidden].
        mask: 1 for tokens to pool, 0 for all other tokens, [text, token].
        pooling: modes, and modules before and after pooling.
        pooler: the pooler's output, [text, hidden]; required for the mode "pooler".

    Returns:
        The vectors, in float32, or in float64 for float64 states.
    """
    if pooling.modes[0].startswith("splade"):
        pooled = _pool_logits(states, mask, pooling)
    else:
        states = token_states(states, pooling.token_modules)
        token_mask = mask[..., None].to(states.dtype)
        parts = [
            at_least_float32(pooler)
            if mode == "pooler" and pooler is not None
            else MODES[mode](states, token_mask)
            for mode in pooling.modes
        ]
        pooled = torch.cat(parts, dim=-1)
    for module in pooling.vector_modules:
        pooled = module(pooled)
    return pooled[..., : pooling.dimensions]


def _pool_logits(states: torch.Tensor, mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Return the vectors of a sparse encoder, of shape [text, vocabulary].

    The logits are computed and pooled in blocks of tokens, because all logits of a long text can need
    gigabytes.
    """
    (mode,), words = pooling.modes, dict(pooling.token_modules[-1].settings)["size"]
    add = torch.maximum if "max" in mode else torch.add
    size = max(1, _BLOCK_LOGITS // (len(states) * words))
    vectors: torch.Tensor | None = None
    for first in range(0, states.shape[1], size):
        logits = token_states(states[:, first : first + size], pooling.token_modules)
        part = MODES[mode](logits, mask[:, first : first + size, None].to(logits.dtype))
        vectors = part if vectors is None else add(vectors, part)
    assert vectors is not None
    return vectors


def token_states(states: torch.Tensor, modules: Sequence[SentenceModule]) -> torch.Tensor:
    """Apply token modules to last hidden states; return float32, or float64 for float64 states."""
    states = at_least_float32(states)
    for module in modules:
        states = at_least_float32(module(states))
    return states


def at_least_float32(states: torch.Tensor) -> torch.Tensor:
    """Return the states in float32, or in float64 if they are float64."""
    return states if states.dtype == torch.float64 else states.float()


def _sum(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (states * mask).sum(dim=1)


def _first(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return states[torch.arange(len(states), device=states.device), mask[..., 0].argmax(dim=1)]


def _last(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    positions = torch.arange(mask.shape[1], device=mask.device, dtype=mask.dtype)
    last = (mask[..., 0] * positions).argmax(dim=1)
    return states[torch.arange(len(states), device=states.device), last]


def _weighted(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    # Positions count from the first token of the input, even if the prompt is not pooled.
    weights = mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)[None, :, None]
    return _sum(states, weights) / weights.sum(dim=1)


_BLOCK_LOGITS = 2**24
"""Maximum number of logits that a sparse encoder computes at once; 67 MB in float32."""
MODES: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mean": lambda states, mask: _sum(states, mask) / mask.sum(dim=1),
    "cls": _first,
    "max": lambda states, mask: states.masked_fill(mask == 0, -torch.inf).amax(dim=1),
    "mean_sqrt_len_tokens": lambda states, mask: _sum(states, mask) / mask.sum(dim=1).sqrt(),
    "weightedmean": _weighted,
    "lasttoken": _last,
    "splade_max": lambda logits, mask: (logits * mask).relu().log1p().amax(dim=1),
    "splade_sum": lambda logits, mask: (logits * mask).relu().log1p().sum(dim=1),
    "splade_max_log1p": lambda logits, mask: (logits * mask).relu().log1p().log1p().amax(dim=1),
    "splade_sum_log1p": lambda logits, mask: (logits * mask).relu().log1p().log1p().sum(dim=1),
}
"""Maps sentence-transformers' pooling modes to functions that pool vectors or logits of shape
[text, token, size] with a [text, token, 1] mask of 0 and 1 into vectors of shape [text, size].
"""
