"""Pooling of the hidden states of a text's tokens into one vector of the text.

A checkpoint made with sentence-transformers specifies its own pooling; see `model.sentence_modules`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tokenizers.normalizers import Lowercase
from tokenizers.normalizers import Sequence as NormalizerSequence

from bert_probe.errors import ArchitectureError, SelectionError, TextError, UnavailableError
from bert_probe.model.checkpoint import FILL_MASK, Checkpoint
from bert_probe.model.encoding import Token
from bert_probe.model.forward import NOT_FINITE
from bert_probe.model.outputs import OutputHead, output_head
from bert_probe.model.sentence_modules import SPLADE_MODES, SentenceModel
from bert_probe.model.sentence_networks import MODES, SentenceModule, pool_states
from bert_probe.model.trace import Array, Trace, read_only

POOLINGS: Mapping[str, str] = {
    "mean": "Mean of all token vectors, including [CLS] and [SEP].",
    "cls": "Last-layer vector of the first token, [CLS] or <s>.",
    "pooler": "The pooler's output for [CLS]; BERT's was trained for next-sentence prediction.",
    "max": "Maximum over all token vectors in each dimension, including [CLS] and [SEP].",
    "last": "Last-layer vector of the last token, the only token of a decoder that attends to the whole "
    "text.",
    "model": "The pooling that the checkpoint declares, as in sentence-transformers.",
}

_NAMES = {
    "mean": "mean of all tokens",
    "cls": "first token",
    "max": "maximum over all tokens",
    "lasttoken": "last token",
    "splade_max": "SPLADE max pooling (maximum of log(1 + ReLU(logit)) over the tokens)",
    "splade_sum": "SPLADE sum pooling (sum of log(1 + ReLU(logit)) over the tokens)",
    "splade_max_log1p": "SPLADE max pooling (maximum of log(1 + log(1 + ReLU(logit))) over the tokens)",
    "splade_sum_log1p": "SPLADE sum pooling (sum of log(1 + log(1 + ReLU(logit))) over the tokens)",
}

NO_PROMPT = "none"
"""Name that selects no prompt, unless the checkpoint has a prompt with this name."""

DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names of the prompts that sentence-transformers uses for documents, in order of precedence."""

PROMPT_HELP = (
    "Name of the checkpoint's prompt that is prepended to each text, such as query; none for no prompt."
)
DIMENSIONS_HELP = "Truncate vectors to this many dimensions (Matryoshka)."

SCORES = {
    "cosine": "cosine",
    "dot": "dot product",
    "euclidean": "negative Euclidean distance",
    "manhattan": "negative Manhattan distance",
}


