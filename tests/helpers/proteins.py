"""Tiny protein models, built with seeded random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers

from tests.helpers.families import BERT, COMMON, randomize

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


def save_protbert(folder: Path) -> Path:
    """Save a tiny ProtBERT, whose tokenizer expects spaces between upper-case residues; return the folder."""
    names = [*BERT.ordered, *RESIDUES]
    vocabulary = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=BERT.unk))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = BERT.processor(tokenizer)
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(**COMMON, vocab_size=len(names)))
    randomize(model)
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=BERT.unk,
        pad_token=BERT.pad,
        cls_token=BERT.cls,
        sep_token=BERT.sep,
        mask_token=BERT.mask,
    ).save_pretrained(folder)
    return folder
