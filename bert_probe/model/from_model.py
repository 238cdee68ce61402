"""Create a checkpoint from a model in memory, and run models in float64.

Analyses leave a model in memory unchanged. Models in float64 are the reference for float32 results.
"""

from __future__ import annotations

import copy
import hashlib
import os
import threading
import weakref
from collections.abc import Hashable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import wraps
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from bert_probe.errors import ArchitectureError, UnavailableError, WeightsError
from bert_probe.model.architectures import (
    configs_of,
    limit_notes,
    other_part,
    other_part_notes,
    text_config,
    text_encoder,
)
from bert_probe.model.capture import IMPLEMENTATION
from bert_probe.model.checkpoint import Checkpoint, Description
from bert_probe.model.checks import (
    DTYPES,
    attention_errors,
    capture_problem,
    check_heads,
    pads,
    projections,
    running_errors,
    self_check,
    uses_interface,
)
from bert_probe.model.config import check_kind
from bert_probe.model.loading import (
    describe,
    library_versions,
    load,
    make_encoder,
    unused_note,
)
from bert_probe.model.outputs import OutputHead, outputs_of
from bert_probe.model.token_positions import check_positions
from bert_probe.model.weights import check_finite


def wrap(model: Any, tokenizer: Any) -> Checkpoint:
    """Return a checkpoint of a model that you have loaded or trained.

    No analysis changes the model's attention implementation, config, gradients, hooks, device or dtype, or
    the training mode of any module. You may train the model between two analyses; each trace records the
    digest of the weights that produced it. Wrapped models run one at a time. Do not train a model in another
    thread while an analysis runs. The tokenizer is copied.

    Args:
        model: a transformers encoder, or a model with a task head. Analyses use the encoder.
        tokenizer: the model's tokenizer.

    Raises:
        ArchitectureError: the model is not a transformers encoder, or hides its attention.
        WeightsError: the weights are not finite, have several dtypes, or are on several devices.
        TokenizerError: the tokenizer does not report character positions, and its tokens do not spell a test
            text.
    """
    unwrapped = getattr(model, "_orig_mod", model)  # torch.compile stores the original model in `_orig_mod`
    if not isinstance(unwrapped, PreTrainedModel):
        raise ArchitectureError(
            f"{type(model).__name__} is not a transformers model. Pass the model itself, without a wrapper."
        )
    network: Any = text_encoder(unwrapped)
    config = network.config
    name = config.name_or_path or type(unwrapped).__name__
    check_kind(name, unwrapped.config.model_type, unwrapped.config.to_dict())
    check_positions(tokenizer)
    _check_uniform(network, name)
    check_finite(network)
    versions = library_versions()
    with attention_errors(name, config), running_errors(name, network), _run_lock:
        with _prepared(network, IMPLEMENTATION):
            is_eager, no_qkv = not uses_interface(network), ""
        if is_eager:
            with _prepared(network, "eager"):
                no_qkv = capture_problem(network)
        heads = _heads(unwrapped, network)
        description = replace(
            describe(network, config, no_qkv, is_eager),
            name=name,
            origin="in memory",
            weights_sha256=digest(network),
            notes=() if heads else _notes(unwrapped, network),
            outputs_sha256=_digest(heads[0].weights) if heads else "",
        )
        encoder = make_encoder(copy.deepcopy(tokenizer), description, network)
        checkpoint = _InMemory(
            description,
            encoder,
            network,
            versions,
            outputs={head.task: head for head in heads},
        )
        snapshot = checkpoint.snapshot()
        with snapshot.running():
            description = self_check(snapshot)
            valid_heads, failure_notes = check_heads(snapshot, heads)
            if failure_notes:
                outputs_digest = _digest(valid_heads[0].weights) if valid_heads else ""
                description = replace(description, notes=tuple(failure_notes), outputs_sha256=outputs_digest)
            notes = (*limit_notes(config), *description.qkv_notes, *description.notes)
            description = replace(description, notes=notes)
            return replace(
                checkpoint,
                initial_description=description,
                outputs={head.task: head for head in valid_heads},
                pads=pads(snapshot),
                projections=projections(snapshot),
            )


def digest(network: torch.nn.Module) -> str:
    """Return the SHA-256 of a model's current weights.

    The digest covers one line per tensor of the state dict, sorted by name. A line has four values, separated
    by spaces: the name, the dtype, the shape separated by commas, and the SHA-256 of the elements in
    row-major order, little-endian.
    """
    return _digest(network.state_dict())


def _digest(state: Mapping[str, Any]) -> str:
    names = sorted(name for name, tensor in state.items() if isinstance(tensor, torch.Tensor))
    # Several threads are faster than one here, because hashlib releases the GIL.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        lines = list(threads.map(_line, names, (state[name] for name in names)))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _line(name: str, tensor: torch.Tensor) -> str:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    dtype, sizes = str(tensor.dtype).removeprefix("torch."), ",".join(map(str, tensor.shape))
    return f"{name} {dtype} {sizes} {hashlib.sha256(data.data).hexdigest()}\n"


