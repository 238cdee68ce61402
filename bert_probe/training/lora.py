"""Narrow matrices beside those of the layers, by `peft`: taught in their stead, then added to them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from bert_probe.model.checkpoint import FILLING
from bert_probe.training.trainable_parameters import RANK, SCALE, beside, head_parts


@dataclass(frozen=True, eq=False)
class LoraAdapter:
    """What lora taught, without the model that it belongs to.

    Attributes:
        config: peft's; parts: its tensors, as peft names them.
    """

    config: Any
    parts: Mapping[str, torch.Tensor]

    def save(self, folder: Path) -> None:
        """Into a folder that peft opens on top of the model that was taught."""
        folder.mkdir()
        self.config.save_pretrained(str(folder))
        save_file(dict(self.parts), folder / "adapter_model.safetensors")


class LoraModel:
    """A model with narrow matrices beside its own.

    Attributes:
        updated: these and the head, by name.
    """

    def __init__(self, whole: Any) -> None:
        import peft

        head = head_parts(whole)
        config = peft.LoraConfig(r=RANK, lora_alpha=SCALE, lora_dropout=0.0, target_modules=[*beside(whole)])
        self._whole = whole
        with _unwarned():
            self._around: Any = peft.get_peft_model(whole, config)
        for part in head.values():
            part.requires_grad_(True)
        self.updated = {name: part for name, part in whole.named_parameters() if part.requires_grad}

    def merged(self, task: str, base: str) -> tuple[Any, LoraAdapter | None]:
        """The model with the products added to its matrices, and the adapter by itself.

        There is none for masked words, whose head is tied to the embeddings of its own model.

        Args:
            base: the model that was taught, as people call it.
        """
        import peft

        adapter = None
        if task != FILLING:
            narrow = peft.get_peft_model_state_dict(self._around)
            head = {f"base_model.model.{name}": part for name, part in head_parts(self._whole).items()}
            parts = {name: part.detach().clone() for name, part in (narrow | head).items()}
            config = self._around.peft_config["default"]
            config.base_model_name_or_path = base
            config.modules_to_save = sorted({_module(name, self._whole) for name in head_parts(self._whole)})
            config.inference_mode = True
            adapter = LoraAdapter(config, parts)
        with _unwarned():
            return self._around.merge_and_unload(), adapter


@contextmanager
def _unwarned() -> Iterator[None]:
    """Without what peft and transformers warn each other of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _module(name: str, whole: Any) -> str:
    """The module of the head that a parameter lies in, as large as it gets."""
    prefix = f"{whole.base_model_prefix}."
    within = name.removeprefix(prefix)
    return (prefix if within != name else "") + within.partition(".")[0]
