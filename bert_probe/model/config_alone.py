"""A model's config by itself, without weights: a published size, a file, a folder, or a model of the hub."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bert_probe.errors import NotFoundError
from bert_probe.model.config import configured
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import config_in, existing, is_hub_id, locate, read_config

_ONLY = ("config.json",)
"""What is fetched of a model of the hub."""
_TURC, _DEVLIN = "Turc et al. 2019", "Devlin et al. 2019"


def _bert(layers: int, hidden: int) -> dict[str, Any]:
    """A config of BERT (English, uncased); all have 64 dimensions a head, four times as many inner ones, and
    one vocabulary."""
    return {
        "model_type": "bert",
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": hidden // 64,
        "intermediate_size": 4 * hidden,
        "vocab_size": 30_522,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
    }


PUBLISHED: Mapping[str, tuple[dict[str, Any], str]] = {
    "bert-tiny": (_bert(2, 128), _TURC),
    "bert-mini": (_bert(4, 256), _TURC),
    "bert-small": (_bert(4, 512), _TURC),
    "bert-medium": (_bert(8, 512), _TURC),
    "bert-base": (_bert(12, 768), _DEVLIN),
    "bert-large": (_bert(24, 1024), _DEVLIN),
}
"""Sizes that a paper gives, by name: what a config.json would say of them, and the paper."""


@dataclass(frozen=True)
class ModelConfig:
    """What a model is to be, without its weights.

    Attributes:
        name: as it was asked for, without the revision.
        origin: "published", "local file", "local folder", "built-in" or "hub".
        revision: the hub's commit, or None.
        source: the paper of a published size, else where the config lies.
        sha256: of what the config says.
        config: transformers' own, made of what is used of it.
    """

    name: str
    origin: str
    revision: str | None
    source: str
    sha256: str
    config: Any = field(compare=False, repr=False)

    @property
    def about(self) -> dict[str, Any]:
        """Where it comes from, for a file."""
        return {
            "model": self.name,
            "origin": self.origin,
            "revision": self.revision,
            "source": self.source,
            "config_sha256": self.sha256,
        }


def open_config(name: str | os.PathLike[str], progress: Progress = no_progress) -> ModelConfig:
    """The config of a model; no weights are read, nor fetched.

    Args:
        name: a published size (bert-tiny, bert-mini, bert-small, bert-medium, bert-base, bert-large); else a
            file such as config.json, a folder that holds one, the built-in, or a hub id, which may end in @
            and a revision. A folder of a published size's name is given as ./bert-base.
        progress: called with bytes done and bytes in all during a download.

    Raises:
        NotFoundError, NetworkError: it is not to be had.
        CheckpointError, ArchitectureError: no config, or none of an encoder.
    """
    called = str(name).strip()
    if not called:
        raise NotFoundError(f"No config is named. Give {', '.join(PUBLISHED)}, a file, a folder or a hub id.")
    if called in PUBLISHED and not isinstance(name, os.PathLike):
        said, paper = PUBLISHED[called]
        return _made(said, called, "published", None, paper)
    file = existing(called)
    if file is not None and file.is_file():
        return _made(config_in(file), called, "local file", None, str(file.resolve()))
    if file is not None or isinstance(name, os.PathLike):
        source = locate(name)
    else:
        model, _, revision = called.partition("@")
        source = locate(*((model, revision) if is_hub_id(model) else (called, "")), progress, _ONLY)
    where = f"https://huggingface.co/{source.name}" if source.origin == "hub" else str(source.folder)
    return _made(read_config(source.folder), source.name, source.origin, source.revision, where)


def _made(said: Mapping[str, Any], name: str, origin: str, revision: str | None, source: str) -> ModelConfig:
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    return ModelConfig(name, origin, revision, source, digest, configured(said, name))
