"""The vocabulary of a model: kinds, scripts and embedding norms of its tokens, and nearest neighbors."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.vectors.similarity import cosine, cosine_of_rows
from bert_probe.core.field_types import Choice, Dimensions, FieldType, Flag, Number, Optional
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
        show: the table to return: "pieces" with one row per token, or "kinds" or "scripts" with the number of
            tokens of each kind or script.
    """

    inputs = OneCheckpoint()

    search: str = param(
        FieldType(), default="", about="Show only tokens that match this search text.", display_only=True
    )
    match: str = param(
        Choice(pieces.MATCHES),
        default=pieces.CONTAINS,
        about="How the text of --search is matched with the tokens.",
        display_only=True,
    )
    case: bool = param(Flag(), default=False, about="Case-sensitive search.", display_only=True)
    kind: str = param(
        Choice((ALL, *KINDS)),
        default=ALL,
        key="piece_kind",
        about="Show only tokens of this type.",
        display_only=True,
    )
    script: str | None = param(
        Optional(FieldType()),
        default=None,
        about="Show only tokens in this script, for example Latin.",
        display_only=True,
    )
    show: str = param(
        Choice(_TABLES),
        default="pieces",
        key="vocabulary_show",
        about="Table: the tokens, or the number of tokens by type or by script.",
        display_only=True,
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
            raise ShapeError(f"norms must have shape [{len(self.pieces)} tokens], not {self.norms.shape}.")

    @cached_property
    def found(self) -> tuple[int, ...]:
        """Ids of the tokens that match the search.

        Raises:
            SelectionError: the regular expression takes too long, or no token is in the selected script.
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
        """Number of tokens that match the search, divided by the number of all tokens."""
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
        """Return one row for each token with one of these ids, with the columns of `frame`."""
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
            "The baseline needs at least two tokens that are neither special nor unused, but this "
            "vocabulary has fewer. Choose another model."
        )
    generator = np.random.default_rng(0)
    first = generator.integers(len(usable), size=PAIRS)
    # Add an offset of at least 1, so that the second token differs from the first.
    second = (first + generator.integers(1, len(usable), size=PAIRS)) % len(usable)
    return np.stack([usable[first], usable[second]], axis=1)


_BLOCK = 1 << 22
"""Number of values converted to float64 at a time. A whole vocabulary of 250,000 rows would need 1.5 GB."""
_EXTRA_CANDIDATES = 32
"""Number of extra rows whose cosine is recomputed in float64, so that rounding excludes no neighbor."""


def input_embeddings(model: Any, checkpoint: Checkpoint) -> torch.Tensor:
    """Return the input embeddings, [token, dimension], without copying them.

    Call this function only within `Checkpoint.running`.

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
    """Return the Euclidean norm of each row of a matrix, float64 of shape [row]."""
    rows = max(1, _BLOCK // table.shape[1])
    blocks = [torch.linalg.vector_norm(part.double(), dim=1) for part in torch.split(table, rows)]
    return read_only(torch.cat(blocks).cpu().numpy())


def select_rows(table: torch.Tensor, ids: Array) -> Array:
    """Return the rows of the tokens with the given ids, of shape [id, dimension]."""
    return as_array(table[torch.from_numpy(ids).to(table.device)])


def nearest_rows(table: torch.Tensor, norms: Array, token: int, count: int) -> tuple[Array, Array]:
    """Return the ids and cosines of the rows most similar to the row of a token, by descending cosine.

    A matrix product selects candidates; their cosines are then recomputed in float64.

    Args:
        table: the input embeddings, [token, dimension].
        norms: norm of each row.
        token: id of the token, whose own row is not returned.
        count: maximum number of returned rows.
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


MAX_NEIGHBORS = 1_000
_ID = re.compile(r"id:([0-9]{1,9})")


class VocabularyToken(FieldType):
    """Field type of a vocabulary token: its name, a word that is a single token, or its id as id:2314."""

    metavar = "WORD|id:N"

    def check(self, name: str, value: Any) -> Any:
        """Return the token as a name (str) or as an id (int)."""
        if isinstance(value, bool) or not isinstance(value, int | np.integer | str):
            raise SelectionError(f"{name} must be a token or its id, not {value!r}.")
        if not isinstance(value, str):
            return int(value)
        number = _ID.fullmatch(value)
        return int(number[1]) if number else value

    def write(self, value: Any) -> str:
        """Return a token's name, or its id as text such as id:2314."""
        return f"id:{value}" if isinstance(value, int) else str(value)

    def to_json(self, value: Any) -> Any:
        """Return the token as text, in the same form as `write`."""
        return self.write(value)

    def from_json(self, name: str, value: Any, sizes: Dimensions) -> Any:  # noqa: ARG002
        """Convert the output of `to_json` back to a token."""
        return self.check(name, super().check(name, value))

    def read(self, name: str, text: str, sizes: Dimensions) -> Any:  # noqa: ARG002
        """Convert the output of `write` back to a token."""
        return self.check(name, text)


@question("neighbors")
class Neighbors(Question):
    """The vocabulary tokens whose input embeddings are most similar to a token's embedding.

    Attributes:
        token: a token as in the vocabulary, a word that is a single token, or an id.
        count: number of neighbors.
    """

    inputs = OneCheckpoint()

    token: int | str = param(
        VocabularyToken(), key="near", about="Token of the vocabulary whose neighbors are listed."
    )
    count: int = param(Number(1, MAX_NEIGHBORS), default=20, about="Number of neighbors.  [default: 20]")

    def of(self, checkpoint: Checkpoint, vocabulary: VocabularyResult | None = None) -> NeighborsResult:
        """Return the tokens nearest to the question's token.

        Args:
            checkpoint: the model.
            vocabulary: the result of `Vocabulary` for the same model. If None, it is computed.

        Raises:
            SelectionError: the vocabulary does not contain the token.
            UnavailableError: the token's vector is zero; see also `Vocabulary.of`.
        """
        checkpoint = checkpoint.snapshot()
        if vocabulary is None:
            vocabulary = Vocabulary().of(checkpoint)
        token = self._find(checkpoint, vocabulary.pieces)
        if not vocabulary.norms[token] > 0:
            name = visible(vocabulary.pieces.names[token])
            raise UnavailableError(
                f"The input vector of {name} is all zeros, so it has no neighbors. Choose another token."
            )
        with torch.inference_mode(), checkpoint.running() as model:
            ids, cosines = nearest_rows(
                input_embeddings(model, checkpoint), vocabulary.norms, token, self.count
            )
        resolved = replace(self, token=token_reference(vocabulary.pieces, token))
        return NeighborsResult(
            resolved, vocabulary.inputs, vocabulary, token, read_only(ids), read_only(cosines)
        )

    def _find(self, checkpoint: Checkpoint, pieces: VocabularyTokens) -> int:
        if isinstance(self.token, int):
            if not 0 <= self.token < len(pieces):
                raise SelectionError(
                    f"There is no token {self.token:,}. Pass an id from 0 to {len(pieces) - 1:,}."
                )
            return self.token
        token = find_token(pieces, self.token)
        if token is None:
            raise SelectionError(_not_a_token(checkpoint, self.token))
        return token


@dataclass(frozen=True, eq=False, repr=False)
class NeighborsResult(Result):
    """Nearest neighbors of a token by input embeddings, most similar first.

    Attributes:
        vocabulary: all tokens, the norms of their input vectors, and the cosines of random pairs.
        one: id of the token whose neighbors are listed.
        ids: ids of the neighbors, [neighbor].
        cosines: cosine similarities of the neighbors to the token, float64 [neighbor].
    """

    question: Neighbors
    vocabulary: VocabularyResult
    one: int
    ids: Array
    cosines: Array

    def __post_init__(self) -> None:
        if self.ids.shape != self.cosines.shape:
            raise ShapeError(
                f"ids and cosines must have the same shape, not {self.ids.shape} and {self.cosines.shape}."
            )

    @property
    def pieces(self) -> VocabularyTokens:
        """The tokens of the vocabulary, in the order of their ids."""
        return self.vocabulary.pieces

    @property
    def norms(self) -> Array:
        """Norm of the input vector of each token in the vocabulary, float64 of shape [token]."""
        return self.vocabulary.norms

    @property
    def unrelated(self) -> Array:
        """Cosines of random pairs of tokens, float64, in ascending order."""
        return self.vocabulary.unrelated

    @property
    def name(self) -> str:
        """The token whose neighbors are listed, as text for display."""
        return visible(self.pieces.names[self.one])

    def names(self) -> list[str]:
        """Return the neighbors as texts for display."""
        return [visible(self.pieces.names[token]) for token in self.ids.tolist()]

    @property
    def norm(self) -> float:
        """Norm of the input vector of the token whose neighbors are listed."""
        return float(self.norms[self.one])

    @property
    def norm_rank(self) -> float:
        """Share of all tokens with a smaller norm than the token whose neighbors are listed, 0 to 1."""
        return float((self.norms < self.norm).mean())

    @property
    def mean(self) -> float:
        """Mean cosine of random pairs of tokens."""
        return float(self.unrelated.mean())

    def percentile(self, share: float) -> float:
        """Return a quantile of the cosines of random pairs, for example the median for a share of 0.5."""
        return float(np.quantile(self.unrelated, share))

    def below(self, cosines: Array) -> Array:
        """Return, for each cosine, the share of random pairs with a lower cosine, 0 to 1."""
        shares: Array = np.searchsorted(self.unrelated, cosines) / len(self.unrelated)
        return shares

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The token's id and norm, and the mean and percentiles of the cosines of random pairs."""
        random = {f"p{share}": self.percentile(share / 100) for share in (5, 50, 95)}
        return {
            "id": self.one,
            "norm": self.norm,
            "shorter": self.norm_rank,
            "unrelated": {"pairs": len(self.unrelated), "mean": self.mean, **random},
        }

    def frame(self) -> pd.DataFrame:
        """Return one row per neighbor: rank, id, token, text, kind, cosine, unrelated_below, norm.

        unrelated_below is the share of random pairs with a lower cosine.
        """
        ids = self.ids.tolist()
        return pd.DataFrame(
            {
                "rank": np.arange(1, len(ids) + 1),
                "id": self.ids,
                "token": pd.Series([self.pieces.names[token] for token in ids], dtype=object),
                "text": pd.Series([visible(self.pieces.texts[token]) for token in ids], dtype=object),
                "kind": pd.Series([self.pieces.kinds[token] for token in ids], dtype=object),
                "cosine": self.cosines,
                "unrelated_below": self.below(self.cosines),
                "norm": self.norms[self.ids],
            }
        )


def find_token(pieces: VocabularyTokens, name: str) -> int | None:
    """Return the id of the token with the given name, or None if the vocabulary has no such token.

    The name is compared with the names in the vocabulary, then with the texts of the tokens; tokens that
    begin a word are preferred. If nothing matches, both comparisons are repeated in lowercase.
    """
    space = pieces.marks.space
    for spelling in (name, name.lower()):
        if spelling in pieces.ids:
            return pieces.ids[spelling]
        matches = [token for token, text in enumerate(pieces.texts) if text == spelling]
        if matches:
            initial = (token for token in matches if space and pieces.names[token].startswith(space))
            return next(initial, matches[0])
    return None


def token_reference(pieces: VocabularyTokens, token: int) -> int | str:
    """Return the name of a token if it is printable and unambiguous, otherwise its id."""
    name = pieces.names[token]
    return name if name and name.isprintable() and not _ID.fullmatch(name) else token


def _not_a_token(checkpoint: Checkpoint, name: str) -> str:
    if not name.strip():
        return "The token is empty. Pass a token, for example river."
    if len(name) > 200:
        return f"The token has {len(name):,} characters, but at most 200 are allowed. Pass a shorter token."
    tokens = [token for token in checkpoint.encode(name, truncate=True).tokens if not token.special]
    pieces = ", ".join(visible(str(token)) for token in tokens[:12])
    return (
        f"{visible(name)} is not a token of this vocabulary. The tokenizer splits it into {pieces}. "
        "Pass one of these tokens."
    )
