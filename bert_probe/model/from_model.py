"""A model that is in memory already, as a checkpoint: it runs like any other and is left as it was."""

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
from typing import Any

import torch
from transformers import PretrainedConfig, PreTrainedModel

from bert_probe.errors import ArchitectureError, UnavailableError, WeightsError
from bert_probe.model.capture import IMPLEMENTATION
from bert_probe.model.checkpoint import Checkpoint, Description
from bert_probe.model.checks import DTYPES, listens, pads, projections, self_check
from bert_probe.model.config import check_kind
from bert_probe.model.loading import (
    check_fast,
    describe,
    encoder_of,
    libraries,
    running_errors,
    unused_note,
)
from bert_probe.model.output_loading import checked
from bert_probe.model.outputs import OutputHead, outputs_of
from bert_probe.model.weights import check_finite


def wrap(model: Any, tokenizer: Any) -> Checkpoint:
    """A checkpoint of a model that you have loaded, or just trained.

    Whatever is asked of it, the model is afterwards as it was: attention implementation and config, training
    mode of every module, gradients, hooks, device, dtype. It may be trained on between two questions: each
    trace names the digest of the weights that made it. Wrapped models take turns; one must not be trained in
    another thread while it runs. The tokenizer is copied.

    Args:
        model: a transformers encoder, or one with a task head, whose encoder is then what is shown.
        tokenizer: the fast tokenizer that belongs to it.

    Raises:
        ArchitectureError: no encoder of transformers, or one that hides its attention.
        WeightsError: weights that are not finite, of several dtypes, or on several devices.
        TokenizerError: a tokenizer that does not give character positions.
    """
    whole = getattr(model, "_orig_mod", model)  # of torch.compile
    if not isinstance(whole, PreTrainedModel):
        raise ArchitectureError(
            f"{type(model).__name__} is no model of transformers. Give the model itself, without what is put "
            "around it."
        )
    network: Any = whole.base_model
    config = network.config
    name = config.name_or_path or type(whole).__name__
    check_kind(name, config.model_type, config.to_dict())
    check_fast(tokenizer)
    _check_plain(network, name)
    check_finite(network)
    versions = libraries()
    with running_errors(name, network), _turns:
        with _ready(network, IMPLEMENTATION):
            fused = listens(network)
        heads = _heads(whole, network)
        about = replace(
            describe(network, config, fused),
            name=name,
            origin="in memory",
            weights_sha256=digest(network),
            notes=() if heads else _notes(whole, network),
            outputs_sha256=_digest(heads[0].weights) if heads else "",
        )
        encoder = encoder_of(copy.deepcopy(tokenizer), about, network)
        implementation = IMPLEMENTATION if fused else "eager"
        checkpoint = _InMemory(
            about,
            encoder,
            network,
            versions,
            outputs={head.task: head for head in heads},
            implementation=implementation,
        )
        now = checkpoint.now()
        with now.running():
            self_check(now)
            kept, failing = checked(now, heads)
            if failing:
                rest = _digest(kept[0].weights) if kept else ""
                about = replace(about, notes=tuple(failing), outputs_sha256=rest)
            return replace(
                checkpoint,
                opened=about,
                outputs={head.task: head for head in kept},
                pads=pads(now),
                projections=projections(now),
            )


def digest(network: torch.nn.Module) -> str:
    """SHA-256 of a model's weights as they are now.

    Of a line for each tensor of the state dict, in the order of their names: its name, its dtype, its sizes
    with commas between, and the SHA-256 of its numbers in rows, little-endian; separated by spaces.
    """
    return _digest(network.state_dict())


def _digest(state: Mapping[str, Any]) -> str:
    names = sorted(name for name, part in state.items() if isinstance(part, torch.Tensor))
    # Hashing lets other threads run meanwhile.
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        lines = list(threads.map(_line, names, (state[name] for name in names)))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _line(name: str, part: torch.Tensor) -> str:
    numbers = part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    kind, sizes = str(part.dtype).removeprefix("torch."), ",".join(map(str, part.shape))
    return f"{name} {kind} {sizes} {hashlib.sha256(numbers.data).hexdigest()}\n"


_turns = threading.RLock()
"""Held while a wrapped model runs. One for all: two of them may share modules, or a config."""

_running: list[Checkpoint] = []
"""Those that this thread runs now, the innermost last; it belongs to whoever holds `_turns`."""


@dataclass(frozen=True, eq=False)
class _InMemory(Checkpoint):
    """A model of which others hold a part, as it is whenever it is asked.

    Attributes:
        implementation: of attention, while it runs.
    """

    implementation: str = IMPLEMENTATION

    @property
    def description(self) -> Description:
        """As it is now; its digest is worked out each time.

        Raises:
            UnavailableError: it has other parts than when it was wrapped.
        """
        with _turns:
            _check_plain(self.model, self.opened.name)
            seen = describe(self.model, self.model.config, self.opened.shows_qkv)
            about = replace(
                self.opened,
                dtype=seen.dtype,
                device=seen.device,
                weights_sha256=digest(self.model),
                outputs_sha256=next((_digest(output.weights) for output in self.outputs.values()), ""),
            )
            same = ("name", "origin", "weights_sha256", "notes", "outputs_sha256")
            if replace(seen, **{field: getattr(about, field) for field in same}) != about:
                raise UnavailableError(
                    f"{self.opened.name} was rebuilt since it was wrapped: it has other parts or sizes. "
                    "Wrap it again."
                )
            return about

    @property
    def cause(self) -> Hashable:
        """The objects themselves, too: equal weights under another config give other numbers."""
        return self.description, weakref.ref(self.model), weakref.ref(self.tokenizer)

    @property
    def device(self) -> torch.device:
        """Where the model is now."""
        return next(self.model.parameters()).device

    def now(self) -> Checkpoint:
        """The checkpoint as it is now."""
        held = {field.name: getattr(self, field.name) for field in fields(self)}
        return _Snapshot(**held | {"opened": self.description})

    @contextmanager
    def running(self) -> Iterator[Any]:
        """The model in our hands, and as it was when they let go."""
        around = [output.whole for output in self.outputs.values()]
        with _turns, _ready(self.model, self.implementation, *around):
            yield self.model


