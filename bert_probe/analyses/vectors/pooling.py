"""From the vectors of a sentence's tokens to one vector for the sentence.

A checkpoint made with sentence-transformers says in ``modules.json`` how it was trained to do that. It is
read here, without that package, and refused where it asks for something that is not done here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers.normalizers import Lowercase

from bert_probe.errors import CheckpointError, ProbeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.text.strict_json import whole_number

POOLINGS: Mapping[str, str] = {
    "mean": "The mean of all the sentence's token vectors, [CLS] and [SEP] among them.",
    "cls": "The last-layer vector of the first token, [CLS] or <s>.",
    "pooler": "What the pooler makes of [CLS]; BERT's was trained to tell whether two sentences follow.",
    "max": "In each dimension the largest value of all tokens, [CLS] and [SEP] among them.",
    "model": "As the checkpoint was trained to be used; equal to sentence-transformers.",
}

_NAMES = {"mean": "mean of all tokens", "cls": "first token", "max": "largest of all tokens"}

_PROMPTS = "config_sentence_transformers.json"

_LEGACY_MODES = {
    # In the order in which sentence-transformers joins them.
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclass(frozen=True)
class PoolingConfig:
    """How sentences become vectors.

    Attributes:
        modes: what is made of the token vectors, joined in this order; keys of `_MODES`, or "pooler".
        normalised: divided by their length in the end.
        max_tokens: longer sentences are cut at this many tokens, special ones included; None: refused
            where the model ends.
        prefix: put before each sentence.
        lower_case: each sentence is put into lower case first.
    """

    modes: tuple[str, ...]
    normalised: bool = False
    max_tokens: int | None = None
    prefix: str = ""
    lower_case: bool = False

    def text(self, sentence: str) -> str:
        """The sentence as it is given to the tokenizer."""
        read = self.prefix + sentence if isinstance(sentence, str) else sentence
        return str(Lowercase().normalize_str(read)) if self.lower_case else read

    def __str__(self) -> str:
        """In words, for a reader."""
        parts = [" and ".join(_NAMES.get(mode, mode) for mode in self.modes)]
        parts += [f"“{self.prefix}” before each sentence"] if self.prefix else []
        parts += ["in lower case"] if self.lower_case else []
        parts += [f"cut after {self.max_tokens:,} tokens"] if self.max_tokens else []
        parts += ["divided by its length"] if self.normalised else []
        return ", ".join(parts)

    @property
    def about(self) -> dict[str, Any]:
        """Plain values, for a table's provenance."""
        return {
            "modes": list(self.modes),
            "normalised": self.normalised,
            "max_tokens": self.max_tokens,
            "prefix": self.prefix,
            "lower_case": self.lower_case,
        }


def recipe(checkpoint: Checkpoint, pooling: str) -> PoolingConfig:
    """The recipe that a name of `POOLINGS` stands for in a checkpoint.

    Raises:
        UnavailableError: the checkpoint lacks what it needs.
        CheckpointError: its own pooling cannot be read.
    """
    if pooling == "model":
        return _own(checkpoint)
    possible = offered(checkpoint)
    if pooling == "pooler" and pooling not in possible:
        raise UnavailableError(f"{checkpoint.description.architecture} here has no pooler. Use cls or mean.")
    if pooling == "cls" and pooling not in possible:
        raise UnavailableError("This model's input does not begin with a [CLS] token. Use mean.")
    return PoolingConfig((pooling,))


def offered(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Poolings that a checkpoint has what it takes for; its own first, if it ships one."""
    own: tuple[str, ...] = ("model",) if checkpoint.pools else ()
    cls: tuple[str, ...] = ("cls",) if checkpoint.encode("a").tokens[0].special else ()
    pooler: tuple[str, ...] = ("pooler",) if checkpoint.description.has_pooler else ()
    return (*own, "mean", *cls, *pooler, "max")


def own_files(checkpoint: Checkpoint) -> tuple[dict[str, Any], list[str]]:
    """What another folder needs so that sentence-transformers makes the same of its model: name → JSON.

    Returns:
        Also a sentence, where the checkpoint's own files ask for what is not known here; then there are none.
    """
    folder = checkpoint.folder
    if folder is None or not checkpoint.pools:
        return {}, []
    try:
        own, pooling = _own(checkpoint), _read(_modules(checkpoint)[1], dict)
        prompts = _read(folder / _PROMPTS, dict) if (folder / _PROMPTS).is_file() else None
    except ProbeError as error:
        return {}, [f"It will not make sentence vectors in sentence-transformers. {error}"]
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    kinds += [("Normalize", "2_Normalize")] if own.normalised else []
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for place, (kind, path) in enumerate(kinds)
    ]
    reading = {"max_seq_length": own.max_tokens, "do_lower_case": own.lower_case}
    files = {"modules.json": modules, "1_Pooling/config.json": pooling, "sentence_bert_config.json": reading}
    return files | ({} if prompts is None else {_PROMPTS: prompts}), []


def _own(checkpoint: Checkpoint) -> PoolingConfig:
    """The checkpoint's own recipe, out of its sentence-transformers files."""
    folder, name = checkpoint.folder, checkpoint.description.name
    if folder is None or not checkpoint.pools:
        raise UnavailableError(
            f"{name} ships no pooling of its own (modules.json of sentence-transformers). "
            "Use mean, cls, pooler or max."
        )
    kinds, file = _modules(checkpoint)
    pooling = _read(file, dict)
    reading = _read_transformer(folder)
    prefix = _default_prompt(folder)
    if prefix and not pooling.get("include_prompt", True):
        raise UnavailableError(
            f"The own pooling of {name} leaves out its prompt, which is not done here. "
            "Use mean, cls, pooler or max."
        )
    return PoolingConfig(
        modes=_modes(pooling),
        normalised="Normalize" in kinds,
        max_tokens=_length(reading.get("max_seq_length"), checkpoint),
        prefix=prefix,
        lower_case=bool(reading.get("do_lower_case")),
    )


def _modules(checkpoint: Checkpoint) -> tuple[list[str], Path]:
    """Of which modules its files are, and the file that says how tokens are pooled."""
    folder = checkpoint.folder
    assert folder is not None  # or it would have no files
    modules = _read(folder / "modules.json", list)
    try:
        kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
        paths = [folder / str(module["path"]) for module in modules]
    except (TypeError, KeyError):
        raise CheckpointError("modules.json cannot be read. Download the model again.") from None
    if kinds[:2] != ["Transformer", "Pooling"] or set(kinds[2:]) - {"Normalize"} or paths[0] != folder:
        raise UnavailableError(
            f"The own pooling of {checkpoint.description.name} is {', '.join(kinds)}, of which only "
            "Transformer, Pooling and Normalize are known here. Use mean, cls, pooler or max."
        )
    if not paths[1].resolve().is_relative_to(folder.resolve()):
        raise CheckpointError("modules.json points outside its folder, which is refused.")
    return kinds, paths[1] / "config.json"


def _read(path: Path, kind: type) -> Any:
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_int=whole_number)
    except (ValueError, OSError, RecursionError) as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}. Download the model again.") from None
    if not isinstance(found, kind):
        raise CheckpointError(f"{path.name} is no JSON {kind.__name__}. Download the model again.")
    return found


