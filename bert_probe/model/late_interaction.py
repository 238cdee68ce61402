"""Read late-interaction models (ColBERT, Khattab and Zaharia 2020), which have one vector per token.

Three file formats are supported: sentence-transformers' `MultiVectorEncoder`, PyLate, and the original
ColBERT. The vectors equal those of `MultiVectorEncoder`, which reads all three formats.
"""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from tokenizers import AddedToken

from bert_probe.errors import CheckpointError, OutOfMemoryError, ProbeError, UnavailableError, memory_errors
from bert_probe.model.architectures import check_pooled_encoder
from bert_probe.model.checkpoint import Description
from bert_probe.model.config import reason
from bert_probe.model.encoding import Encoding, Token
from bert_probe.model.lengths import max_input_tokens
from bert_probe.model.sentence_modules import (
    MODULE_READERS,
    positive_integer,
    read_prompts,
    read_settings,
    read_transformer,
    token_limit,
)
from bert_probe.model.sentence_networks import DenseNetwork, SentenceModule
from bert_probe.model.sentence_router import (
    AGAIN,
    COLBERT_ARCHITECTURE,
    MODEL_FILE,
    MODULES_FILE,
    is_late_interaction,
    read_modules,
)
from bert_probe.model.sources import check_readable, digest, has_file, read_config

MAXSIM, MEAN_MAXSIM = "maxsim", "meanmaxsim"
COLBERT_FILE = "artifact.metadata"
"""Name of the settings file of original ColBERT checkpoints."""

_TOKENS = "token_embeddings"
_DENSE_OF_PYLATE = "pylate.models.Dense.Dense"
_DEFAULT_LENGTH = 32
"""Number of tokens of an expanded query, if the settings of PyLate or ColBERT do not contain it."""
_PYLATE_SETTINGS = frozenset(
    (
        *("query_length", "document_length", "query_expansion", "do_query_expansion", "skiplist_words"),
        *("attend_to_expansion_tokens", "attend_to_mask_tokens", "query_prefix", "document_prefix"),
    )
)
_REMEDY = "Use the scorer bi-encoder with another checkpoint."


@dataclass(frozen=True)
class QueryExpansion:
    """Query expansion: appends tokens to a short query. MaxSim includes the vectors of these tokens.

    Attributes:
        length: number of tokens of an expanded query.
        token_id: ID of the appended token, which is [MASK] in most models.
        is_attended: whether the tokens of the query attend to the appended tokens.
    """

    length: int
    token_id: int
    is_attended: bool

    def expand(self, encoding: Encoding, tokenizer: Any) -> Encoding:
        """Return a tokenized query with expansion tokens appended up to `length` tokens."""
        start, count = len(encoding), self.length - len(encoding)
        if count <= 0:
            return encoding
        name = tokenizer.convert_ids_to_tokens(self.token_id)
        tokens = [
            Token(
                name,
                position=position,
                id=self.token_id,
                segment=0,
                word=None,
                start=None,
                end=None,
                special=True,
                split_word=False,
                display=name,
            )
            for position in range(start, self.length)
        ]
        appended = {"input_ids": self.token_id, "attention_mask": int(self.is_attended)}
        inputs = {
            input_name: np.append(values, np.full(count, appended.get(input_name, 0), values.dtype))
            for input_name, values in encoding.inputs.items()
        }
        for values in inputs.values():
            values.flags.writeable = False
        return replace(encoding, tokens=(*encoding.tokens, *tokens), inputs=MappingProxyType(inputs))