@dataclass(frozen=True, eq=False)
class _Snapshot(_InMemory):
    """The same with the weights that it had when a text was traced, and refusing to run with any others."""

    @property
    def description(self) -> Description:
        """As it was then."""
        return self.opened

    def now(self) -> Checkpoint:
        """Itself."""
        return self

    @contextmanager
    def running(self) -> Iterator[Any]:
        """The model, seen to be the same; once for all that runs within.

        Raises:
            UnavailableError: it has changed.
        """
        with _turns:
            if self not in _running:
                self._check_same()
            _running.append(self)
            try:
                with super().running() as model:
                    yield model
            finally:
                _running.pop()

    def _check_same(self) -> None:
        then, now = self.opened, super().description
        if now == then:
            return
        changed = [
            f"it is {what} {getattr(now, field)}, no longer {getattr(then, field)}"
            for field, what in (("dtype", "in"), ("device", "on"))
            if getattr(now, field) != getattr(then, field)
        ]
        raise UnavailableError(
            f"{then.name} has changed since it was traced: {' and '.join(changed) or 'its weights differ'}. "
            "Trace the text again."
        )


@contextmanager
def _ready(network: torch.nn.Module, implementation: str, *around: torch.nn.Module) -> Iterator[None]:
    """The model as we need it: no dropout, our attention, its own dtype, eager, outputs by name.

    Args:
        around: models with a head, of which it is the encoder.

    Not in inference mode, whose tensors a model may keep, and could then no longer be trained with.
    """
    modules = list(dict.fromkeys(part for whole in (network, *around) for part in whole.modules()))
    configs = _configs(modules)
    kept = [_SavedAttributes.of(vars(one)) for one in (*modules, *configs)]
    device = next(network.parameters()).device.type
    try:
        for module in modules:
            module.training = False
            if module._compiled_call_impl is not None:
                module._compiled_call_impl = None
        for config in configs:
            config._attn_implementation = implementation
            config.return_dict, config.output_attentions, config.output_hidden_states = True, False, False
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(device, enabled=False):
            yield
    finally:
        for one in kept:
            one.restore()


@dataclass(frozen=True, eq=False)
class _SavedAttributes:
    """Attributes of a module or a config, and what is in the dictionaries among them: parameters, buffers,
    hooks. transformers itself puts hooks and settings there when a model runs.

    Attributes:
        held: of the object itself.
        before: the same as it was; inner: each dictionary in it, with a copy.
    """

    held: dict[str, Any]
    before: dict[str, Any]
    inner: list[tuple[dict[Any, Any], dict[Any, Any]]]

    @classmethod
    def of(cls, held: dict[str, Any]) -> _SavedAttributes:
        """As they are now."""
        return cls(held, dict(held), [(one, dict(one)) for one in held.values() if isinstance(one, dict)])

    def restore(self) -> None:
        """As they were, in the same dictionaries, which others may hold."""
        for held, before in ((self.held, self.before), *self.inner):
            if held.keys() != before.keys() or any(held[name] is not before[name] for name in before):
                held.clear()
                held.update(before)


def _configs(modules: list[torch.nn.Module]) -> list[Any]:
    """Every config that one of the modules reads, and those within, each once."""
    found: dict[int, Any] = {}
    waiting = [getattr(module, "config", None) for module in modules]
    while waiting:
        config = waiting.pop()
        if isinstance(config, PretrainedConfig) and id(config) not in found:
            found[id(config)] = config
            waiting += [getattr(config, name, None) for name in config.sub_configs]
    return list(found.values())


def _check_plain(network: torch.nn.Module, name: str) -> None:
    """Refuse weights of several kinds, for which one dtype and one device would be wrong."""
    for what, found in (
        ("dtype", {str(part.dtype).removeprefix("torch.") for part in network.parameters()}),
        ("device", {str(part.device) for part in network.parameters()}),
    ):
        if len(found) > 1:
            raise WeightsError(
                f"The weights of {name} have more than one {what}: {', '.join(sorted(found))}. "
                "Use the whole encoder in one."
            )
        if found & {"meta"} or (what == "dtype" and not found <= set(DTYPES)):
            raise WeightsError(
                f"The weights of {name} are of {what} {', '.join(found)}, with which attention cannot be "
                f"computed here. Use {', '.join(DTYPES)} on a real device."
            )


def _heads(whole: Any, network: torch.nn.Module) -> list[OutputHead]:
    """Its output heads, where they compute in the encoder's dtype and place."""
    heads = [] if whole is network else outputs_of(whole)
    first = next(network.parameters())
    alike = all((part.device, part.dtype) == (first.device, first.dtype) for part in whole.parameters())
    return heads if alike else []


def _notes(whole: Any, network: torch.nn.Module) -> tuple[str, ...]:
    """What is not shown of the model: its task head."""
    own = {id(part) for part in network.parameters()}
    others = sorted(name for name, part in whole.named_parameters() if id(part) not in own)
    return (unused_note(others),) if others else ()