_run_lock = threading.RLock()
"""Lock that is held while a wrapped model runs; all models share it, because they may share modules."""

_active: list[Checkpoint] = []
"""Snapshots that are running, the innermost last; owned by the thread that holds `_run_lock`."""


@dataclass(frozen=True, eq=False)
class _InMemory(Checkpoint):
    """The checkpoint of a model that other code may change; `description` describes its current state."""

    @property
    def description(self) -> Description:
        """Describe the model in its current state; the digest is recomputed on every access.

        Raises:
            UnavailableError: the model's modules or sizes have changed since it was wrapped.
        """
        with _run_lock:
            _check_uniform(self.model, self.initial_description.name)
            initial = self.initial_description
            current = describe(self.model, self.model.config, initial.no_qkv, initial.is_eager)
            description = replace(
                self.initial_description,
                dtype=current.dtype,
                device=current.device,
                weights_sha256=digest(self.model),
                outputs_sha256=next((_digest(output.weights) for output in self.outputs.values()), ""),
            )
            files = ("name", "origin", "weights_sha256", "notes", "outputs_sha256")
            copied = (*files, "heads", "is_causal", "values_per_token", "bias_count")
            if replace(current, **{field: getattr(description, field) for field in copied}) != description:
                raise UnavailableError(
                    f"{self.initial_description.name} has different modules or sizes than when it was "
                    "wrapped. Wrap the model again."
                )
            return description

    @property
    def cache_key(self) -> Hashable:
        """Return the cache key, which includes the model and tokenizer objects.

        The weights alone are not sufficient, because the output also depends on the config.
        """
        return self.description, weakref.ref(self.model), weakref.ref(self.tokenizer)

    @property
    def device(self) -> torch.device:
        """Return the current device of the model."""
        return next(self.model.parameters()).device

    def snapshot(self) -> Checkpoint:
        """Return a snapshot that is pinned to the current weights."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return _Snapshot(**values | {"initial_description": self.description})

    @contextmanager
    def running(self) -> Iterator[Any]:
        """Yield the model prepared for analysis, and restore its state afterwards."""
        models_with_heads = [output.model for output in self.outputs.values()]
        implementation = self.initial_description.implementation
        with _run_lock, _prepared(self.model, implementation, *models_with_heads), self._captured():
            yield self.model


@dataclass(frozen=True, eq=False)
class _Snapshot(_InMemory):
    """A wrapped model pinned to its current weights. Running it fails if the weights have changed."""

    @property
    def description(self) -> Description:
        """Return the description at the time of the snapshot."""
        return self.initial_description

    def snapshot(self) -> Checkpoint:
        """Return this object, which is already a snapshot."""
        return self

    @contextmanager
    def running(self) -> Iterator[Any]:
        """Yield the model after checking that it has not changed; nested contexts check only once.

        Raises:
            UnavailableError: the model has changed.
        """
        with _run_lock:
            if self not in _active:
                self._check_same()
            _active.append(self)
            try:
                with super().running() as model:
                    yield model
            finally:
                _active.pop()

    def _check_same(self) -> None:
        before, current = self.initial_description, super().description
        if current == before:
            return
        changed = [
            f"it is now {preposition} {getattr(current, field)} instead of {getattr(before, field)}"
            for field, preposition in (("dtype", "in"), ("device", "on"))
            if getattr(current, field) != getattr(before, field)
        ]
        raise UnavailableError(
            f"{before.name} has changed since the trace: {' and '.join(changed) or 'its weights differ'}. "
            "Trace the text again."
        )


@contextmanager
def _prepared(
    network: torch.nn.Module, implementation: str, *models_with_heads: torch.nn.Module
) -> Iterator[None]:
    """Prepare the model to run without dropout, autocast and compilation, and with named outputs.

    Inference mode is not used: a model may store tensors, and inference tensors cannot be used in training.

    Args:
        implementation: attention implementation while the model runs.
        models_with_heads: models with a task head that contain this encoder.
    """
    modules = list(
        dict.fromkeys(module for model in (network, *models_with_heads) for module in model.modules())
    )
    configs = configs_of(modules)
    saved = [_SavedAttributes.of(vars(attributes)) for attributes in (*modules, *configs)]
    device = next(network.parameters()).device.type
    try:
        for module in modules:
            module.training = False
            if module._compiled_call_impl is not None:
                module._compiled_call_impl = None
        for config in configs:
            config._attn_implementation = implementation
            config.return_dict, config.output_attentions, config.output_hidden_states = True, False, False
            if hasattr(config, "use_cache"):
                config.use_cache = False
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(device, enabled=False):
            yield
    finally:
        for attributes in saved:
            attributes.restore()


@dataclass(frozen=True, eq=False)
class _SavedAttributes:
    """A copy of an object's attributes and of attributes that are dictionaries (parameters, buffers, hooks).

    Running a model in transformers adds hooks and settings, which `restore` removes.

    Attributes:
        attributes: the object's attribute dictionary.
        copy: a copy of `attributes`.
        inner: (dictionary, copy) for each attribute that is a dictionary.
    """

    attributes: dict[str, Any]
    copy: dict[str, Any]
    inner: list[tuple[dict[Any, Any], dict[Any, Any]]]

    @classmethod
    def of(cls, attributes: dict[str, Any]) -> _SavedAttributes:
        """Copy an object's current attributes for `restore`."""
        inner = [(value, dict(value)) for value in attributes.values() if isinstance(value, dict)]
        return cls(attributes, dict(attributes), inner)

    def restore(self) -> None:
        """Restore the copied attributes.

        The dictionaries are changed in place, because other objects may refer to them.
        """
        for current, saved in ((self.attributes, self.copy), *self.inner):
            if current.keys() != saved.keys() or any(current[name] is not saved[name] for name in saved):
                current.clear()
                current.update(saved)