@dataclass(frozen=True)
class PoolingConfig:
    """The pooling of a text's tokens into one vector, and the similarity function of two vectors.

    Attributes:
        modes: keys of `MODES`, or "pooler"; the results are concatenated in this order.
        token_modules: modules applied to the last hidden states before pooling.
        vector_modules: modules applied to the pooled vector.
        dimensions: number of dimensions to which the vector is truncated; None if it is not truncated.
        similarity: score of two vectors, from `SIMILARITIES`.
        max_tokens: number of tokens, including special tokens, to which longer texts are truncated. If None,
            texts longer than the model's limit raise an error.
        prefix: prompt before each text.
        excluded: number of tokens at the start (the prompt) that are not pooled.
        lower_case: whether texts are lowercased first.
        special: special tokens that are not lowercased in texts, such as [MASK].
        task: the task for which a Router selects the modules; "" without a Router, or for its default task.
    """

    modes: tuple[str, ...]
    token_modules: tuple[SentenceModule, ...] = ()
    vector_modules: tuple[SentenceModule, ...] = ()
    dimensions: int | None = None
    similarity: str = "cosine"
    max_tokens: int | None = None
    prefix: str = ""
    excluded: int = 0
    lower_case: bool = False
    special: tuple[str, ...] = field(default=(), repr=False)
    task: str = ""

    def text(self, sentence: str) -> str:
        """Return the text that is passed to the tokenizer for a sentence."""
        return model_text(self.prefix, sentence, self.lower_case, self.special)

    @property
    def changes_text(self) -> bool:
        """Whether texts have a prompt, are lowercased, or are truncated to a maximum length."""
        return bool(self.prefix or self.lower_case or self.max_tokens)

    @property
    def score_name(self) -> str:
        """Readable name of the score of two vectors."""
        return SCORES[self.similarity]

    @property
    def score_title(self) -> str:
        """Readable name of the score with a capital letter, for the beginning of a sentence."""
        return self.score_name[0].upper() + self.score_name[1:]

    def __str__(self) -> str:
        """Return a readable description of the pooling."""
        parts = [f"{module} per token" for module in self.token_modules]
        parts += [" and ".join(_NAMES.get(mode, mode) for mode in self.modes)]
        parts += [str(module) for module in self.vector_modules]
        parts += [f"encoded for the task {self.task}"] if self.task else []
        parts += [f"first {self.dimensions:,} dimensions"] if self.dimensions else []
        parts += [f"“{self.prefix}” prepended to each text"] if self.prefix else []
        parts += ["the tokens of the prompt are not pooled"] if self.excluded else []
        parts += ["lowercased"] if self.lower_case else []
        parts += [f"truncated to {self.max_tokens:,} tokens"] if self.max_tokens else []
        parts += [f"compared by {self.score_name}"] if self.similarity != "cosine" else []
        return ", ".join(parts)

    @property
    def about(self) -> dict[str, Any]:
        """The configuration as JSON values, for provenance."""
        return {
            "modes": list(self.modes),
            "token_modules": [module.about for module in self.token_modules],
            "vector_modules": [module.about for module in self.vector_modules],
            "dimensions": self.dimensions,
            "similarity": self.similarity,
            "max_tokens": self.max_tokens,
            "prefix": self.prefix,
            "excluded_tokens": self.excluded,
            "lower_case": self.lower_case,
            **({"task": self.task} if self.task else {}),
        }


def model_text(prefix: str, sentence: str, lower_case: bool, special: Sequence[str] = ()) -> str:
    """Return a sentence with its prompt, lowercased except for the special tokens if `lower_case` is true.

    Raises:
        TextError: other parts of the text are special tokens in lower case.
    """
    text = prefix + sentence if isinstance(sentence, str) else sentence
    if not lower_case or not isinstance(text, str):
        return text
    parts = _split_at(text, special)
    parts[::2] = map(Lowercase().normalize_str, parts[::2])
    lowered = "".join(parts)
    if (tokens := _split_at(lowered, special)) != parts:
        raise TextError(
            f"In lower case, a part of the text is the special token {tokens[1][:100]}, but the model reads "
            "this part as text. Change it."
        )
    return lowered


def _split_at(text: str, special: Sequence[str]) -> list[str]:
    """Split a text at special tokens; the items with odd indices are the tokens.

    As in the tokenizers library, the longest of several tokens at the same position counts.
    """
    tokens = sorted((token for token in special if token in text), key=len, reverse=True)
    return re.split(f"({'|'.join(map(re.escape, tokens))})", text) if tokens else [text]


def lowercasing(tokenizer: Any, lower_case: bool) -> tuple[bool, tuple[str, ...]]:
    """Return `lower_case` and the special tokens that are not lowercased, for `model_text`.

    sentence-transformers adds Lowercase to the tokenizer's normalizer unless it contains Lowercase. A
    normalizer does not change tokens that were added with normalized=False.
    """
    normalizer: Any = tokenizer.backend_tokenizer.normalizer if lower_case else None
    normalizers: Any = normalizer if isinstance(normalizer, NormalizerSequence) else [normalizer]
    if not lower_case or any(isinstance(part, Lowercase) for part in normalizers):
        return False, ()
    added = tokenizer.added_tokens_decoder.values()
    return True, tuple(token.content for token in added if not token.normalized)


