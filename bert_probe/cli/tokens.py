"""The command that lists tokens.

For many checkpoints, it reads only the tokenizer, the config and the headers of the weight files, which takes
a fraction of a second. If these files do not determine the tokens with certainty, or if the result is saved
with its provenance, it loads the model, which takes seconds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from safetensors import safe_open

from bert_probe.analyses.vocabulary.tokens import Tokens, TokensResult, token_table
from bert_probe.cli.options import model_options, open_checkpoint, pair_option
from bert_probe.errors import CheckpointError, TokenizerError, TooLongError
from bert_probe.model.encoding import Encoder, Encoding, panics_as_errors
from bert_probe.model.lengths import check_expansion
from bert_probe.model.progress import Progress
from bert_probe.model.sentence_router import (
    COLBERT_ARCHITECTURE,
    MODEL_FILE,
    at_encoder,
    is_late_interaction,
)
from bert_probe.model.sources import has_file, locate, read_config, read_json, weight_files
from bert_probe.model.tokenizer_files import check_tokenizer_files
from bert_probe.runtime.terminal import terminal_bar

if TYPE_CHECKING:
    import pandas as pd

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
"""Model types with learned position embeddings → tokenizer class in transformers.

`AutoTokenizer` would find the class too, but it imports torch.
"""

_GENERIC = "PreTrainedTokenizerFast"
"""Class of a generic tokenizer; some checkpoints call it TokenizersBackend."""

_UNSUPPORTED_SETTINGS = ("is_decoder", "is_encoder_decoder", "quantization_config", "transformers_weights")
"""Config settings of models that cannot be loaded."""


@click.command()
@model_options
@click.argument("text")
@pair_option
@click.pass_context
def tokens(
    context: click.Context,
    model: str | None,
    revision: str | None,
    dtype: str,
    text: str,
    pair: str | None,
    truncate: bool,
) -> TokensResult | pd.DataFrame:
    """List the tokens of TEXT with their ID, segment, word and character offsets."""
    # Output files contain provenance, which requires the loaded model.
    if not (context.params["out"] or context.params["save_view"]):
        with terminal_bar("Downloading", "B") as progress:
            encoding = encode_without_model(model, revision, text, pair, progress)
        if encoding is not None:
            return token_table(encoding)
    return Tokens().of(open_checkpoint(model, revision, dtype).trace(text, pair, truncate))


def encode_without_model(
    model: str | os.PathLike[str] | None,
    revision: str | None,
    text: str,
    pair: str | None = None,
    progress: Progress | None = None,
) -> Encoding | None:
    """Tokenize a text as `Checkpoint.encode` does, but without the values of the model's weights.

    Args:
        progress: as in `load`.

    Returns:
        The tokens, with empty ``inputs`` and with ``max_tokens`` possibly slightly below the model's limit.
        None if the model must be loaded, because its family is not in `TOKENIZERS`, its files are unusual or
        inconsistent, or the text may be too long.

    Raises:
        NotFoundError, NetworkError, CheckpointError, TokenizerError, WeightsError: as in `load`.
        EmptyTextError, TextError: as in `Encoder.encode`.
    """
    folder = at_encoder(locate(model, revision, progress)).folder
    config = read_config(folder)
    check_tokenizer_files(folder)
    class_name = _tokenizer_class(folder, config)
    if class_name is None or any(map(config.get, _UNSUPPORTED_SETTINGS)) or _may_have_markers(folder, config):
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
    # Assume the larger of the model families' default padding indices, 0 and 1.
    padding = config.get("pad_token_id", 1)
    is_consistent = word_rows == [config.get("vocab_size")] and position_rows == [
        config.get("max_position_embeddings")
    ]
    if not is_consistent or not isinstance(padding, int) or padding < 0:
        return None
    # RoBERTa counts positions from the padding index + 1, so the rows up to the padding index are unused.
    # Assume at least two unused rows, because some related models always skip the first two.
    return word_rows[0], position_rows[0] - 1 - max(1, padding)


def _rows(files: list[Path], ending: str) -> list[int]:
    """Return the row counts of the tensors (normally one) whose names end in `ending`."""
    counts = []
    for file in files:
        with safe_open(file, framework="np") as weights:
            names = [name for name in weights.keys() if name.endswith(ending)]  # noqa: SIM118 - not a dictionary
            counts += [weights.get_slice(name).get_shape()[0] for name in names]
    return counts


def _tokenizer_class(folder: Path, config: dict[str, Any]) -> str | None:
    """Return the name of the tokenizer class that tokenizer_config.json specifies.

    Return None if the file cannot be read or refers to code in the repository, if config.json specifies a
    class, too, or if the class is neither the class of the model type nor the generic class.
    """
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


def _may_have_markers(folder: Path, config: dict[str, Any]) -> bool:
    """Return whether opening the model could add the markers of a late-interaction model to the tokenizer."""
    if COLBERT_ARCHITECTURE in (config.get("architectures") or ()):
        return True
    if not has_file(folder, MODEL_FILE):
        return False
    try:
        options = read_json(folder / MODEL_FILE)
    except CheckpointError:
        return True
    return not isinstance(options, dict) or is_late_interaction(options)


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
