"""A text's tokens without its model: opening a model takes seconds, a tokenizer a fraction of one.

What is not plain from a checkpoint's files is not guessed: then there is no answer here, and whoever asks
opens the model, which has one or refuses.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from safetensors import safe_open

from bert_probe.errors import CheckpointError, TokenizerError, TooLongError
from bert_probe.model.encoding import Encoder, Encoding, panics_as_errors
from bert_probe.model.progress import Progress
from bert_probe.model.sources import check_tokenizer_files, locate, read_config, read_json, weight_files

TOKENIZERS = {
    "albert": "AlbertTokenizer",
    "bert": "BertTokenizer",
    "camembert": "CamembertTokenizer",
    "distilbert": "BertTokenizer",
    "electra": "BertTokenizer",
    "mobilebert": "MobileBertTokenizer",
    "mpnet": "MPNetTokenizer",
    "roberta": "RobertaTokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
}
"""Families of encoders that learn a vector for each position → transformers' class for their tokenizers.

transformers finds that class itself (`AutoTokenizer`), but by a module that imports torch.
"""

_ANY = "PreTrainedTokenizerFast"
"""The class for a tokenizer that is no family's own; checkpoints also call it TokenizersBackend."""

_OTHERWISE = ("is_decoder", "is_encoder_decoder", "quantization_config", "transformers_weights")
"""Settings of a config with which a model is refused."""


def encode_alone(
    model: str | os.PathLike[str] | None,
    revision: str | None,
    text: str,
    pair: str | None = None,
    progress: Progress | None = None,
) -> Encoding | None:
    """The tokens that `Checkpoint.encode` gives, from tokenizer, config and the header of the weights alone.

    The numbers of the weights are not looked at. In the encoding ``inputs`` is empty, as nothing goes to the
    model, and ``max_tokens`` may lie a little below what the model accepts.

    Args:
        progress: as of `load`.

    Returns:
        None where only the model can tell: of another family, with files that are unusual or do not fit
        together, or a text that may be too long for it.

    Raises:
        NotFoundError, NetworkError, CheckpointError, TokenizerError, WeightsError: as `load`.
        EmptyTextError, TextError: as `Encoder.encode`.
    """
    folder = locate(model, revision, progress).folder
    config = read_config(folder)
    check_tokenizer_files(folder)
    name = _tokenizer_class(folder, config)
    if name is None or any(map(config.get, _OTHERWISE)):
        return None
    limits = _limits(config, weight_files(folder))
    if limits is None:
        return None
    rows, max_tokens = limits
    tokenizer = _opened(folder, name)
    if tokenizer is None:
        return None
    try:
        return Encoder(tokenizer, max_tokens, rows, frozenset()).encode(text, pair)
    except (TooLongError, TokenizerError):
        return None


def _limits(config: dict[str, Any], files: list[Path]) -> tuple[int, int] | None:
    """Rows of the vocabulary, and a number of tokens that the model surely accepts."""
    words, places = (_rows(files, f"{what}_embeddings.weight") for what in ("word", "position"))
    padding = config.get("pad_token_id", 1)  # a family's own is 0 or 1
    fitting = words == [config.get("vocab_size")] and places == [config.get("max_position_embeddings")]
    if not fitting or not isinstance(padding, int) or padding < 0:
        return None
    # Some families leave the places up to that of padding unused; one of them the first two in any case.
    return words[0], places[0] - 1 - max(1, padding)


def _rows(files: list[Path], ending: str) -> list[int]:
    """Rows of the tensors whose names end so; there should be one."""
    found = []
    for file in files:
        with safe_open(file, framework="np") as opened:
            names = [name for name in opened.keys() if name.endswith(ending)]  # noqa: SIM118, no dictionary
            found += [opened.get_slice(name).get_shape()[0] for name in names]
    return found


def _tokenizer_class(folder: Path, config: dict[str, Any]) -> str | None:
    """The family's class or that for any, whichever the checkpoint names; None if it names another."""
    try:
        settings = read_json(folder / "tokenizer_config.json")
    except CheckpointError:
        return None
    usual = TOKENIZERS.get(str(config.get("model_type")))
    if not isinstance(settings, dict) or settings.get("auto_map") or config.get("tokenizer_class"):
        return None
    named = settings.get("tokenizer_class")
    if usual and named in (_ANY, "TokenizersBackend"):
        return _ANY
    return usual if usual and named in (usual, f"{usual}Fast") else None


def _opened(folder: Path, name: str) -> Any:
    """The tokenizer, or None if it cannot be opened or gives no character positions."""
    import transformers

    try:
        with panics_as_errors():
            tokenizer = getattr(transformers, name).from_pretrained(folder, local_files_only=True)
    except Exception:  # each loader has its own errors; `load` meets the same one and says it
        return None
    return tokenizer if tokenizer.is_fast else None
