"""Tiny late-interaction checkpoints in the formats of sentence-transformers, PyLate and ColBERT."""

from __future__ import annotations

import json
import shutil
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from bert_probe.model.from_model import keep_float64
from tests.helpers import families
from tests.helpers.sentence_models import without_warnings

PROMPTS = {"query": "where is: ", "document": "boat: ", "other": "night "}
Modules = tuple[tuple[str, dict[str, Any]], ...]


@dataclass(frozen=True)
class MultiVectorLayout:
    """The configuration of a tiny late-interaction model.

    Attributes:
        modules: names and settings of the modules after the Transformer, as MultiVectorEncoder saves them.
        transformer: settings of the Transformer module.
        options: settings of the model; for PyLate, those of config_sentence_transformers.json.
        family: the family of the encoder.
        file_format: "sentence-transformers", "PyLate" or "ColBERT".
    """

    modules: Modules = ()
    transformer: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    family: str = "bert"
    file_format: str = "sentence-transformers"


def _dense(size: int, inputs: int = 32, activation: str = "Identity", **settings: Any) -> Any:
    function = getattr(torch.nn, activation)()
    return "Dense", {
        "in_features": inputs,
        "out_features": size,
        "activation_function": function,
        "module_input_name": "token_embeddings",
    } | settings


def _mask(**settings: Any) -> Any:
    return "MultiVectorMask", settings


_NORMALIZE: Any = ("Normalize", {"module_input_name": "token_embeddings"})
_PUNCTUATION = list(string.punctuation)
_PYLATE: dict[str, Any] = {
    "prompts": {},
    "default_prompt_name": None,
    "similarity_fn_name": "MaxSim",
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 14,
    "document_length": 18,
    "attend_to_expansion_tokens": False,
    "skiplist_words": _PUNCTUATION,
    "do_query_expansion": True,
    "model_type": "ColBERT",
}

LAYOUTS: dict[str, MultiVectorLayout] = {
    "expanded": MultiVectorLayout(
        (_dense(16, bias=False), _mask(skiplist_words=_PUNCTUATION), _NORMALIZE),
        {
            "query_expansion": {"strategy": "fixed", "attend": False, "length": 14},
            "document_length": 18,
        },
        {"prompts": {"query": "[Q] ", "document": "[D] "}},
    ),
    "expanded to a minimum": MultiVectorLayout(
        (_dense(24, activation="GELU"), _dense(12, 24, use_residual=True), _mask(), _NORMALIZE),
        {"query_expansion": {"strategy": "min", "attend": True, "length": 10}, "do_lower_case": True},
        {"prompts": PROMPTS},
        "roberta",
    ),
    "not expanded": MultiVectorLayout(
        (
            _NORMALIZE,
            _dense(16, bias=False),
            _mask(skiplist_words=[".", "!", "Ġa", "missing word"], skiplist_tasks=["query", "document"]),
        ),
        {"query_length": 8, "max_seq_length": 20},
        {"similarity_fn_name": "meanmaxsim", "prompts": PROMPTS, "default_prompt_name": "other"},
        "modernbert",
    ),
    "decoder": MultiVectorLayout((_dense(16), _mask(), _NORMALIZE), {}, {"prompts": PROMPTS}, "qwen3"),
    "without mask": MultiVectorLayout(
        (_dense(32, activation="Tanh", use_residual=True), _NORMALIZE),
        {"query_expansion": {"strategy": "fixed", "attend": True, "length": 12, "token": "[SEP]"}},
    ),
    "some tokens": MultiVectorLayout(
        (_dense(16), _mask(keep_only_token_ids=list(range(20, 60))), _NORMALIZE), family="albert"
    ),
    "PyLate": MultiVectorLayout(options=_PYLATE, file_format="PyLate"),
    "PyLate without expansion": MultiVectorLayout(
        options=_PYLATE | {"do_query_expansion": False, "prompts": {"query": "where is: "}},
        family="modernbert",
        file_format="PyLate",
    ),
    "PyLate, early version": MultiVectorLayout(
        options={
            name: value for name, value in _PYLATE.items() if name not in ("model_type", "skiplist_words")
        }
        | {"attend_to_expansion_tokens": True},
        file_format="PyLate",
    ),
    "ColBERT": MultiVectorLayout(
        options={"query_maxlen": 13, "doc_maxlen": 18, "query_token_id": "[unused0]"}, file_format="ColBERT"
    ),
}
"""Name of a layout → configuration of a tiny model with this layout."""