def resolve_pooling(
    checkpoint: Checkpoint, pooling: str, prompt: str | None = None, dimensions: int | None = None
) -> PoolingConfig:
    """Return the pooling configuration for a name in `POOLINGS`.

    Args:
        prompt: name of a prompt of the checkpoint, or `NO_PROMPT`. By default, the checkpoint's default
            prompt with the pooling "model", and no prompt with other poolings. With a Router, a prompt also
            selects the task of the same name, like `encode_query` and `encode_document` in
            sentence-transformers. A task without a matching prompt uses the default prompt, except "query"
            and "document", which then have no prompt.
        dimensions: number of dimensions to which the vector is truncated. By default, the checkpoint's
            own number with the pooling "model", and all dimensions with other poolings.

    Raises:
        UnavailableError: the checkpoint does not support this pooling.
        CheckpointError: the checkpoint's own configuration cannot be read.
        SelectionError: the checkpoint has no such prompt, or its vectors have fewer dimensions than selected.
    """
    model = checkpoint.sentence_model
    task = task_of(model, prompt) if pooling == "model" and model is not None else None
    config = _pooling(checkpoint, pooling, task)
    if prompt is None and pooling == "model" and model is not None:
        prompt = model.default_prompt
    if prompt is not None:
        config = _with_prompt(checkpoint, config, prompt, pooling)
    if dimensions is not None:
        is_own = pooling == "model" and model is not None
        if is_own and model is not None and model.is_sparse:
            raise SelectionError(
                "The dimensions of this SparseEncoder are the tokens of the vocabulary, so vectors cannot "
                "be truncated. Omit dimensions."
            )
        size = model.size if is_own and model is not None else checkpoint.description.hidden_size
        if not 1 <= dimensions <= size:
            raise SelectionError(
                f"dimensions is {dimensions:,}, but the vectors have {size:,} dimensions. Pass a number "
                f"from 1 to {size:,}."
            )
        config = replace(config, dimensions=dimensions)
    return config


def _with_prompt(checkpoint: Checkpoint, config: PoolingConfig, prompt: str, pooling: str) -> PoolingConfig:
    model = checkpoint.sentence_model
    prompts = {NO_PROMPT: ""}
    if model is not None:
        own = dict(model.prompts)
        default = own.get(model.default_prompt or "", "") if pooling == "model" else ""
        # For queries and documents, sentence-transformers never uses the default prompt.
        prompts |= {task: "" if task in ("query", "document") else default for task in model.tasks} | own
    if prompt not in prompts:
        names = ", ".join(name for name in prompts if name != NO_PROMPT) or "none"
        raise SelectionError(
            f"{checkpoint.description.name} has no prompt {prompt!r}. Its prompts: {names}. "
            f"Use {NO_PROMPT} for no prompt."
        )
    prefix = prompts[prompt]
    excluded = 0
    is_own = pooling == "model" and model is not None and prefix
    if is_own and model is not None and not model.for_task(config.task or None).include_prompt:
        # The maximum length of a task does not apply to the prompt alone.
        excluded = _prompt_length(checkpoint, prefix, replace(config, max_tokens=model.max_tokens))
    return replace(config, prefix=prefix, excluded=excluded)


def task_of(model: SentenceModel, prompt: str | None) -> str | None:
    """Return the task that a prompt selects; None for the default task, or without a Router.

    Args:
        prompt: name of a prompt or of a task; None for the default task.
    """
    if prompt in model.tasks:
        return prompt
    return "document" if prompt in DOCUMENT_PROMPTS and "document" in model.tasks else None


