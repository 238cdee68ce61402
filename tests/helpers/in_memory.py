"""Models in memory, and assertions that a function call does not change a model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from bert_probe.model.encoding import Encoding
from tests.helpers.families import model_class

Folders = Callable[[str], Path]


def load_for_training(folder: Path, implementation: str | None = None, dtype: str = "float32") -> Any:
    """Load a model in training mode; all of its parameters have the given dtype."""
    options = {} if implementation is None else {"attn_implementation": implementation}
    torch_dtype = getattr(torch, dtype)
    of_folder = model_class(AutoConfig.from_pretrained(folder))
    # transformers loads some parameters of DeBERTa in float32, whatever the dtype.
    return of_folder.from_pretrained(folder, dtype=torch_dtype, **options).to(torch_dtype).train()


def tokenizer_of(folder: Path) -> Any:
    """Return the tokenizer that belongs to a model."""
    return AutoTokenizer.from_pretrained(folder)


def train_step(model: Any, encoding: Encoding) -> None:
    """Run one training step; with a larger learning rate, random models would compute NaN after it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs = {name: torch.tensor(ids)[None] for name, ids in encoding.inputs.items()}
    if model.config.is_encoder_decoder:
        inputs["decoder_input_ids"] = inputs["input_ids"]
    output = model(**inputs)
    states = output.logits if hasattr(output, "logits") else output.last_hidden_state
    states.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_forward_hooks_with_kwargs")


def take_snapshot(model: Any) -> dict[str, Any]:
    """Return the observable state of a model (modules, parameters, configs) and of torch's generator."""
    state: dict[str, Any] = {"dice": torch.get_rng_state().tolist(), "grad": torch.is_grad_enabled()}
    for name, module in model.named_modules():
        hooks = [dict(getattr(module, kind)) for kind in HOOKS]
        state[f"module {name}"] = (module.training, hooks, sorted(vars(module)), module._compiled_call_impl)
        if hasattr(module, "config"):
            state[f"config {name}"] = (id(module.config), copy.deepcopy(vars(module.config)))
    for name, part in [*model.named_parameters(), *model.named_buffers()]:
        gradient = None if part.grad is None else part.grad.tolist()
        numbers = part.detach().float().tolist()
        attributes = (id(part), part.requires_grad, part.dtype, part.device, part.is_inference())
        state[f"tensor {name}"] = (attributes, numbers, gradient)
    return state


def assert_refused(error: type[Exception], act: Callable[[], Any]) -> str:
    """Assert that a call raises the given error, and return its message."""
    with pytest.raises(error) as caught:
        act()
    return str(caught.value)


def assert_unchanged(model: Any, act: Callable[[], Any]) -> None:
    """Assert that a call leaves the observable state of the model unchanged."""
    before = take_snapshot(model)
    act()
    after = take_snapshot(model)
    assert after.keys() == before.keys()
    for name, value in before.items():
        assert after[name] == value, name