def save(name: str, encoder: Path, folder: Path) -> Path:
    """Save the layout `name` into a folder.

    Args:
        encoder: folder of a tiny model of the layout's family.
    """
    layout = LAYOUTS[name]
    with without_warnings():
        _WRITERS[layout.file_format](layout, encoder, folder)
    return folder


def _save_sentence_transformers(layout: MultiVectorLayout, encoder: Path, folder: Path) -> None:
    from sentence_transformers import MultiVectorEncoder
    from sentence_transformers.base.modules import Dense, Normalize, Transformer
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    classes = {"Dense": Dense, "Normalize": Normalize, "MultiVectorMask": MultiVectorMask}
    created = [classes[kind](**settings) for kind, settings in layout.modules]
    for module in created:
        families.randomize(module, 2)
    transformer = Transformer(str(encoder), **layout.transformer)
    model = MultiVectorEncoder(modules=[transformer, *created], device="cpu", **layout.options)
    model.save(str(folder), create_model_card=False)


def _save_with_markers(encoder: Path, folder: Path, markers: tuple[str, ...]) -> None:
    """Save an encoder with two additional tokens, the query and document markers."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    tokenizer.add_tokens(list(markers))
    model = transformers.AutoModel.from_pretrained(encoder)
    torch.manual_seed(3)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


def _projection() -> torch.Tensor:
    return torch.randn(16, 32, generator=torch.Generator().manual_seed(4)) * 0.3


def _save_pylate(layout: MultiVectorLayout, encoder: Path, folder: Path) -> None:
    """Write the files that `pylate.models.ColBERT.save` of PyLate 1.6.0 writes."""
    options = layout.options
    _save_with_markers(encoder, folder, (options["query_prefix"], options["document_prefix"]))
    (folder / "1_Dense").mkdir()
    save_file({"linear.weight": _projection()}, folder / "1_Dense" / "model.safetensors")
    files = {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Dense", "type": "pylate.models.Dense.Dense"},
        ],
        "1_Dense/config.json": {
            "in_features": 32,
            "out_features": 16,
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
            "use_residual": False,
        },
        # PyLate saves the maximum length of its last call: document_length (18) without the marker token.
        "sentence_bert_config.json": {"max_seq_length": 17, "do_lower_case": False},
        "config_sentence_transformers.json": dict(options),
    }
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))


def _save_colbert(layout: MultiVectorLayout, encoder: Path, folder: Path) -> None:
    """Write the files of the original ColBERT, which stores the encoder and the projection in one file."""
    shutil.copytree(encoder, folder, dirs_exist_ok=True)
    # The markers are entries of the vocabulary that do not occur in texts.
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    markers = {"8": "[unused0]", "9": "[unused1]"}
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {markers.get(word, word): row for word, row in vocabulary.items()}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    file = folder / "model.safetensors"
    weights = {f"bert.{name}": tensor for name, tensor in load_file(file).items()}
    save_file(weights | {"linear.weight": _projection()}, file, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["HF_ColBERT"]}))
    (folder / "artifact.metadata").write_text(json.dumps(dict(layout.options)))


_WRITERS: Mapping[str, Callable[[MultiVectorLayout, Path, Path], None]] = {
    "sentence-transformers": _save_sentence_transformers,
    "PyLate": _save_pylate,
    "ColBERT": _save_colbert,
}


def reference(folder: Path, dtype: str = "float32") -> Any:
    """Return the model in a folder, loaded by the library sentence-transformers in float32 or float64."""
    with without_warnings():
        from sentence_transformers import MultiVectorEncoder

        model = MultiVectorEncoder(
            str(folder), device="cpu", local_files_only=True, model_kwargs={"dtype": getattr(torch, dtype)}
        )
    if dtype == "float64":
        # Buffers keep their dtype, as in `bert_probe.load`, because rotary frequencies are float32.
        for parameter in model.parameters():
            parameter.data = parameter.data.double()
        keep_float64(model[0].auto_model)
    return model