def prompt_names(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the names of the checkpoint's prompts and tasks, the default first; () if none has an effect."""
    model = checkpoint.sentence_model
    if model is None or not (model.tasks or any(text for _, text in model.prompts)):
        return ()
    names = dict.fromkeys([*dict(model.prompts), *model.tasks])
    return tuple(sorted(names, key=lambda name: name != model.default_prompt))


def offered_dimensions(
    size: int, selected: int | None = None, trained: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return the numbers of dimensions that a user can select, in ascending order.

    The result contains ``size`` and the powers of 2 from 8 to ``size``.

    Args:
        size: number of dimensions of the untruncated vector.
        selected: number of dimensions that is already selected, which is added to the result.
        trained: numbers of dimensions for which the model was trained, which are added to the result.
    """
    powers = {2**power for power in range(3, size.bit_length()) if 2**power < size}
    return tuple(sorted(powers | {size, selected or size, *trained}))


def prompt_positions(tokens: Sequence[Token], recipe: PoolingConfig) -> tuple[int, ...]:
    """Return the positions of the tokens that belong to the prompt, in a text with this prompt."""
    end = len(replace(recipe, prefix="").text(recipe.prefix))
    return tuple(token.position for token in tokens if token.end is not None and token.end <= end)


def _pooling(checkpoint: Checkpoint, pooling: str, task: str | None = None) -> PoolingConfig:
    """Return the configuration of a pooling in `POOLINGS`, without a prompt and with default dimensions."""
    if pooling == "model":
        return _own(checkpoint, task)
    available = available_poolings(checkpoint)
    if pooling == "pooler" and pooling not in available:
        raise UnavailableError(f"This {checkpoint.description.architecture} has no pooler. Use cls or mean.")
    if pooling == "last" and pooling not in available:
        raise UnavailableError(
            "Last-token pooling applies only to decoders, which read from left to right. Use mean."
        )
    if pooling == "last":
        return PoolingConfig(("lasttoken",))
    if pooling == "cls" and pooling not in available:
        raise UnavailableError("This model has no [CLS] token that attends to the whole text. Use mean.")
    return PoolingConfig((pooling,))


def available_poolings(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the poolings that a checkpoint supports, beginning with the one that it declares, if any.

    A declared pooling that is not supported is left out.
    """
    own: tuple[str, ...] = ("model",) if checkpoint.sentence_model is not None else ()
    is_causal = checkpoint.description.is_causal
    cls: tuple[str, ...] = ("cls",) if checkpoint.encode("a").tokens[0].special and not is_causal else ()
    # In a decoder, the last token is the only token that attends to the whole text.
    last: tuple[str, ...] = ("last",) if is_causal else ()
    pooler: tuple[str, ...] = ("pooler",) if checkpoint.description.has_pooler else ()
    return (*own, *last, "mean", *cls, *pooler, "max")


def _own(checkpoint: Checkpoint, task: str | None) -> PoolingConfig:
    """Return the pooling that the checkpoint declares in its sentence-transformers files for a task."""
    model = sentence_model(checkpoint).for_task(task)
    token_modules = model.token_modules
    if model.is_sparse:
        head = _WordLogits(output_head(checkpoint, FILL_MASK))
        token_modules = (SentenceModule("MaskedLM", (("size", model.size),), network=head),)
    lower_case, special = lowercasing(checkpoint.tokenizer, model.lower_case)
    return PoolingConfig(
        modes=model.modes,
        token_modules=token_modules,
        vector_modules=model.vector_modules,
        dimensions=model.dimensions,
        similarity=model.similarity,
        max_tokens=model.max_tokens,
        lower_case=lower_case,
        special=special,
        task=task or "",
    )


class _WordLogits(torch.nn.Module):
    """A module that applies the masked-language-modeling head to hidden states, [text, token, hidden]."""

    head: OutputHead

    def __init__(self, head: OutputHead) -> None:
        super().__init__()
        self.__dict__["head"] = head  # not registered as a submodule, because the checkpoint owns the weights

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the logits of all words, in the dtype of the head."""
        weight = next(self.head.model.parameters())
        inputs = {"input_ids": torch.zeros(states.shape[:2], dtype=torch.long, device=weight.device)}
        return self.head.answer(inputs, states.to(weight.device, weight.dtype), None)


def sentence_model(checkpoint: Checkpoint) -> SentenceModel:
    """Return the modules that compute sentence vectors, from the checkpoint's sentence-transformers files.

    Raises:
        UnavailableError, CheckpointError: there are no such files, or they are not supported.
    """
    if checkpoint.sentence_model_error is not None:
        raise type(checkpoint.sentence_model_error)(*checkpoint.sentence_model_error.args)
    if checkpoint.sentence_model is None:
        raise UnavailableError(
            f"{checkpoint.description.name} does not declare its pooling in the modules.json of "
            "sentence-transformers. Use mean, cls, pooler or max."
        )
    return checkpoint.sentence_model


def _prompt_length(checkpoint: Checkpoint, prompt: str, config: PoolingConfig) -> int:
    """Return the number of prompt tokens at the start of a text, which are left out of the pooling.

    As in sentence-transformers, the prompt is encoded alone, and a special token at its end is not counted.
    """
    text = replace(config, prefix="").text(prompt)
    encoding = checkpoint.encoder.encode(text, truncate=True, max_tokens=config.max_tokens)
    ids = encoding.ids
    return len(ids) - (ids[-1] in checkpoint.tokenizer.all_special_ids)


def pool(output: Any, mask: torch.Tensor, recipe: PoolingConfig) -> torch.Tensor:
    """Pool a batch of texts into vectors of shape [text, size].

    Args:
        output: the model's output.
        mask: 1 for tokens, 0 for padding, [text, token].
        recipe: the pooling configuration.

    Returns:
        The vectors, in float32, or in float64 if the model computes in float64. Sums in half precision would
        be too inaccurate.

    Raises:
        TextError: a text consists of the prompt alone, which is not pooled.
        ArchitectureError: the vector of a text is not finite.
    """
    vectors = pool_states(
        output.last_hidden_state,
        _pooled_mask(mask, recipe),
        recipe,
        None if "pooler" not in recipe.modes else output.pooler_output,
    )
    if not torch.isfinite(vectors).all():
        raise ArchitectureError(NOT_FINITE)
    return vectors


def _pooled_mask(mask: torch.Tensor, recipe: PoolingConfig) -> torch.Tensor:
    """Return the mask without the tokens of a prompt that is not pooled."""
    if not recipe.excluded:
        return mask
    pooled = mask.clone()
    pooled[:, : recipe.excluded] = 0
    if not pooled.any(dim=1).all():
        raise TextError(
            "The text has no token after the prompt, and the tokens of the prompt are not pooled. Write a "
            "longer text."
        )
    return pooled


def trace_pooled(checkpoint: Checkpoint, text: str, recipe: PoolingConfig, truncate: bool = False) -> Trace:
    """Return the trace of a text with the prompt and the maximum length of a pooling configuration.

    Args:
        truncate: truncate a text that is too long instead of raising an error. A configuration with
            ``max_tokens`` always truncates.

    Raises:
        TextError, EmptyTextError, TooLongError: the text cannot be encoded.
    """
    is_truncated = truncate or recipe.max_tokens is not None
    encoding = checkpoint.encoder.encode(
        recipe.text(text), truncate=is_truncated, max_tokens=recipe.max_tokens
    )
    return checkpoint.trace_encodings([encoding])[0]


def text_vector(trace: Trace, recipe: PoolingConfig) -> Array:
    """Return the sentence vector of a traced text, float64 [size], after all modules and truncation.

    Raises:
        TextError, ArchitectureError: see `pool`.
    """
    states = torch.tensor(trace.vectors(-1)).double()[None]
    pooler = None if trace.pooler is None else torch.tensor(trace.pooler).double()[None]
    vector: Array = pool_unpadded(states, recipe, pooler)[0].numpy()
    return vector


def pool_unpadded(
    states: torch.Tensor, recipe: PoolingConfig, pooler: torch.Tensor | None = None
) -> torch.Tensor:
    """Pool texts of the same length into vectors; see `pool`.

    Args:
        states: last hidden states, [text, token, hidden].
        recipe: the pooling configuration.
        pooler: the pooler's output, [text, hidden]; required for the mode "pooler".
    """
    output = SimpleNamespace(last_hidden_state=states, pooler_output=pooler)
    return pool(output, torch.ones(states.shape[:2], device=states.device), recipe)


def nonlinear_part(recipe: PoolingConfig) -> str:
    """Return a noun phrase that names the nonlinear part of a pooling; "" if the pooling is linear.

    Normalize and LayerNorm count as linear, because for a given text they divide by a constant.
    """
    if "max" in recipe.modes:
        return "the maximum over all tokens"
    if "pooler" in recipe.modes:
        return "the pooler"
    if set(recipe.modes) & set(SPLADE_MODES):
        return "the logarithm of SpladePooling"
    nonlinear = (module for module in recipe.vector_modules if module.activation != "Identity")
    return next((f"the module {module}" for module in nonlinear), "")


def why_not_a_sum(recipe: PoolingConfig) -> str:
    """Return a sentence that states why the score is not a sum over token pairs; "" if it is such a sum."""
    if recipe.similarity not in ("cosine", "dot"):
        return f"The {recipe.score_name} is not a sum over token pairs."
    part, name = nonlinear_part(recipe), recipe.score_name
    return f"The {name} is not a sum over token pairs, because {part} is not linear." if part else ""


def pair_contributions(a: Array, b: Array, similarity: str) -> Array:
    """Split the score of two vectors, which are sums of parts, into contributions of pairs, [part, part].

    With the vectors A = Σ_i a_i and B = Σ_j b_j: A · B = Σ_ij a_i · b_j, exactly; for the cosine, each
    summand is divided by |A| |B|.

    Args:
        a, b: the parts of two vectors, of shape [part, size]; see `token_parts`.
        similarity: "dot" or "cosine".

    Raises:
        UnavailableError: a vector is zero, so that its cosine is undefined.
    """
    if similarity == "dot":
        return read_only(a @ b.T)
    norm = np.linalg.norm(a.sum(axis=0)) * np.linalg.norm(b.sum(axis=0))
    if not norm:
        raise UnavailableError(
            "The sentence vector of a text is zero, so the cosine is undefined. Use another text."
        )
    return read_only(a @ b.T / norm)


def token_parts(states: Array, recipe: PoolingConfig) -> Array:
    """Return the contribution of each token to the text's vector; the vector is exactly their sum.

    Each module after the pooling is applied to the contributions. The norm in Normalize and the standard
    deviation in LayerNorm are treated as constants, with their values for this text. Additive constants,
    such as the bias of Dense, are divided among the tokens in proportion to their pooling weights.

    Args:
        states: last hidden states, [token, hidden].
        recipe: a pooling without a `nonlinear_part`.

    Returns:
        The contributions, float64 [token, size].
    """
    tokens = torch.tensor(states, dtype=torch.float64)[None]
    for module in recipe.token_modules:
        tokens = module(tokens)
    count = tokens.shape[1]
    mask = _pooled_mask(torch.ones(1, count, dtype=torch.float64), recipe)[..., None]
    # The pooling modes are linear, so pooling one-hot vectors gives the weight of each token.
    unit_vectors = torch.eye(count, dtype=torch.float64)[None]
    weights = torch.stack([MODES[mode](unit_vectors, mask)[0] for mode in recipe.modes])
    parts = torch.cat([weight[:, None] * tokens[0] for weight in weights], dim=-1)
    shares = (weights.sum(dim=0) / weights.sum())[:, None]
    for module in recipe.vector_modules:
        vector = parts.sum(dim=0)
        if module.kind == "Normalize":
            parts = parts / vector.norm().clamp_min(1e-12)
            continue
        if module.kind == "LayerNorm":
            spread = (vector.var(correction=0) + module.epsilon).sqrt()
            parts = (parts - parts.mean(dim=-1, keepdim=True)) / spread
            scale, constant = (module.parameter(name).double() for name in ("norm.weight", "norm.bias"))
            parts = parts * scale + shares * constant
            continue
        constant = module(torch.zeros_like(vector))
        parts = module(parts) - constant + shares * constant
    result: Array = parts[:, : recipe.dimensions].numpy()
    return result
