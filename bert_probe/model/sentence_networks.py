"""Networks equivalent to sentence-transformers modules, with the same weight names, and their loading."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from bert_probe.errors import CheckpointError, UnavailableError
from bert_probe.model.sentence_router import AGAIN, REMEDY
from bert_probe.model.sources import digest
from bert_probe.model.weights import write_lease


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
    """L2 normalization."""

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """L2-normalize the vectors; zero vectors stay zero."""
        return torch.nn.functional.normalize(vectors, dim=-1)


def activation_named(path: Any, owner: str) -> torch.nn.Module:
    """Return the activation module with a name such as torch.nn.modules.activation.Tanh.

    Args:
        owner: what uses the activation, as the subject of the error message.

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
            if activation(torch.zeros(1, 2)).shape == (1, 2):  # GLU halves the vectors
                return activation
    except (TypeError, ValueError):  # the class needs arguments, as MultiheadAttention does, or images
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
        settings: the settings that determine its output, without its weights.
        sha256: SHA-256 of the file with its weights; "" without weights.
        network: the module with its weights.
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
        """The epsilon that LayerNorm adds to the variance."""
        assert isinstance(self.network, LayerNormNetwork)
        return self.network.norm.eps

    @property
    def activation(self) -> str:
        """The name of a Dense module's activation; "Identity" without an activation and for other modules."""
        return str(dict(self.settings).get("activation", "Identity"))

    def __str__(self) -> str:
        """Return a readable description, such as “Dense to 256 (Tanh)”."""
        if self.kind != "Dense":
            names = {"Normalize": "normalized", "MaskedLM": "logits of the masked-word head"}
            return names.get(self.kind, self.kind)
        settings = dict(self.settings)
        details = [] if self.activation == "Identity" else [self.activation]
        details += ["with residual"] if settings["residual"] else []
        return f"Dense to {settings['size']:,}" + (f" ({', '.join(details)})" if details else "")

    @property
    def config(self) -> dict[str, Any]:
        """The settings of the module in the format of sentence-transformers."""
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
        """The module as JSON-compatible values."""
        weights = {"sha256": self.sha256} if self.sha256 else {}
        return {"kind": self.kind, **dict(self.settings), **weights}


def load_weights(network: torch.nn.Module, path: Path, kind: str) -> str:
    """Load the weights of a module from its folder, and return their SHA-256.

    Raises:
        UnavailableError: the weights are only available as a pickle.
        CheckpointError: the file is broken, or does not fit the config.
    """
    file = path / "model.safetensors"
    if not file.is_file():
        raise UnavailableError(
            f"The weights of the module {kind} are only available as a pickle or missing ({path.name} has no "
            f"model.safetensors). Convert the model with bert-probe convert. {REMEDY}"
        )
    expected = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    try:
        with write_lease([file]), safe_open(file, framework="pt") as weights:
            shapes = {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
            if shapes != expected:
                raise CheckpointError(
                    f"The weights of the module {kind} have the shapes {str(shapes)[:300]}, but its config "
                    f"describes {expected}. {AGAIN}"
                )
            # Conversion from smaller types to float32 is exact.
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
