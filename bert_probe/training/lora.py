"""LoRA with `peft`: low-rank matrices are trained in place of the layers' own, then merged into them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bert_probe.model.checkpoint import FILL_MASK
from bert_probe.training.trainable_parameters import RANK, SCALE, head_parts, lora_targets


@dataclass(frozen=True, eq=False)
class LoraAdapter:
    """A trained LoRA adapter, without its base model.

    Attributes:
        config: peft's configuration.
        parts: tensors by their names in peft.
    """

    config: Any
    parts: Mapping[str, torch.Tensor]

    def save(self, folder: Path) -> None:
        """Save the adapter in a new folder that peft loads on top of the base model."""
        folder.mkdir()
        self.config.save_pretrained(str(folder))
        save_file(dict(self.parts), folder / "adapter_model.safetensors")


class LoraModel:
    """A model with LoRA matrices in its layers.

    Attributes:
        updated: trainable parameters by name: the LoRA matrices and the head.
    """

    def __init__(self, full_model: Any) -> None:
        import peft

        head = head_parts(full_model)
        config = peft.LoraConfig(
            r=RANK, lora_alpha=SCALE, lora_dropout=0.0, target_modules=[*lora_targets(full_model)]
        )
        self._whole = full_model
        with _no_warnings():
            self._around: Any = peft.get_peft_model(full_model, config)
        for parameter in head.values():
            parameter.requires_grad_(True)
        self.updated = {
            name: parameter for name, parameter in full_model.named_parameters() if parameter.requires_grad
        }

    def merged(self, task: str, base: str) -> tuple[Any, LoraAdapter | None]:
        """Return the model with merged LoRA matrices, and the adapter.

        The adapter is None for masked-language modeling, whose head is tied to the embeddings of the model
        itself.

        Args:
            base: name of the base model.
        """
        import peft

        adapter = None
        if task != FILL_MASK:
            narrow = peft.get_peft_model_state_dict(self._around)
            head = {
                f"base_model.model.{name}": parameter for name, parameter in head_parts(self._whole).items()
            }
            parts = {name: parameter.detach().clone() for name, parameter in (narrow | head).items()}
            config = self._around.peft_config["default"]
            config.base_model_name_or_path = base
            config.modules_to_save = sorted({_module(name, self._whole) for name in head_parts(self._whole)})
            config.inference_mode = True
            adapter = LoraAdapter(config, parts)
        with _no_warnings():
            return self._around.merge_and_unload(), adapter


@contextmanager
def _no_warnings() -> Iterator[None]:
    """Suppress warnings of peft and transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _module(name: str, full_model: Any) -> str:
    """Return the outermost module of the head that contains a parameter."""
    prefix = f"{full_model.base_model_prefix}."
    within = name.removeprefix(prefix)
    return (prefix if within != name else "") + within.partition(".")[0]
