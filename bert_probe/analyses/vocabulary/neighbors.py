"""Nearest neighbors of a token by input embeddings, with random token pairs as a baseline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from bert_probe.analyses.vocabulary.vocabulary import (
    Vocabulary,
    VocabularyResult,
    input_embeddings,
    nearest_rows,
)
from bert_probe.core.field_types import Dimensions, FieldType, Number
from bert_probe.core.inputs import OneCheckpoint
from bert_probe.core.question import Question, param, question
from bert_probe.core.result import Result
from bert_probe.errors import SelectionError, ShapeError, UnavailableError
from bert_probe.model.checkpoint import Checkpoint
from bert_probe.model.trace import Array, read_only
from bert_probe.text.pieces import VocabularyTokens, visible

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
    """The tokens of the vocabulary whose input embeddings are most similar to that of a token.

    Attributes:
        token: a token as in the vocabulary, a word that is a single token, or an id.
        count: number of neighbors.
    """

    inputs = OneCheckpoint()

    token: int | str = param(VocabularyToken(), key="near", about="A token of the vocabulary.")
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
                    f"There is no token {self.token:,}. Give an id from 0 to {len(pieces) - 1:,}."
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
        """Share of all tokens whose input vector is shorter than this token's, 0 to 1."""
        return float((self.norms < self.norm).mean())

    @property
    def mean(self) -> float:
        """Mean cosine of random pairs of tokens."""
        return float(self.unrelated.mean())

    def percentile(self, share: float) -> float:
        """Return a quantile of the cosines of random pairs, such as the median for a share of 0.5."""
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
        """Return one row per neighbor: rank, id, token, text, kind, cosine, unrelated_below, norm."""
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
        return "No token was given. Give a token, for example river."
    if len(name) > 200:
        return f"{len(name):,} characters, but a token has at most 200. Give a shorter token."
    tokens = [token for token in checkpoint.encode(name, truncate=True).tokens if not token.special]
    pieces = ", ".join(visible(str(token)) for token in tokens[:12])
    return (
        f"{visible(name)} is not a token of this vocabulary. It is split into {pieces}. "
        "Give one of these tokens."
    )