def _read_transformer(folder: Path) -> dict[str, Any]:
    """How sentences are read; older versions name the file after the model's family."""
    found = sorted(folder.glob("sentence_*_config.json"))
    reading: dict[str, Any] = _read(found[0], dict) if found else {}
    unknown = [name for name in ("query_expansion", "processing_kwargs") if reading.get(name)]
    if unknown:
        raise UnavailableError(
            f"The own pooling of this checkpoint sets {', '.join(unknown)}, which is not done here. "
            "Use mean, cls, pooler or max."
        )
    return reading


def _default_prompt(folder: Path) -> str:
    path = folder / _PROMPTS
    config = _read(path, dict) if path.is_file() else {}
    return str((config.get("prompts") or {}).get(config.get("default_prompt_name")) or "")


def _modes(config: dict[str, Any]) -> tuple[str, ...]:
    given = config.get("pooling_mode")
    if given is None:
        given = [mode for name, mode in _LEGACY_MODES.items() if config.get(name)] or ["mean"]
    modes = (given,) if isinstance(given, str) else tuple(given)
    if not modes or not set(modes) <= set(_MODES):
        raise UnavailableError(
            f"The checkpoint's own pooling is {', '.join(map(str, modes))}, which is not known here. "
            "Use mean, cls, pooler or max."
        )
    return modes


def _length(given: Any, checkpoint: Checkpoint) -> int | None:
    """Where sentence-transformers cuts: its own limit, else the tokenizer's; never beyond the model."""
    limit = given if given is not None else checkpoint.tokenizer.model_max_length
    limits = [limit, checkpoint.description.max_tokens]
    # A tokenizer without a limit names a number with thirty digits.
    return min((int(limit) for limit in limits if limit is not None and limit < 10**9), default=None)


def pool(output: Any, mask: torch.Tensor, recipe: PoolingConfig) -> torch.Tensor:
    """Vectors of a batch of sentences, [sentence, hidden × modes].

    Args:
        output: of the model; mask: 1 at tokens, 0 at padding, [sentence, token].

    Returns:
        In float32, or float64 where the model computes in it: sums in half precision would lose too much.
    """
    states = _whole(output.last_hidden_state)
    kept = mask[..., None].to(states.dtype)
    parts = [
        _whole(output.pooler_output) if mode == "pooler" else _MODES[mode](states, kept)
        for mode in recipe.modes
    ]
    pooled = torch.cat(parts, dim=-1)
    return torch.nn.functional.normalize(pooled, dim=-1) if recipe.normalised else pooled


def pool_unpadded(
    states: torch.Tensor, recipe: PoolingConfig, pooler: torch.Tensor | None = None
) -> torch.Tensor:
    """The same for texts of one length, given the last hidden states [text, token, hidden] and, for a recipe
    that needs it, the pooler's output [text, hidden]."""
    output = SimpleNamespace(last_hidden_state=states, pooler_output=pooler)
    return pool(output, torch.ones(states.shape[:2], device=states.device), recipe)


def _whole(states: torch.Tensor) -> torch.Tensor:
    return states if states.dtype == torch.float64 else states.float()


def _sum(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return (states * mask).sum(dim=1)


def _last(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    ends = mask[..., 0].sum(dim=1).long() - 1
    return states[torch.arange(len(states), device=states.device), ends]


def _weighted(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    places = mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)[None, :, None]
    return _sum(states, places) / places.sum(dim=1)


_MODES: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mean": lambda states, mask: _sum(states, mask) / mask.sum(dim=1),
    "cls": lambda states, _: states[:, 0],
    "max": lambda states, mask: states.masked_fill(mask == 0, -torch.inf).amax(dim=1),
    "mean_sqrt_len_tokens": lambda states, mask: _sum(states, mask) / mask.sum(dim=1).sqrt(),
    "weightedmean": _weighted,
    "lasttoken": _last,
}
"""What sentence-transformers makes of token vectors [sentence, token, hidden]; padding is on the right."""
