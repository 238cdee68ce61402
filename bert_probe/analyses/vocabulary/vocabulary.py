"""The vocabulary of a model: its tokens, their kinds and scripts, and the norms of their input vectors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.vectors.cosine import cosine, cosine_of_rows
from bert_probe.core.field_types import Choice, FieldType, Flag, Optional
from bert_probe.core.inputs import OneCheckpoint
from bert_probe.core.provenance import InputRecord
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.forward import as_array
from bert_probe.model.trace import Array, read_only
from bert_probe.text import pieces
from bert_probe.text.pieces import KINDS, SPECIAL, UNUSED, VocabularyTokens, visible, vocabulary_tokens

ALL = "all"
PAIRS = 10_000
"""Number of random token pairs. Every run on a vocabulary draws the same pairs."""
_TABLES = ("pieces", "kinds", "scripts")


@question("vocabulary")
class Vocabulary(Question):
    """The tokens of a model's vocabulary, their kinds and scripts, and the norms of their input vectors.

    Attributes:
        search: text to search for in the tokens' vocabulary names and in their texts; "" for all tokens.
        match: "contains", "prefix", "exact", or "regex" (a regular expression in RE2 syntax).
        case: whether the search is case-sensitive.
        kind: one of `KINDS`, or "all".
        script: one of `SCRIPTS`, "none", "several" or "other". If None, tokens of all scripts match.
        show: the table to return: "pieces" has one row per token, "kinds" and "scripts" have the number of
            tokens of each kind or script.
    """

    inputs = OneCheckpoint()

    search: str = param(
        FieldType(), default="", about="Show only tokens that match this text.", display_only=True
    )
    match: str = param(
        Choice(pieces.MATCHES),
        default=pieces.CONTAINS,
        about="How the text of --search is matched.",
        display_only=True,
    )
    case: bool = param(Flag(), default=False, about="Case-sensitive search.", display_only=True)
    kind: str = param(
        Choice((ALL, *KINDS)),
        default=ALL,
        key="piece_kind",
        about="Show only tokens of this kind.",
        display_only=True,
    )
    script: str | None = param(
        Optional(FieldType()),
        default=None,
        about="Show only tokens in this script, for example Latin.",
        display_only=True,
    )
    show: str = param(
        Choice(_TABLES), default="pieces", key="vocabulary_show", about="Table to show.", display_only=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        pieces.check(self.search, self.match, self.case)

    def of(self, checkpoint: Checkpoint) -> VocabularyResult:
        """Return the vocabulary of a model.

        Raises:
            UnavailableError: the model has no input embedding matrix, or fewer than two tokens.
        """
        with torch.inference_mode(), checkpoint.running() as model:
            table = input_embeddings(model, checkpoint)
            pieces, norms = vocabulary_tokens(checkpoint.encoder, len(table)), row_norms(table)
            unrelated = read_only(np.sort(pair_cosines(table, random_pairs(pieces, norms))))
            inputs = InputRecord.of_model(checkpoint)
        return VocabularyResult(self, inputs, pieces, norms, unrelated, table.shape[1])


@dataclass(frozen=True, eq=False, repr=False)
class VocabularyResult(Result):
    """The vocabulary of a model.

    Attributes:
        pieces: the tokens, in the order of their ids.
        norms: norm of each token's input vector, float64 [token].
        unrelated: cosines of random pairs of input vectors, ascending, float64 [pair].
        dimensions: size of the input vectors; some architectures project them to the hidden size.
    """

    question: Vocabulary
    pieces: VocabularyTokens
    norms: Array
    unrelated: Array
    dimensions: int

    def __post_init__(self) -> None:
        if self.norms.shape != (len(self.pieces),):
            raise ShapeError(f"norms has shape {self.norms.shape}, but must be [{len(self.pieces)} tokens].")

    @cached_property
    def found(self) -> tuple[int, ...]:
        """Ids of the tokens that match the search.

        Raises:
            SelectionError: the regular expression takes too long, or no token is in the script.
        """
        kind, script = self.question.kind, self.question.script
        scripts = self.scripts
        if script is not None and script not in scripts:
            raise SelectionError(
                f"The vocabulary has no tokens in the script {script}. Choose one of {', '.join(scripts)}."
            )
        ids = pieces.matching(self.pieces, self.question.search, self.question.match, self.question.case)
        return tuple(
            token
            for token in ids
            if kind in (ALL, self.pieces.kinds[token]) and script in (None, self.pieces.scripts[token])
        )

    @cached_property
    def scripts(self) -> tuple[str, ...]:
        """The scripts of all tokens in the vocabulary, most common first."""
        return tuple(name for name, _ in Counter(self.pieces.scripts).most_common())

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The number of all tokens, and the number of tokens that match the search."""
        return {"pieces": len(self.pieces), "found": len(self.found)}

    @property
    def share(self) -> float:
        """Share of the tokens that match the search, 0 to 1."""
        return len(self.found) / len(self.pieces)

    def counts(self, categories: Sequence[str]) -> dict[str, int]:
        """Return the number of matching tokens in each category, most common first.

        Args:
            categories: category of each token: `VocabularyTokens.kinds` or `VocabularyTokens.scripts`.
        """
        return dict(Counter(categories[token] for token in self.found).most_common())

    def frame(self) -> pd.DataFrame:
        """Return one row per matching token, or one row per kind or script of these tokens.

        Columns: id, token, text, kind, script, length, norm; or kind or script, count, share.
        """
        show = self.question.show
        if show == "pieces":
            return self.listed(self.found)
        counts = self.counts(self.pieces.kinds if show == "kinds" else self.pieces.scripts)
        shares = [count / len(self.found) for count in counts.values()]
        return pd.DataFrame(
            {
                show[:-1]: pd.Series([*counts], dtype=object),
                "count": pd.Series([*counts.values()], dtype=np.int64),
                "share": pd.Series(shares, dtype=np.float64),
            }
        )

    def listed(self, ids: Sequence[int]) -> pd.DataFrame:
        """Return one row per token with one of the given ids; see `frame`."""
        pieces = self.pieces
        return pd.DataFrame(
            {
                "id": np.array(ids, dtype=np.int64),
                "token": pd.Series([pieces.names[token] for token in ids], dtype=object),
                "text": pd.Series([visible(pieces.texts[token]) for token in ids], dtype=object),
                "kind": pd.Series([pieces.kinds[token] for token in ids], dtype=object),
                "script": pd.Series([pieces.scripts[token] for token in ids], dtype=object),
                "length": np.array([len(pieces.texts[token]) for token in ids], dtype=np.int64),
                "norm": self.norms[list(ids)],
            }
        )