@dataclass(frozen=True)
class TokenSelection:
    """How queries or documents are truncated and expanded, and which of their tokens have a vector.

    Attributes:
        max_tokens: maximum number of tokens, including special tokens; longer texts are truncated. None for
            no limit.
        skipped: IDs of tokens without a vector, such as punctuation.
        only: if not None, only tokens with these IDs have a vector.
        expansion: the query expansion; None without expansion.
    """

    max_tokens: int | None
    skipped: tuple[int, ...] = ()
    only: tuple[int, ...] | None = None
    expansion: QueryExpansion | None = None

    def mask(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return a bool array of shape [token] that is True for the token IDs in `ids` that have a vector."""
        values = np.asarray(ids)
        has_vector: np.ndarray = ~np.isin(values, self.skipped)
        return has_vector if self.only is None else has_vector & np.isin(values, self.only)

    @property
    def about(self) -> dict[str, Any]:
        """Return the settings as JSON-compatible values, for the provenance."""
        expansion = self.expansion
        return {
            "max_tokens": self.max_tokens,
            "skipped_tokens": list(self.skipped),
            **({} if self.only is None else {"only_tokens": list(self.only)}),
            "expanded_to": None if expansion is None else expansion.length,
            **({} if expansion is None else {"attends_to_expansion": expansion.is_attended}),
        }


@dataclass(frozen=True)
class MultiVectorModel:
    """The modules and settings with which a late-interaction checkpoint maps a text to one vector per token.

    Attributes:
        token_modules: modules applied to the last hidden state of each token.
        size: number of dimensions of a vector.
        similarity: `MAXSIM`, or `MEAN_MAXSIM` for MaxSim divided by the number of query vectors.
        prompts: names and texts of the prompts. Queries use the prompt named query, documents the prompt
            named document.
        query, document: the token selection for queries and for documents.
        lower_case: whether texts are lowercased first.
    """

    token_modules: tuple[SentenceModule, ...]
    size: int
    similarity: str
    prompts: tuple[tuple[str, str], ...]
    query: TokenSelection
    document: TokenSelection
    lower_case: bool

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the settings and the weights of all modules."""
        return hashlib.sha256(repr(self).encode("utf-8", "surrogatepass")).hexdigest()


def open_multi_vector_model(
    folder: Path, description: Description, tokenizer: Any, network: Any
) -> tuple[MultiVectorModel | None, ProbeError | None]:
    """Return (model, None) with the result of `read_multi_vector_model`, or (None, error) if it fails.

    Args:
        network: the text encoder, see `check_pooled_encoder`. The other arguments are those of
            `read_multi_vector_model`.
    """
    try:
        with memory_errors(f"The modules of {description.name} need more memory than is available."):
            model = read_multi_vector_model(folder, description, tokenizer)
            if model is not None:
                check_pooled_encoder(network)
            return model, None
    except OutOfMemoryError:
        raise
    except ProbeError as error:
        return None, error
    except (OSError, OverflowError, RuntimeError, TypeError, ValueError) as error:
        # Broken files raise exceptions of these types.
        return None, CheckpointError(f"The late-interaction files are broken: {reason(error)}. {AGAIN}")


def read_multi_vector_model(
    folder: Path, description: Description, tokenizer: Any
) -> MultiVectorModel | None:
    """Read the settings and modules with which a checkpoint maps a text to one vector per token.

    Args:
        description: sizes of the encoder.
        tokenizer: the checkpoint's tokenizer, after `add_markers`.

    Returns:
        The model; None if the folder is not a late-interaction checkpoint.

    Raises:
        UnavailableError: a module or setting is not supported.
        CheckpointError: a file is broken, or a module's weights do not fit its config.
    """
    options = _read_options(folder)
    if options is None:
        return None
    settings = _legacy_settings(options) | read_transformer(folder, "feature-extraction", True)
    if "message" in (settings.get("modality_config") or {}):
        raise UnavailableError(
            f"The module Transformer formats texts with a chat template, which is not supported. {_REMEDY}"
        )
    modules, mask, size = _read_modules(folder, options, description.hidden_size)
    limit = token_limit(settings.get("max_seq_length"), tokenizer.model_max_length, description.max_tokens)
    skip = _skipped(mask, tokenizer)
    only = mask.get("keep_only_token_ids") or None if mask else None
    similarity = options.get("similarity_fn_name")
    return MultiVectorModel(
        token_modules=tuple(modules),
        size=size,
        similarity=similarity if similarity == MEAN_MAXSIM else MAXSIM,
        prompts=read_prompts({"prompts": _prompts(options)})[0],
        query=_query_selection(settings, limit, description.max_tokens, skip["query"], mask, tokenizer),
        document=TokenSelection(
            _within(settings.get("document_length"), limit, description.max_tokens),
            skip["document"],
            None if only is None else tuple(map(int, only)),
        ),
        lower_case=bool(settings.get("do_lower_case")),
    )


def add_markers(folder: Path, tokenizer: Any) -> None:
    """Register the query and document markers, such as "[Q] ", as tokens.

    PyLate and ColBERT insert each marker as a single token. A tokenizer whose files do not list the markers
    would split them.
    """
    options = _read_options(folder)
    if options is None:
        return
    vocabulary = tokenizer.get_vocab()
    markers = []
    for marker in (options.get("query_prefix"), options.get("document_prefix")):
        if not isinstance(marker, str) or not marker.split():
            continue
        # PyLate stores the marker and the following space as one token; ColBERT stores only the marker.
        name = next((text for text in (marker, marker.split(None, 1)[0]) if text in vocabulary), None)
        if name is not None and tokenizer.tokenize(name) != [name]:
            markers.append(AddedToken(name, normalized=False, special=True))
    if markers:
        tokenizer.add_tokens(markers, special_tokens=True)


def _read_options(folder: Path) -> dict[str, Any] | None:
    """Return a late-interaction checkpoint's settings under PyLate's names; None for other checkpoints."""
    if has_file(folder, MODULES_FILE):
        options: dict[str, Any] = {}
        if has_file(folder, MODEL_FILE):
            options = read_settings(folder / MODEL_FILE, dict)
        return options if is_late_interaction(options) else None
    if COLBERT_ARCHITECTURE not in (read_config(folder).get("architectures") or ()):
        return None
    metadata: dict[str, Any] = {}
    if has_file(folder, COLBERT_FILE):
        metadata = read_settings(folder / COLBERT_FILE, dict)
    return {
        "model_type": COLBERT_ARCHITECTURE,
        "query_prefix": f"{metadata.get('query_token_id') or '[unused0]'} ",
        "document_prefix": f"{metadata.get('doc_token_id') or '[unused1]'} ",
        "query_length": metadata.get("query_maxlen"),
        "document_length": metadata.get("doc_maxlen"),
        "attend_to_expansion_tokens": metadata.get("attend_to_mask_tokens"),
        "skiplist_words": None if metadata.get("mask_punctuation", True) else [],
    }


def _legacy_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Convert options of PyLate and ColBERT, such as query_length, to settings of the Transformer module."""
    names = ("query_length", "document_length")
    settings = {name: options[name] for name in names if options.get(name) is not None}
    if "query_expansion" in options:
        return settings | {"query_expansion": options["query_expansion"]}
    if not _PYLATE_SETTINGS & options.keys() or options.get("do_query_expansion") is False:
        return settings
    attends = options.get("attend_to_expansion_tokens", options.get("attend_to_mask_tokens"))
    length = settings.pop("query_length", None) or _DEFAULT_LENGTH
    return settings | {"query_expansion": {"strategy": "fixed", "attend": bool(attends), "length": length}}


def _prompts(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the prompts by name; for PyLate and ColBERT, "query" and "document" begin with their marker."""
    saved = options.get("prompts") or {}
    if not isinstance(saved, dict):
        raise CheckpointError(f"prompts in {MODEL_FILE} must map prompt names to strings. {AGAIN}")
    prompts: dict[str, Any] = {"query": None, "document": None} | saved
    for name in ("query", "document"):
        marker = options.get(f"{name}_prefix") or ""
        prompts[name] = marker + (prompts[name] or "").removeprefix(marker)
    return prompts


def _read_modules(
    folder: Path, options: Mapping[str, Any], size: int
) -> tuple[list[SentenceModule], dict[str, Any] | None, int]:
    """Read the modules after the encoder.

    Args:
        size: size of the encoder's last hidden states.

    Returns:
        The modules, the settings of the MultiVectorMask module (None if missing), and the size of a vector.
    """
    model_type = options.get("model_type")
    if model_type == COLBERT_ARCHITECTURE:
        projection, size = _read_projection(folder, size)
        return [projection, SentenceModule("Normalize")], _default_mask(options), size
    entries = read_modules(folder)
    if not entries or _kind(entries[0][0]) != "Transformer" or entries[0][1].resolve() != folder.resolve():
        raise UnavailableError(
            f"The first module must be a Transformer that is saved in the folder of the model. {_REMEDY}"
        )
    modules: list[SentenceModule] = []
    masks = []
    for name, path in entries[1:]:
        kind = _kind(name)
        is_known = name.startswith("sentence_transformers.") or name == _DENSE_OF_PYLATE
        config = read_settings(path / "config.json", dict) if has_file(path, "config.json") else {}
        source = config.get("module_input_name") or ("" if kind == "Normalize" else _TOKENS)
        if is_known and kind == "MultiVectorMask":
            masks.append(config)
        elif is_known and kind in ("Dense", "Normalize") and source == _TOKENS:
            if (config.get("module_output_name") or source) != source:
                raise UnavailableError(f"The module {kind} does not output token vectors. {_REMEDY}")
            module, size = MODULE_READERS[kind](config, path, size)
            modules.append(module)
        elif not is_known or kind != "Normalize":  # a Normalize module for the sentence vector is ignored
            raise UnavailableError(
                f"The module {(kind if is_known else name)[:100]} of a late-interaction model is not "
                f"supported. Supported: Transformer, Dense, Normalize and MultiVectorMask. {_REMEDY}"
            )
    # PyLate and ColBERT checkpoints list no modules for normalization and masking: add them.
    if model_type != "MultiVectorEncoder":
        return [*modules, SentenceModule("Normalize")], _default_mask(options), size
    if len(masks) > 1:
        raise UnavailableError(
            f"{MODULES_FILE} lists {len(masks)} modules of type MultiVectorMask, but only 1 is supported. "
            f"{_REMEDY}"
        )
    return modules, masks[0] if masks else None, size


def _kind(name: str) -> str:
    return name.rpartition(".")[2]


def _default_mask(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mask settings of PyLate and ColBERT; by default, punctuation in documents is skipped."""
    words = options.get("skiplist_words")
    return {"skiplist_words": list(string.punctuation) if words is None else words}


def _read_projection(folder: Path, size: int) -> tuple[SentenceModule, int]:
    """Return the linear projection of an original ColBERT checkpoint, and the number of its outputs.

    The projection is stored with the weights of the encoder.
    """
    name, file = "linear.weight", folder / "model.safetensors"
    check_readable(file)
    try:
        with safe_open(file, framework="pt") as weights:
            weight = weights.get_tensor(name).clone()
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{file.name} has no {name}, the linear projection of ColBERT ({reason(error)}). {AGAIN}"
        ) from None
    if weight.ndim != 2 or weight.shape[1] != size or not weight.isfinite().all():
        raise CheckpointError(
            f"{name} must be a matrix of finite numbers with {size:,} columns, not of shape "
            f"{list(weight.shape)}. {AGAIN}"
        )
    weight = weight if weight.dtype == torch.float64 else weight.float()
    outputs = int(weight.shape[0])
    with torch.device("meta"):
        network = DenseNetwork(size, outputs, False, False)
    network.load_state_dict({name: weight}, assign=True)
    network.eval().requires_grad_(False)
    settings = (("size", outputs), ("activation", "Identity"), ("residual", False))
    return SentenceModule("Dense", settings, digest([file]), network), outputs


def _skipped(mask: Mapping[str, Any] | None, tokenizer: Any) -> dict[str, tuple[int, ...]]:
    """Return the IDs of tokens without a vector, under "query" and "document".

    Words outside the vocabulary are ignored: they have the ID of the unknown token, and skipping this ID
    would remove the vectors of all unknown words.
    """
    words = (mask or {}).get("skiplist_words") or []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise CheckpointError(f"skiplist_words must be a list of strings. {AGAIN}")
    unknown, unknown_id = tokenizer.unk_token, tokenizer.unk_token_id
    ids = {word: tokenizer.convert_tokens_to_ids(word) for word in words}
    skipped = {id_ for word, id_ in ids.items() if id_ is not None and (id_ != unknown_id or word == unknown)}
    tasks = (mask or {}).get("skiplist_tasks")
    names: Iterable[Any] = ["document"] if tasks is None else [tasks] if isinstance(tasks, str) else tasks
    return {name: tuple(sorted(map(int, skipped))) if name in names else () for name in ("query", "document")}


def _query_selection(
    settings: Mapping[str, Any],
    limit: int | None,
    model_limit: int | None,
    skipped: tuple[int, ...],
    mask: Mapping[str, Any] | None,
    tokenizer: Any,
) -> TokenSelection:
    """Return the token limit, skipped tokens and expansion of queries."""
    own = settings.get("query_length")
    expansion = settings.get("query_expansion")
    if expansion is None:
        return TokenSelection(_within(own, limit, model_limit), skipped)
    if not isinstance(expansion, dict) or expansion.get("strategy") not in ("fixed", "min"):
        raise UnavailableError(
            f"query_expansion is {str(expansion)[:100]}, but only the strategies fixed and min are "
            f"supported. {_REMEDY}"
        )
    length = positive_integer(expansion.get("length"), "length of query_expansion")
    if own is not None and positive_integer(own, "query_length") < length:
        raise CheckpointError(
            f"query_length is {own:,}, but must be at least {length:,}, the length of query_expansion. "
            f"{AGAIN}"
        )
    longest = max_input_tokens(model_limit)
    if length > longest:
        raise CheckpointError(
            f"Queries are expanded to {length:,} tokens, but the model reads at most {longest:,}. {AGAIN}"
        )
    if tokenizer.padding_side != "right":
        raise UnavailableError(
            "The tokenizer pads on the left, so queries would be expanded at the beginning, which is not "
            f"supported. {_REMEDY}"
        )
    target = length if expansion["strategy"] == "fixed" else own
    max_tokens = _within(target, limit, model_limit)
    is_attended = bool(expansion.get("attend"))
    if mask is None and not is_attended:  # without attention, appended tokens are only padding
        return TokenSelection(max_tokens, skipped)
    token_id = _expansion_token(expansion.get("token"), tokenizer)
    return TokenSelection(max_tokens, skipped, expansion=QueryExpansion(length, token_id, is_attended))


def _expansion_token(name: Any, tokenizer: Any) -> int:
    """Return the ID of the expansion token: the configured token, else [MASK], else the end-of-text token."""
    if name is None:
        ids = [tokenizer.mask_token_id, tokenizer.eos_token_id]
        token_id = next((id_ for id_ in ids if id_ is not None), None)
    else:
        token_id = tokenizer.convert_tokens_to_ids(str(name))
        if token_id == tokenizer.unk_token_id and name != tokenizer.unk_token:
            token_id = None
    if token_id is None:
        raise CheckpointError(
            f"The vocabulary does not contain {str(name or '[MASK]')[:100]}, the token with which "
            f"queries are expanded. {AGAIN}"
        )
    return int(token_id)


def _within(own: Any, limit: int | None, model_limit: int | None) -> int | None:
    """Return the token limit: `own`, bounded by `model_limit`, or `limit` if `own` is None."""
    if own is None:
        return limit
    positive_integer(own, "The maximum length of queries or documents")
    return int(own) if model_limit is None else min(int(own), model_limit)
