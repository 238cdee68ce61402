"""Tiny protein models, built with seeded random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers

from tests.helpers.families import COMMON, randomize

RESIDUES = "LAGVSERTIDPKQNFYMHWCXBUZO"
SEQUENCE = "MKTAYIAKQRQISFVKSHFSRQ"


def save_esm(
    folder: Path, model_class: Any = transformers.EsmModel, ends: bool = True, **settings: Any
) -> Path:
    """Save a tiny ESM-2 with its own tokenizer, and return the folder of the model.

    Args:
        folder: an existing folder.
        model_class: class of the model, such as `transformers.EsmForMaskedLM`.
        ends: whether the tokenizer adds <eos>.
        settings: config values that differ from `COMMON`.
    """
    special = ["<cls>", "<pad>", "<eos>", "<unk>"]
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("\n".join([*special, *RESIDUES, ".", "-", "<null_1>", "<mask>"]))
    tokenizer = transformers.EsmTokenizer(str(vocabulary), **({} if ends else {"eos_token": None}))
    config = transformers.EsmConfig(
        **COMMON | settings,
        vocab_size=len(tokenizer),
        pad_token_id=1,
        mask_token_id=tokenizer.mask_token_id,
        position_embedding_type="rotary",
    )
    torch.manual_seed(0)
    model = model_class(config)
    randomize(model)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder / "model"
