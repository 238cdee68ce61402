"""Tokenize texts in a fraction of a second, without loading the model, which would take seconds.

If the checkpoint's files do not determine the tokens with certainty, the result is None, and the caller must
load the model.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from safetensors import safe_open

from bert_probe.errors import CheckpointError, TokenizerError, TooLongError
from bert_probe.model.encoding import Encoder, Encoding, panics_as_errors
from bert_probe.model.lengths import check_expansion
from bert_probe.model.progress import Progress
from bert_probe.model.sentence_router import at_encoder
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
"""Model type of an encoder with learned position embeddings → its tokenizer class in transformers.

`AutoTokenizer` would find the class too, but it imports torch.
"""

_GENERIC = "PreTrainedTokenizerFast"
"""Class of a generic tokenizer; some checkpoints call it TokenizersBackend."""

_UNSUPPORTED_SETTINGS = ("is_decoder", "is_encoder_decoder", "quantization_config", "transformers_weights")
"""Config settings of models that cannot be loaded."""


def encode_without_model(
    model: str | os.PathLike[str] | None,
    revision: str | None,
    text: str,
    pair: str | None = None,
    progress: Progress | None = None,
) -> Encoding | None:
    """Return the tokens of `Checkpoint.encode` from tokenizer, config and weight file headers only.

    In the result, ``inputs`` is empty, and ``max_tokens`` may be slightly below the model's limit.

    Args:
        progress: as in `load`.

    Returns:
        The tokens; None if the model must be loaded because its family is not in `TOKENIZERS`, its files are
        unusual or inconsistent, or the text may be too long.

    Raises:
        NotFoundError, NetworkError, CheckpointError, TokenizerError, WeightsError: as in `load`.
        EmptyTextError, TextError: as in `Encoder.encode`.
    """
    folder = at_encoder(locate(model, revision, progress)).folder
    config = read_config(folder)
    check_tokenizer_files(folder)
    class_name = _tokenizer_class(folder, config)
    if class_name is None or any(map(config.get, _UNSUPPORTED_SETTINGS)):
        return None
    limits = _limits(config, weight_files(folder))
    if limits is None:
        return None
    vocabulary_size, max_tokens = limits
    tokenizer = _load_tokenizer(folder, class_name)
    if tokenizer is None:
        return None
    try:
        return Encoder(tokenizer, max_tokens, vocabulary_size, frozenset()).encode(text, pair)
    except (TooLongError, TokenizerError):
        return None


def _limits(config: dict[str, Any], files: list[Path]) -> tuple[int, int] | None:
    """Return the vocabulary size and a lower bound on the maximum number of tokens.

    Return None if the files are inconsistent.
    """
    word_rows, position_rows = (_rows(files, f"{kind}_embeddings.weight") for kind in ("word", "position"))
    # The default padding index is 0 or 1, depending on the model family.
    padding = config.get("pad_token_id", 1)
    is_consistent = word_rows == [config.get("vocab_size")] and position_rows == [
        config.get("max_position_embeddings")
    ]
    if not is_consistent or not isinstance(padding, int) or padding < 0:
        return None
    # Some families do not use the positions up to the padding index; one family never uses the first two.
    return word_rows[0], position_rows[0] - 1 - max(1, padding)


def _rows(files: list[Path], ending: str) -> list[int]:
    """Return the number of rows of each tensor whose name ends in `ending`; normally there is one tensor."""
    counts = []
    for file in files:
        with safe_open(file, framework="np") as weights:
            names = [name for name in weights.keys() if name.endswith(ending)]  # noqa: SIM118 - not a dictionary
            counts += [weights.get_slice(name).get_shape()[0] for name in names]
    return counts


def _tokenizer_class(folder: Path, config: dict[str, Any]) -> str | None:
    """Return the checkpoint's tokenizer class; None if it is neither the family's nor the generic class."""
    try:
        settings = read_json(folder / "tokenizer_config.json")
    except CheckpointError:
        return None
    family_class = TOKENIZERS.get(str(config.get("model_type")))
    if not isinstance(settings, dict) or settings.get("auto_map") or config.get("tokenizer_class"):
        return None
    class_name = settings.get("tokenizer_class")
    if family_class and class_name in (_GENERIC, "TokenizersBackend"):
        return _GENERIC
    return family_class if family_class and class_name in (family_class, f"{family_class}Fast") else None


def _load_tokenizer(folder: Path, class_name: str) -> Any:
    """Return the tokenizer, or None if it cannot be loaded or does not report character positions."""
    import transformers

    try:
        with panics_as_errors():
            tokenizer = getattr(transformers, class_name).from_pretrained(folder, local_files_only=True)
        check_expansion(tokenizer)
    except Exception:  # Loaders raise many types of exceptions, which `load` reports.
        return None
    return tokenizer if tokenizer.is_fast else None
