"""Model configs without weights: a published size, a file, a folder, or a model on the hub."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bert_probe.errors import NotFoundError
from bert_probe.model.config import build_config
from bert_probe.model.progress import Progress, no_progress
from bert_probe.model.sources import existing, is_hub_id, locate, read_config, read_config_file

_CONFIG_FILES = ("config.json",)
"""Files to download from the hub."""
_TURC, _DEVLIN = "Turc et al. 2019", "Devlin et al. 2019"


def _bert(layers: int, hidden: int) -> dict[str, Any]:
    """Return the config of an English uncased BERT: 64 dimensions per head, 4 × hidden inner ones."""
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
"""Published model sizes: name → config and paper."""


@dataclass(frozen=True)
class ModelConfig:
    """A model described by its config, without weights.

    Attributes:
        name: the name that the caller used, without the revision.
        origin: "published", "local file", "local folder", "built-in" or "hub".
        revision: the hub's commit, or None.
        source: the paper of a published size; otherwise the location of the config.
        sha256: of the config's contents.
        config: the transformers config, built from the settings that are used.
    """

    name: str
    origin: str
    revision: str | None
    source: str
    sha256: str
    config: Any = field(compare=False, repr=False)

    @property
    def record(self) -> dict[str, Any]:
        """Return the provenance of the config as JSON values."""
        return {
            "model": self.name,
            "origin": self.origin,
            "revision": self.revision,
            "source": self.source,
            "config_sha256": self.sha256,
        }


def open_config(name: str | os.PathLike[str], progress: Progress = no_progress) -> ModelConfig:
    """Open the config of a model. Weights are neither read nor downloaded.

    Args:
        name: a published size (bert-tiny, bert-mini, bert-small, bert-medium, bert-base, bert-large); a file
            such as config.json; a folder that contains one; the built-in model; or a hub id, optionally
            followed by @ and a revision. Write ./bert-base for a folder with the name of a published size.
        progress: called with bytes done and total bytes during a download.

    Raises:
        NotFoundError, NetworkError: the config is unavailable.
        CheckpointError, ArchitectureError: not a config, or not an encoder's.
    """
    requested = str(name).strip()
    if not requested:
        raise NotFoundError(f"The name is empty. Give {', '.join(PUBLISHED)}, a file, a folder or a hub id.")
    if requested in PUBLISHED and not isinstance(name, os.PathLike):
        settings, paper = PUBLISHED[requested]
        return _model_config(settings, requested, "published", None, paper)
    path = existing(requested)
    if path is not None and path.is_file():
        return _model_config(read_config_file(path), requested, "local file", None, str(path.resolve()))
    if path is not None or isinstance(name, os.PathLike):
        source = locate(name)
    else:
        model, _, revision = requested.partition("@")
        source = locate(
            *((model, revision) if is_hub_id(model) else (requested, "")), progress, _CONFIG_FILES
        )
    location = f"https://huggingface.co/{source.name}" if source.origin == "hub" else str(source.folder)
    return _model_config(read_config(source.folder), source.name, source.origin, source.revision, location)


def _model_config(
    settings: Mapping[str, Any], name: str, origin: str, revision: str | None, source: str
) -> ModelConfig:
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return ModelConfig(name, origin, revision, source, digest, build_config(settings, name))