def random_pairs(pieces: VocabularyTokens, norms: Array) -> Array:
    """Return the ids of random pairs of different tokens, of shape [pair, 2].

    Special and unused tokens, and tokens whose vector is zero, are excluded.

    Raises:
        UnavailableError: fewer than two tokens remain.
    """
    usable = np.array(
        [
            token
            for token, kind in enumerate(pieces.kinds)
            if kind not in (SPECIAL, UNUSED) and norms[token] > 0
        ]
    )
    if len(usable) < 2:
        raise UnavailableError(
            "A comparison needs at least two tokens that are not special or unused, but this vocabulary has "
            "fewer. Choose another model."
        )
    generator = np.random.default_rng(0)
    first = generator.integers(len(usable), size=PAIRS)
    # Add an offset of at least 1, so that the second token differs from the first.
    second = (first + generator.integers(1, len(usable), size=PAIRS)) % len(usable)
    return np.stack([usable[first], usable[second]], axis=1)


_BLOCK = 1 << 22
"""Number of values converted to float64 at a time. A whole vocabulary of 250,000 rows would need 1.5 GB."""
_EXTRA_CANDIDATES = 32
"""Number of extra rows whose cosine is recomputed in float64, lest rounding exclude a neighbor."""


def input_embeddings(model: Any, checkpoint: Checkpoint) -> torch.Tensor:
    """Return the input embeddings, [token, dimension], without copying them.

    Calls must be made within `Checkpoint.running`.

    Raises:
        UnavailableError: the model has no input embedding matrix.
    """
    try:
        table: torch.Tensor = model.get_input_embeddings().weight
    except (AttributeError, NotImplementedError):
        raise UnavailableError(
            f"{checkpoint.description.architecture} has no input embedding matrix with a row for each token."
        ) from None
    return table.detach()


def row_norms(table: torch.Tensor) -> Array:
    """Return the Euclidean norm of each row, float64 of shape [row]."""
    rows = max(1, _BLOCK // table.shape[1])
    blocks = [torch.linalg.vector_norm(part.double(), dim=1) for part in torch.split(table, rows)]
    return read_only(torch.cat(blocks).cpu().numpy())


def select_rows(table: torch.Tensor, ids: Array) -> Array:
    """Return the rows of the tokens with the given ids, of shape [id, dimension]."""
    return as_array(table[torch.from_numpy(ids).to(table.device)])


def nearest_rows(table: torch.Tensor, norms: Array, token: int, count: int) -> tuple[Array, Array]:
    """Return the ids and cosines of the other rows most similar to a token's row, by descending cosine.

    A matrix product selects candidates; their cosines are then recomputed in float64.
    """
    row = table[token]
    if table.dtype in (torch.float32, torch.float64):
        products = (table @ row).double().cpu().numpy()
    else:
        # Convert blocks to float32, because products in half precision are rounded too coarsely.
        rows = max(1, _BLOCK // table.shape[1])
        parts = [part.float() @ row.float() for part in torch.split(table, rows)]
        products = torch.cat(parts).double().cpu().numpy()
    cosines = np.divide(products, norms * norms[token], out=np.full(len(norms), -np.inf), where=norms > 0)
    cosines[token] = -np.inf
    size = min(count + _EXTRA_CANDIDATES, int((cosines > -np.inf).sum()))
    candidates = np.argpartition(-cosines, size - 1)[:size] if size else np.array([], dtype=np.int64)
    exact = cosine(select_rows(table, np.array([token])).astype(np.float64), select_rows(table, candidates))[
        0
    ]
    order = np.lexsort((candidates, -exact))[:count]
    return candidates[order], exact[order]


def pair_cosines(table: torch.Tensor, pairs: Array) -> Array:
    """Return the cosine of each pair of rows, float64; NaN if a row is all zeros.

    Args:
        table: the rows, [token, dimension].
        pairs: row indices, [pair, 2].
    """
    rows = max(1, _BLOCK // table.shape[1])
    parts = [
        cosine_of_rows(select_rows(table, part[:, 0]), select_rows(table, part[:, 1]))
        for part in np.array_split(pairs, max(1, len(pairs) // rows))
    ]
    return np.concatenate(parts)