def _check_uniform(network: torch.nn.Module, name: str) -> None:
    """Raise an error for weights of several dtypes or on several devices."""
    for attribute, values in (
        ("dtype", {str(parameter.dtype).removeprefix("torch.") for parameter in network.parameters()}),
        ("device", {str(parameter.device) for parameter in network.parameters()}),
    ):
        if len(values) > 1:
            raise WeightsError(
                f"The weights of {name} have more than one {attribute}: {', '.join(sorted(values))}. "
                f"Convert the model to one {attribute}."
            )
        if values & {"meta"} or (attribute == "dtype" and not values <= set(DTYPES)):
            raise WeightsError(
                f"The weights of {name} have the {attribute} {', '.join(values)}, which is not supported. "
                f"Use {', '.join(DTYPES)} on a CPU or GPU."
            )


def _heads(model: Any, network: torch.nn.Module) -> list[OutputHead]:
    """Return the model's task heads; [] if any weight differs from the encoder in dtype or device."""
    heads = outputs_of(model) if model.base_model is network and model is not network else []
    weight = next(network.parameters())
    is_uniform = all(
        (parameter.device, parameter.dtype) == (weight.device, weight.dtype)
        for parameter in model.parameters()
    )
    return heads if is_uniform else []


def _notes(model: Any, network: torch.nn.Module) -> tuple[str, ...]:
    """Return notes about an unused decoder or vision model, and about the unused weights of a task head."""
    encoder_ids = {id(parameter) for parameter in network.parameters()}
    unused = sorted(name for name, parameter in model.named_parameters() if id(parameter) not in encoder_ids)
    config = text_config(model.config)
    _, prefixes = other_part(config)
    of_head = [name for name in unused if not name.removeprefix("model.").startswith(prefixes)]
    return (*other_part_notes(config, unused), *((unused_note(of_head),) if of_head else ()))


class Float64Mode(TorchFunctionMode):
    """A torch function mode that skips usual conversions of float64 tensors to float32.

    These are `Tensor.float()`, `Tensor.to(torch.float32)` and the dtype of `torch.nn.functional.softmax`.
    Some models always compute softmax, norms or rotary positions in float32, because float16 would be too
    imprecise. In a float64 model, these steps would be the least precise ones.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a torch function, but skip conversions from float64 to float32."""
        kwargs = dict(kwargs or {})
        if args and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
            if func is torch.Tensor.float or (func is torch.Tensor.to and torch.float32 in args):
                return args[0]
            if func is torch.nn.functional.softmax:
                kwargs.pop("dtype", None)
        return func(*args, **kwargs)


def keep_float64(model: torch.nn.Module) -> None:
    """Patch the forward method of a float64 model so that every step is computed in float64."""
    # A strong reference from the method to the model would be a cycle. The model would stay in memory until
    # Python's garbage collector happens to run.
    reference = weakref.ref(model)
    forward = type(model).forward

    @wraps(forward)
    def forward_in_float64(*args: Any, **kwargs: Any) -> Any:
        with Float64Mode():
            return forward(reference(), *args, **kwargs)

    model.forward = forward_in_float64


def float64_reference(checkpoint: Checkpoint) -> Checkpoint:
    """Load the checkpoint's files again in float64 on the CPU.

    Raises:
        UnavailableError: the model is in memory and has no files.
        CheckpointError, OutOfMemoryError: see `load`; float64 needs twice the memory of float32.
    """
    if checkpoint.folder is None:
        raise UnavailableError(
            "A model in memory has no files that can be loaded in float64. Save the model, and load it "
            "from the folder."
        )
    reference = load(checkpoint.folder, device="cpu", dtype="float64")
    keep_float64(reference.model)
    # The provenance of results must contain the original name, not the folder.
    description = checkpoint.description
    renamed = replace(
        reference.initial_description,
        name=description.name,
        origin=description.origin,
        revision=description.revision,
    )
    return replace(reference, initial_description=renamed)
